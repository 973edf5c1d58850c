"""Gradients as outputs: cotangents, several right values at kinks, and keys without gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from gpuemu_flow.judge.gradients import as_submitted, half_judged
from gpuemu_flow.judge.subject import CompareParams
from gpuemu_flow.model.decoding import convert, plain
from gpuemu_flow.model.types import CheckResult, ErrorStats, Failure, FailureKind, Verdict
from gpuemu_flow.numerics.gradients import Kinks, MovedCotangents, cotangent, unit_of
from gpuemu_flow.workers.api import Gradients, Program

Arrays = Mapping[str, NDArray[Any]]
UNIT = unit_of("float32")


def relu(inputs: Arrays, **_: Any) -> Arrays:
    x = inputs["x"]
    return {"y": np.maximum(x, 0.0), "d/dx": (x > 0.0).astype(x.dtype)}


def maximum(inputs: Arrays, **_: Any) -> Arrays:
    x = inputs["x"]
    gradient = np.zeros_like(x)
    gradient[x.argmax()] = 1.0
    return {"y": x.max(keepdims=True), "d/dx": gradient}


def kinks(reference: Any, x: NDArray[Any]) -> Kinks:
    return Kinks(reference, {"x": x}, reference({"x": x.astype(np.float64)}), 7, UNIT)


def test_cotangents_follow_from_name_and_shape() -> None:
    one = cotangent("y", (3, 50), None, {})
    assert np.array_equal(one, cotangent("y", (3, 50), None, {}))
    assert not np.array_equal(one, cotangent("z", (3, 50), None, {}))
    assert one.min() >= 0.5 and one.max() < 2.0 and len(np.unique(one)) > 4
    for narrow in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn):
        assert np.array_equal(one.astype(narrow).astype(np.float64), one)


def test_elements_that_do_not_count_have_the_cotangent_0() -> None:
    mask = {"input": "n", "axes": [0], "test": "<", "value": 0.0, "along": 1}
    found = cotangent("y", (2, 3), mask, {"n": np.array([1, 3])})
    assert (found == 0.0).tolist() == [[False, True, True], [False, False, False]]


def test_all_between_the_two_sides_of_a_bend_is_right() -> None:
    x = np.array([0.0, 0.0, 0.0, 0.0, 2.0, -1.0], np.float32)
    given = np.array([1.0, 0.5, 0.0, 3.0, 0.0, 1.0], np.float32)
    found = kinks(relu, x).excuse("d/dx", given)
    assert found.right.tolist() == [True, True, True, False, False, False]
    assert found.unjudged.tolist() == [True, True, True, False, False, False]


def test_nobody_judges_which_of_equal_elements_gets_the_gradient() -> None:
    x = np.array([5.0] * 40 + [1.0, 2.0], np.float32)
    given = np.zeros(42, np.float32)
    given[:40] = 1 / 40
    found = kinks(maximum, x).excuse("d/dx", given)
    assert (found.right | found.unjudged)[:40].all()
    given[40] = 1.0
    assert not kinks(maximum, x).excuse("d/dx", given).unjudged[40]


def test_a_wrong_gradient_of_a_smooth_function_has_no_excuse() -> None:
    def square(inputs: Arrays, **_: Any) -> Arrays:
        return {"y": inputs["x"] ** 2, "d/dx": 2.0 * inputs["x"]}

    x = np.linspace(-2.0, 2.0, 40, dtype=np.float32)
    assert not kinks(square, x).excuse("d/dx", x * np.float32(1.0001))


def test_what_is_not_finite_has_no_derivative() -> None:
    x = np.array([np.nan, np.inf, 1.0], np.float32)
    found = kinks(relu, x).excuse("d/dx", np.array([7.0, 7.0, 7.0], np.float32))
    assert found.unjudged.tolist() == [True, True, False]


def test_gradients_that_were_not_submitted_have_no_verdict() -> None:
    expected = {name: np.zeros(2) for name in ("y", "d/dx", "d/dw")}
    passed = CheckResult(Verdict.PASSED, stats=ErrorStats(count=2))
    told = as_submitted({"y": np.zeros(2)}, expected)
    assert list(told) == ["y"]
    found = half_judged(passed, told, expected)
    assert found.verdict is Verdict.INCONCLUSIVE and "'d/dw', 'd/dx'" in found.notes[0]
    assert (found.stats.count, found.stats.num_no_verdict) == (6, 4)
    told = as_submitted({"y": np.zeros(2), "d/dx": np.zeros(2)}, expected)
    assert list(told) == ["y", "d/dx"]
    failed = CheckResult(Verdict.FAILED, (Failure(FailureKind.TOLERANCE, "wrong"),))
    assert half_judged(failed, told, expected).verdict is Verdict.FAILED
    whole = as_submitted(expected, expected)
    assert half_judged(passed, whole, expected) is passed


def test_without_gradients_keys_are_as_they_were() -> None:
    assert "gradients" not in plain(CompareParams("auto", {}))
    wanted = CompareParams("auto", {}, gradients=("x",))
    assert convert(plain(wanted), CompareParams) == wanted
    program = Program("torch", root="/", input_names=("x",))
    assert msgspec.to_builtins(program)["gradients"] is None
    more = Program("torch", root="/", input_names=("x",), gradients=Gradients(("x",), plain=True))
    assert msgspec.convert(msgspec.to_builtins(more), Program) == more


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 3)])
def test_moved_cotangents_are_arrays_of_the_outputs_shape(shape: tuple[int, ...]) -> None:
    def reference(inputs: Arrays, **_: Any) -> Arrays:
        return {"y": cotangent("y", shape, None, inputs)}

    usual, moved = reference({}), MovedCotangents(reference, 7, UNIT)({})
    for found in (usual["y"], moved["y"]):
        # Frameworks convert arrays, but not scalars of numpy, to tensors.
        assert isinstance(found, np.ndarray) and found.shape == shape
    assert np.allclose(moved["y"], usual["y"], rtol=8.0 * UNIT, atol=0.0)
    assert (moved["y"] != usual["y"]).any() == (moved["y"].size > 0)
