"""No tolerance of `auto` is as wide as its value: zeros and results ten times too large fail."""

from __future__ import annotations

import numpy as np
import pytest
from envelope_ops import F32, Function, Op, check

from gpuemu_flow.model.types import CheckResult, Verdict

RNG = np.random.default_rng(0)
INPUTS = {
    "normal": RNG.standard_normal((8, 50)),
    "integers": np.rint(3 * RNG.standard_normal((8, 50))),
    "negative": -20 * np.abs(RNG.standard_normal((8, 50))),
    "at the pole": np.concatenate([np.full((4, 50), -1.0), RNG.standard_normal((4, 50))]),
    "wide": RNG.uniform(-1e3, 1e3, (8, 50)),
}
# At |x| most of these have a pole, at -1 or where two magnitudes are equal, that x has not.
POLES: dict[str, Op] = {
    "1/(1-x)": lambda x: 1 / (1 - x),
    "log(1-x)": lambda x: np.log(1 - x),
    "sqrt(1-x)": lambda x: np.sqrt(1 - x),
    "1/sqrt(1-x)": lambda x: 1 / np.sqrt(1 - x),
    "1/(1+x)^2": lambda x: 1 / (1 + x) ** 2,
    "1/log|x|": lambda x: 1 / np.log(np.abs(x)),
    "1/(x-y)": lambda x: 1 / (x - x[::-1]),
    "(x+y)/(x-y)": lambda x: (x + x[::-1]) / (x - x[::-1]),
    "x/sum": lambda x: x / x.sum(-1, keepdims=True),
    "x/(|x|-x+tiny)": lambda x: x / (np.abs(x) - x + x.dtype.type(1e-30)),
    "1/(relu(-x)+eps)": lambda x: 1 / (np.maximum(-x, 0) + x.dtype.type(1e-6)),
    "tan": np.tan,
    "exp": np.exp,
    "round": lambda x: np.round(x * x.dtype.type(3.3)),
}


def judged(function: Op, values: np.ndarray, factor: float) -> CheckResult:
    """The reference itself in float32, times a factor where the right result is a number."""
    x = values.astype(np.float32)
    with np.errstate(all="ignore"):
        exact = function(x.astype(np.float64))
        own = function(x)
        wrong = np.where(np.isfinite(exact.astype(np.float32)), np.nan_to_num(own) * factor, exact)
    return check(Function(function), lambda x: wrong.astype(np.float32), {"x": x}, "float32")[0]


@pytest.mark.parametrize("name", POLES)
def test_nothing_ten_times_too_large_and_no_zero_passes(name: str) -> None:
    for values in sorted(INPUTS):
        function, x = POLES[name], INPUTS[values]
        with np.errstate(all="ignore"):
            exact = function(x.astype(np.float32).astype(np.float64))
            told = np.isfinite(exact.astype(np.float32)) & (np.abs(exact) > 1e-30)
        for factor in (10.0, 0.0):
            stats = judged(function, x, factor).stats
            missed = np.count_nonzero(told) - stats.num_exceeding - stats.num_no_verdict
            # A result far below the magnitudes that went into it may be 0.
            allowed = (
                0.25 if name == "1/(relu(-x)+eps)" and values == "wide" and not factor else 0.02
            )
            assert missed <= allowed * told.size, (factor, missed)
        right = judged(function, x, 1.0)
        assert (right.verdict, right.stats.num_exceeding) == (Verdict.PASSED, 0)


@pytest.mark.parametrize("pole", [-1.0, -1.0000001, -0.9999999])
def test_a_pole_of_the_twin_is_none_of_the_result(pole: float) -> None:
    x = np.full((4, 50), pole)
    assert judged(POLES["1/(1-x)"], x, 10.0).stats.num_exceeding == x.size
    assert judged(POLES["1/(1-x)"], x, 1.0001).stats.num_exceeding == x.size
    assert judged(POLES["1/(1-x)"], x, 1 + 1e-7).verdict is Verdict.PASSED


def test_an_overflowing_exponential_still_has_a_verdict() -> None:
    x = np.full(50, -800.0, np.float32)
    result, _ = check(Function(np.exp), lambda x: x * 0 + 12345, {"x": x}, "float32")
    assert (result.verdict, result.stats.num_no_verdict) == (Verdict.FAILED, 0)


def test_a_tolerance_as_wide_as_the_values_gives_no_verdict() -> None:
    def drowned(x: np.ndarray) -> np.ndarray:
        return (x + x.dtype.type(1e8)) - x.dtype.type(1e8)

    x = RNG.standard_normal((4, 50)).astype(np.float32)
    for op in (lambda x: x * 0, lambda x: 10 * x.astype(np.float64)):
        result, _ = check(Function(drowned), op, {"x": x}, "float32")
        assert result.verdict is not Verdict.FAILED
        assert result.stats.num_no_verdict > 0.9 * x.size


def test_one_unstable_element_does_not_excuse_its_peers() -> None:
    """A rounded quotient that a draw moves across a half has the others in its binade."""

    def quotient(x: np.ndarray) -> np.ndarray:
        return np.round(x / x.dtype.type(3))

    x = np.full((4, 50), 6.0, np.float32)
    x[0, 0] = 7.5
    result, _ = check(Function(quotient), lambda x: quotient(x) * F32(0), {"x": x}, "float32")
    assert result.stats.num_exceeding >= x.size - 1


def test_what_magnitudes_are_not_accounted_for_may_still_be_as_large_as_the_inputs() -> None:
    """``x * (1 + tanh(x / 2)) / 2`` is a right sigmoid-weighted unit, off by a rounding of x."""

    def silu(x: np.ndarray) -> np.ndarray:
        return x / (1 + np.exp(-x))

    def by_tanh(x: np.ndarray) -> np.ndarray:
        return x * F32(0.5) * (1 + np.tanh(x * F32(0.5)))

    x = np.linspace(-30, 30, 256, dtype=np.float32)
    right, _ = check(Function(silu), by_tanh, {"x": x}, "float32")
    assert right.verdict is Verdict.PASSED


def test_the_usual_fused_log_softmax_passes_at_logits_near_1000() -> None:
    def log_softmax(x: np.ndarray) -> np.ndarray:
        shifted = x - x.max(-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))

    def fused(x: np.ndarray) -> np.ndarray:
        top = x.max(-1, keepdims=True)
        return x - (top + np.log(np.exp(x - top).sum(-1, keepdims=True)))

    def without_max(x: np.ndarray) -> np.ndarray:
        return x - x.max(-1, keepdims=True)

    for seed in range(12):
        rng = np.random.default_rng(seed)
        shape = [(1, 3), (5, 37), (4, 128), (3, 1025)][seed % 4]
        x = (1e3 + 10 * rng.standard_normal(shape)).astype(np.float32)
        right, _ = check(Function(log_softmax), fused, {"x": x}, "float32")
        assert right.verdict is Verdict.PASSED, right.failures
    wrong, _ = check(Function(log_softmax), without_max, {"x": x}, "float32")
    assert wrong.verdict is Verdict.FAILED
