"""Test what all adapters share, without a framework: calls, comparison, gradients, arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from for_each import for_each
from numpy.typing import NDArray

from gpuemu_flow.client import ClientError, ValidationError
from gpuemu_flow.client.results import FuzzResults
from gpuemu_flow.frameworks import get_jax_adapter, get_pytorch_adapter, get_tensorflow_adapter
from gpuemu_flow.frameworks.base import (
    CheckOutcome,
    FrameworkAdapter,
    agree,
    caller,
    require,
)
from gpuemu_flow.frameworks.local import compare
from gpuemu_flow.frameworks.shared import GradientChecker, fuzz_with_checks
from gpuemu_flow.model.errors import UsageError
from gpuemu_flow.numerics.dtypes import numpy_dtype

Array = NDArray[Any]


class Arrays(FrameworkAdapter):
    """numpy with gradients that the test writes down."""

    def __init__(self, gradient: Callable[..., dict[str, Array]] | None = None) -> None:
        self.gradient = gradient

    def to_numpy(self, tensor: Any) -> Array:
        return np.asarray(tensor)

    def from_numpy(self, array: Array, like: Any = None) -> Any:
        return array.copy()

    def get_dtype_name(self, tensor: Any) -> str:
        return str(tensor.dtype)

    def requires_grad(self, tensor: Any, requires: bool | None = None) -> Any:
        return tensor

    def compute_gradient(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def pullback(
        self, function: Callable[[Mapping[str, Any]], Any], arrays: Any, names: Sequence[str]
    ) -> Any:
        outputs = [np.asarray(function(arrays))]
        gradient = self.gradient
        assert gradient is not None
        return outputs, lambda cotangents: gradient(cotangents[0], **arrays)


def test_how_functions_are_called() -> None:
    values = {"a": 1, "b": 2}
    assert caller(lambda a, b: (a, b), values)(values) == (1, 2)
    assert caller(lambda b, a: (a, b), values)(values) == (1, 2)
    assert caller(lambda **kw: kw, values)(values) == values
    assert caller(lambda inputs: inputs, values)(values) == values
    assert caller(lambda x, y: (x, y), values)(values) == (1, 2)
    assert caller(lambda a, b, c=3: c, values)(values) == 3
    assert caller(np.add, values)(values) == 3
    assert caller(lambda *args, **kw: (args, kw), values)(values) == ((1, 2), {})
    assert caller(lambda x, y: (x, y), [5, 6])({"0": 5, "1": 6}) == (5, 6)
    plain = {"x": np.ones(2), "axis": -1, "mode": "mean"}
    call = caller(lambda x, axis, mode: (x, axis, mode), plain)
    assert call({"x": 7}) == (7, -1, "mean")


def test_gradients_that_are_right_and_wrong() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4))
    checker = GradientChecker(Arrays(lambda g, x: {"x": g * 2 * x}))
    assert checker.check(lambda x: x * x, {"x": x})
    wrong = GradientChecker(Arrays(lambda g, x: {"x": g * 2.1 * x}))
    found = wrong.check(lambda x: x * x, {"x": x})
    assert not found and "the gradient by 'x' at [0, 0]" in found.message
    shape = GradientChecker(Arrays(lambda g, x: {"x": (g * 2 * x).sum(0)}))
    assert "has shape [4]" in shape.check(lambda x: x * x, {"x": x}).message
    nan = GradientChecker(Arrays(lambda g, x: {"x": g * np.nan}))
    assert not nan.check(lambda x: x * x, {"x": x})


def test_a_constant_sum_hides_no_error() -> None:
    """A plain sum of softmax is 1 whatever its inputs: a gradient of zeros would agree with it."""

    def softmax(x: Array) -> Array:
        e = np.exp(x - x.max(-1, keepdims=True))
        return np.asarray(e / e.sum(-1, keepdims=True))

    x = np.random.default_rng(0).standard_normal((2, 5))
    assert not GradientChecker(Arrays(lambda g, x: {"x": 0 * x})).check(softmax, {"x": x})


def test_kinks_have_no_verdict() -> None:
    relu = Arrays(lambda g, x: {"x": g * (x > 0)})
    x = np.array([-1.0, 0.0, 2.0])
    found = GradientChecker(relu).check(lambda x: np.maximum(x, 0), {"x": x})
    assert found.passed or "kink" in found.message
    step = Arrays(lambda g, x: {"x": g * 0})
    found = GradientChecker(step).check(lambda x: np.sign(x) * 1e9, {"x": np.zeros(2)})
    assert not found.passed


def test_gradients_of_nothing() -> None:
    adapter = Arrays(lambda g, n: {})
    assert not GradientChecker(adapter).check(lambda n: n, {"n": np.arange(3)})
    assert GradientChecker(adapter, epsilon=1e-5).eps == 1e-5


def test_only_some_elements_of_large_inputs_are_tried() -> None:
    x = np.random.default_rng(0).standard_normal(5000)
    checker = GradientChecker(Arrays(lambda g, x: {"x": g * 2 * x}), max_elements=10)
    found = checker.check(lambda x: x * x, {"x": x})
    assert found and found.details["tried"] == 10


def test_comparison() -> None:
    x = np.linspace(1, 2, 6, dtype=np.float32).reshape(2, 3)
    assert compare(x, x.copy()).passed
    wide = compare(x, x.astype(np.float64) + 1e-7)
    assert wide.passed and 0 < wide.max_diff < 1e-6
    low = compare(x.astype(numpy_dtype("bfloat16")), x)
    assert low.passed and low.max_diff > 1e-4
    assert not compare(x.astype(np.float64), x).passed  # the op gives a wider type than expected
    result = compare(x, x + np.float32(1e-3), op_name="add", seed=5)
    assert (result.op_name, result.seed, result.verdict) == ("add", 5, "failed")
    (failure,) = result.failures
    assert failure.kind == "ToleranceExceeded" and failure.index is not None
    assert compare(x, x + np.float32(1e-3), atol=1e-2).passed
    assert not compare(x, x + np.float32(1e-3), atol=0, rtol=0).passed
    assert compare(x, x[:1]).failures[0].kind == "ShapeMismatch"
    assert compare({"a": x, "b": x}, {"b": x, "a": x}).passed
    assert compare((x, x), [x, x]).passed
    assert not compare((x, x), [x]).passed
    with pytest.raises(ValidationError, match="add"):
        compare(x, -x, op_name="add", raise_on_failure=True)


def test_nan_where_the_inputs_have_none() -> None:
    x = np.ones(3, np.float32)
    y = np.array([1, np.nan, 1], np.float32)
    assert [f.kind for f in compare(y, x, inputs={"x": x}).failures] == ["NaNDetected"]
    assert compare(y, y.copy(), inputs={"x": y}).passed


def test_outcomes() -> None:
    outcome = CheckOutcome(False, "bad", 2.0)
    assert not outcome and outcome["message"] == "bad" and dict(outcome)["max_diff"] == 2.0
    one, two = np.ones(2), np.ones(3)
    assert not agree([one], [one, one], 0, 0, "x")
    assert "shape [2]" in agree([one], [two], 0, 0, "x").message
    assert not agree([one], [one * 2], 0.5, 0, "x") and agree([one], [one * 2], 1, 0, "x")
    infinite = np.array([np.inf, np.nan])
    assert agree([infinite], [infinite], 0, 0, "x") and not agree([one], [infinite], 1, 1, "x")


def test_a_framework_that_is_missing() -> None:
    with pytest.raises(UsageError) as caught:
        require("no_such_framework", "torch")
    assert caught.value.slug == "framework-missing"
    assert "pip install 'gpuemu-flow[torch]'" in str(caught.value)


def test_adapters_load_without_their_frameworks() -> None:
    for get, name in (
        (get_pytorch_adapter, "pytorch"), (get_jax_adapter, "jax"),
        (get_tensorflow_adapter, "tensorflow"),
    ):  # fmt: skip
        adapter_class: Any = get()[0]
        assert adapter_class().get_framework_name() == name
        assert isinstance(adapter_class().is_available(), bool)


@for_each(
    "args",
    [(), ("softmax",), (None, "softmax"), (lambda x: x,), (lambda x: x, lambda x: x), (1, 2, 3),
     (lambda x: x, lambda x: x, {}, 4), (None, "softmax", {}, True, 5)],
)  # fmt: skip
def test_arguments_that_mean_nothing(args: tuple[Any, ...]) -> None:
    from gpuemu_flow.frameworks.pytorch import validate_pytorch

    with pytest.raises(UsageError) as caught:
        validate_pytorch(*args)
    assert caught.value.slug == "validate-arguments"


def test_fuzzing_counts_checks_and_outputs() -> None:
    calls: list[str] = []

    def check(op: Any, arrays: Any) -> CheckOutcome:
        calls.append(arrays["x"].dtype.name)
        return CheckOutcome(len(calls) % 3 != 0, "every third")

    options: dict[str, Any] = {
        "iterations": 9, "seed": 4, "ref_fn": lambda x: x * 2, "batch_sizes": [1],
        "seq_lengths": [2], "hidden_dims": [3], "edge_cases": [], "names": ["x"],
        "dtypes": ["float32", "bfloat16"],
    }  # fmt: skip
    found = fuzz_with_checks(Arrays(), None, "op", lambda x: x * 2, {"c": check}, **options)
    assert (found.total, found.failed, found["passed"]) == (9, 3, 6)
    assert len(found.c_failures) == 3 and found.forward_failures == []
    assert all(outcome.seed for outcome in found.c_failures)
    assert set(calls) == {"float32", "bfloat16"} and not found

    calls.clear()
    found = fuzz_with_checks(
        Arrays(), None, "op", lambda x: x * 2, {"c": check}, fail_fast=True, **options
    )
    assert (found.total, found.failed, len(found.forward_failures)) == (3, 1, 0)
    found = fuzz_with_checks(Arrays(), None, "op", lambda x: x * 3, {}, **options)
    assert found.failed == len(found.forward_failures) == 9
    with pytest.raises(AttributeError):
        found.c_failures  # noqa: B018
    with pytest.raises(UsageError) as caught:
        fuzz_with_checks(Arrays(), None, "op", lambda x: x, {})
    assert caught.value.slug == "fuzz-arguments"


def test_fuzzing_by_a_client() -> None:
    """The tolerance travels; bfloat16 cases come as float32 and are converted back."""
    seen: dict[str, Any] = {}

    def fuzz_op_client_side(op: str, run: Any, n: int, seed: int, fast: bool, **more: Any) -> Any:
        seen.update(op=op, n=n, seed=seed, fast=fast, more=more)
        seen["output"] = run({"x": np.ones(3, np.float32)})
        return FuzzResults(seed, total=1, passed=1, unjudged=0.25)

    client = SimpleNamespace(fuzz_op_client_side=fuzz_op_client_side)
    found = fuzz_with_checks(
        Arrays(), client, "op", lambda x: x, {}, iterations=3, seed=9, atol=0.5, dtypes=["bfloat16"]
    )
    assert (found.passed, found.unjudged) == (1, 0.25)
    assert seen["output"].dtype == numpy_dtype("bfloat16")
    assert (seen["op"], seen["n"], seen["seed"]) == ("op", 3, 9)
    assert seen["more"] == {"dtypes": ["bfloat16"], "atol": 0.5}


@pytest.mark.parametrize("wrong", ["1", True, np.nan, np.inf, [1.0]])
def test_a_tolerance_that_is_no_finite_number_is_refused(wrong: Any) -> None:
    """True would count as 1, and by an infinite tolerance everything agrees."""
    x = np.ones(3, np.float32)
    for judge in (
        lambda: compare(x + 1, x, atol=wrong),
        lambda: agree([x + 1], [x], wrong, 0.0, "jit"),
        lambda: GradientChecker(Arrays(), rtol=wrong),
    ):
        with pytest.raises(ClientError) as caught:
            judge()
        assert caught.value.problems[0].slug == "client-bad-tolerance"
    assert not compare(x + 1, x, atol=np.float32(0.5), rtol=0).passed


def test_a_list_of_tensors_is_neither_an_input_nor_a_named_output() -> None:
    x = np.ones(3, np.float32)
    for judge in (
        lambda: compare(x, x, inputs={"x": [x]}),
        lambda: compare({"y": [x]}, {"y": [x]}),
        lambda: compare([[x]], [[x]]),
    ):
        with pytest.raises(ClientError) as caught:
            judge()
        assert caught.value.problems[0].slug == "client-several-tensors"
    assert compare({"y": [1.0, 2.0]}, {"y": [1.0, 2.0]}, inputs={"x": [1.0]}).passed


def test_inputs_of_only_zeros_are_noted() -> None:
    zeros, x = np.zeros(3, np.float32), np.ones(3, np.float32)
    noted = compare(zeros, zeros, inputs={"x": zeros})
    assert noted.passed
    assert [note.partition(":")[0] for note in noted.notes] == ["inputs-only-zeros"]
    assert not compare(x, x, inputs={"x": x}).notes
    assert not compare(x, x).notes


def test_a_tolerance_that_zeros_pass_under_is_noted() -> None:
    zeros, x = np.zeros(3, np.float32), np.ones(3, np.float32)
    noted = compare(zeros, x, inputs={"x": x}, atol=2)
    assert [note.partition(":")[0] for note in noted.notes] == ["loose-tolerance"]
    assert not compare(x, x, inputs={"x": x}, atol=0.5).notes
