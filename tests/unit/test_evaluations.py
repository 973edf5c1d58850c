"""References that refuse float64 are measured in the dtype that they take instead."""

from __future__ import annotations

import numpy as np
import pytest
from envelope_ops import F32, Arrays, check, outer_product_matmul, tiled_matmul

from gpuemu_flow.model.errors import Problem, RunnerError
from gpuemu_flow.model.types import Verdict
from gpuemu_flow.numerics.dtypes import numpy_dtype
from gpuemu_flow.numerics.envelope import shadow_is_faithful
from gpuemu_flow.numerics.evaluations import Evaluations, on_each


class Choosy:
    """A matrix product in the type of its inputs, which it takes only if it is the one named."""

    def __init__(self, *dtypes: str) -> None:
        self.dtypes = [numpy_dtype(name) for name in dtypes]
        self.taken: list[np.dtype] = []

    def __call__(self, inputs: Arrays, *, shadow: bool = False) -> Arrays:
        a, b = inputs.values()
        if a.dtype not in self.dtypes:
            raise RunnerError(Problem("reference-failed", f"TypeError: no {a.dtype}"))
        self.taken.append(a.dtype)
        return {"y": a @ b}


def matrices(seed: int, dtype: str = "float32", inner: int = 300) -> Arrays:
    rng = np.random.default_rng(seed)
    kind = numpy_dtype(dtype)
    a, b = rng.standard_normal((16, inner)), rng.standard_normal((inner, 16))
    return {"a": a.astype(kind), "b": b.astype(kind)}


def test_a_right_chunked_matmul_passes_against_a_reference_that_takes_float32_alone() -> None:
    for seed in range(24):
        reference = Choosy("float32")
        inputs = matrices(seed)
        expected = reference(inputs)
        for op in (tiled_matmul, outer_product_matmul):
            right, envelope = check(reference, op, inputs, "float32", expected=expected)
            assert right.verdict is Verdict.PASSED, right.failures
            assert envelope.reason == ""
        wrong, _ = check(
            reference, lambda a, b: tiled_matmul(a, b, drop_tail=True), inputs, "float32",
            expected=expected,
        )  # fmt: skip
        assert wrong.verdict is Verdict.FAILED


def test_float64_is_asked_for_once_where_it_is_refused() -> None:
    reference = Choosy("float32")
    evaluations = Evaluations(reference, matrices(0))
    wide = {name: array.astype(np.float64) for name, array in matrices(0).items()}
    for _ in range(3):
        assert evaluations.outputs(wide) is not None
    assert (evaluations.count, evaluations.failed) == (4, 1)
    assert not evaluations.takes_float64
    assert evaluations.own_format is not None
    assert evaluations.own_format.name == "float32"


def test_a_missing_worker_is_no_refusal_of_the_reference() -> None:
    def reference(inputs: Arrays, *, shadow: bool = False) -> Arrays:
        raise RunnerError(Problem("worker-not-started", "no process"))

    with pytest.raises(RunnerError, match="no process"):
        Evaluations(reference, matrices(0)).outputs(matrices(0))


@pytest.mark.parametrize("dtype", ["float16"])
def test_one_that_takes_half_alone_is_drawn_from_in_half(dtype: str) -> None:
    reference = Choosy(dtype)
    inputs = matrices(3, dtype, inner=40)
    expected = reference(inputs)

    def in_float32(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a.astype(F32) @ b.astype(F32)).astype(dtype)

    right, _ = check(reference, in_float32, inputs, dtype, weak=True, expected=expected)
    assert right.verdict is Verdict.PASSED
    wrong, _ = check(
        reference, lambda a, b: 2 * in_float32(a, b), inputs, dtype, weak=True, expected=expected
    )
    assert wrong.verdict is Verdict.FAILED


def test_where_all_evaluations_fail_there_is_no_verdict_and_a_reason() -> None:
    inputs = matrices(1)
    expected = Choosy("float32")(inputs)
    never = Choosy()
    result, envelope = check(
        never, lambda a, b: 1.5 * (a @ b), inputs, "float32", weak=True, expected=expected
    )
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "TypeError: no float32" in envelope.reason
    assert any("the reference fails on all moved inputs: " in note for note in result.notes)
    exact, _ = check(never, lambda a, b: a @ b, inputs, "float32", weak=True, expected=expected)
    assert exact.verdict is Verdict.PASSED, "what is equal needs no tolerance"


def test_a_reference_that_takes_float32_alone_is_its_own_shadow() -> None:
    assert shadow_is_faithful(on_each(Choosy("float32"), [matrices(0), matrices(1)]))
    assert not shadow_is_faithful(on_each(Choosy("float16"), [matrices(0)]))
