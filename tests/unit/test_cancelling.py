"""Results whose terms cancel exactly in the reference: what an op may leave there, and what not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from envelope_ops import F32, Function
from for_each import for_each
from numpy.typing import NDArray

from gpuemu_flow.model.types import CheckResult, Verdict
from gpuemu_flow.numerics.cancelling import Operands, cancelling
from gpuemu_flow.numerics.compare import Policy, check_outputs
from gpuemu_flow.numerics.envelope import Envelope
from gpuemu_flow.numerics.perturb import widen
from gpuemu_flow.numerics.rng import SeededRng

Array = NDArray[Any]
UNIT = 2.0**-23


def judged(
    reference: Callable[..., Array],
    op: Callable[..., Array],
    inputs: Mapping[str, Array],
    *,
    dtype: str = "float32",
    seed: int = 1,
) -> CheckResult:
    evaluate = Function(reference)
    expected = evaluate(widen(inputs))
    envelope = Envelope(
        inputs, expected, evaluate, dtype=dtype, seed=seed, exact_op=False, weak=False
    )
    with np.errstate(all="ignore"):
        actual = {"y": op(*inputs.values()).astype(dtype)}
    return check_outputs(
        actual,
        expected,
        tolerance=envelope,
        policy=Policy(),
        expected_dtypes={"y": dtype},
        inputs=inputs,
    )


def causal_dq(q: Array, k: Array, v: Array, do: Array) -> Array:
    """The gradient of attention by q, as the softmax's derivative says."""
    scores = np.where(np.tri(len(q), dtype=bool), q @ k.T, -np.inf)
    p = np.exp(scores - scores.max(1, keepdims=True))
    p = p / p.sum(1, keepdims=True)
    dp = do @ v.T
    result: Array = (p * (dp - (p * dp).sum(1, keepdims=True))) @ k
    return result


def flash_dq(q: Array, k: Array, v: Array, do: Array, *, less: float = 1.0) -> Array:
    """The same with p from the logarithm of the sum, and delta from the output."""
    scores = np.where(np.tri(len(q), dtype=bool), q @ k.T, F32(-np.inf))
    top = scores.max(1, keepdims=True)
    p = np.exp(scores - (top + np.log(np.exp(scores - top).sum(1, keepdims=True))))
    delta = (do * (p @ v)).sum(1, keepdims=True)
    result: Array = (p * (do @ v.T - F32(less) * delta)) @ k
    return result


def attention_inputs(
    seed: int, rows: int = 9, width: int = 16, size: float = 1.0
) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        name: (rng.standard_normal((rows, width)) * size).astype(np.float32)
        for name in ("q", "k", "v", "do")
    }


@pytest.mark.parametrize("size", [0.3, 1.0])
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_the_backward_pass_of_a_flash_attention_is_right(rows: int, size: float) -> None:
    for seed in range(10):
        inputs = attention_inputs(seed, rows, size=size)
        result = judged(causal_dq, flash_dq, inputs, seed=seed)
        assert result.verdict is not Verdict.FAILED, result.failures
    assert judged(causal_dq, flash_dq, attention_inputs(0)).verdict is Verdict.PASSED


def test_a_backward_pass_without_a_hundredth_of_delta_fails() -> None:
    wrong = lambda q, k, v, do: flash_dq(q, k, v, do, less=0.99)  # noqa: E731
    for seed in range(5):
        assert judged(causal_dq, wrong, attention_inputs(seed)).verdict is Verdict.FAILED


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


SATURATED: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "derivative of tanh": (
        lambda x: 1 - np.tanh(x) ** 2,
        lambda x: 4 * np.exp(-2 * np.abs(x)) / (1 + np.exp(-2 * np.abs(x))) ** 2,
    ),
    "log of a sigmoid": (
        lambda x: x - (np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))),
        lambda x: np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x))),
    ),
    "logaddexp without its maximum": (
        lambda x: np.logaddexp(x, 0) - np.maximum(x, 0),
        lambda x: np.log1p(np.exp(-np.abs(x))),
    ),
    "complement of a sigmoid": (lambda x: 1 - 1 / (1 + np.exp(-x)), lambda x: _sigmoid(-x)),
    "its logarithm": (
        lambda x: np.log(1 - 1 / (1 + np.exp(-x))),
        lambda x: -(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))),
    ),
    "log of a sum of two": (
        lambda x: np.log(np.exp(np.stack([x - np.maximum(x, 0), -np.maximum(x, 0)])).sum(0)),
        lambda x: np.log1p(np.exp(-np.abs(x))),
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SATURATED)
def test_what_float64_rounds_to_exactly_0_is_not_held_against_an_op(name: str, dtype: str) -> None:
    reference, op = SATURATED[name]
    for seed in range(10):
        x = np.random.default_rng(seed).uniform(-90, 90, 200).astype(dtype)
        result = judged(reference, op, {"x": x}, dtype=dtype, seed=seed)
        assert result.verdict is not Verdict.FAILED, result.failures


@pytest.mark.parametrize("name", ["derivative of tanh", "complement of a sigmoid"])
def test_wrong_values_beside_saturated_ones_fail(name: str) -> None:
    reference, op = SATURATED[name]
    x = np.random.default_rng(0).uniform(-30, 30, 200).astype(np.float32)
    assert judged(reference, lambda x: op(x) + F32(1e-5), {"x": x}).verdict is Verdict.FAILED
    assert judged(reference, lambda x: op(x) * F32(1.001), {"x": x}).verdict is Verdict.FAILED


MASKED: dict[str, Callable[[Array], Array]] = {
    "selection": lambda p: np.where(np.tri(*p.shape, dtype=bool), p, 0),
    "product with 0": lambda p: p * np.tri(*p.shape),
    "weight of -Inf": lambda p: np.where(np.tri(*p.shape, dtype=bool), p, np.exp(-np.inf)),
}


@pytest.mark.parametrize("name", MASKED)
def test_a_leak_of_1e_8_into_masked_places_fails_beside_terms_that_cancel(name: str) -> None:
    """The same output holds elements that cancel: what those are allowed is not for the masked."""

    def reference(x: Array, w: Array) -> Array:
        values = x @ w
        cancelled = values - (values * np.ones((1, 1))).sum(-1, keepdims=True)
        cancelled = np.where(np.arange(values.shape[1]) == 0, values - values[:, :1], cancelled)
        return MASKED[name](cancelled)

    rng = np.random.default_rng(0)
    inputs = {n: rng.standard_normal((12, 12)).astype(np.float32) for n in ("x", "w")}

    def op(x: Array, w: Array, leak: float = 0.0) -> Array:
        right = reference(x, w)
        return right + F32(leak) * ~np.tri(*right.shape, dtype=bool)

    assert judged(reference, op, inputs).verdict is Verdict.PASSED
    leaking = judged(reference, lambda x, w: op(x, w, 1e-8), inputs)
    assert leaking.verdict is Verdict.FAILED
    assert leaking.stats.num_exceeding == 66

    def cancels_otherwise(x: Array, w: Array) -> Array:
        result = op(x, w)
        result[:, 0] = F32(3e-7)
        return result

    assert judged(reference, cancels_otherwise, inputs).verdict is Verdict.PASSED


def draws(function: Callable[[Array], Array], x: Array) -> list[Array]:
    operands = Operands()
    units = [0.0, UNIT, -UNIT, UNIT]
    return [
        np.asarray(
            function(
                cancelling({"x": x}, SeededRng(n), unit, operands, shadow=x.dtype == np.float32)[
                    "x"
                ]
            )
        )
        for n, unit in enumerate(units)
    ]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - x,
        lambda x: (x * 0) - 0 * np.exp(x),
        lambda x: np.where(x > np.inf, np.exp(x), 0),
        lambda x: np.floor(x / 3) - np.floor(x / 3),
        lambda x: np.exp(x * 0) - 1,
        lambda x: np.round(4 * x).sum() - np.round(4 * x).sum(),
    ],
)
def test_zeros_by_selection_by_products_and_of_exact_values_stay(function: Any) -> None:
    x = np.linspace(-3, 3, 50).astype(np.float32)
    for result in draws(function, x):
        assert not np.count_nonzero(result)


@for_each(
    "function",
    [
        lambda x: np.exp(x) - np.exp(x),
        lambda x: x / 3 - (x / 3) * 1,
        lambda x: x / 3 - (np.stack([x, 0 * x]) / 3).sum(0),
        lambda x: 1 - np.tanh(30 + x * x),
        lambda x: (1 + np.exp(-60 - x * x)) - 1,
        lambda x: np.stack([np.exp(x), -np.exp(x)]).sum(0),
        lambda x: (x[:, None] @ x[None] - x[None].T @ x[:, None].T).ravel(),
        lambda x: np.add(x / 3, 0, out=np.empty_like(x)) - x / 3,
    ],
)
def test_rounded_terms_that_cancel_leave_about_a_rounding_of_them(function: Any) -> None:
    x = np.linspace(-3, 3, 50).astype(np.float32)
    first, *others = draws(function, x)
    assert not np.count_nonzero(first)
    left = np.max(np.abs(others), axis=0)
    assert np.count_nonzero(left) > 0.8 * left.size
    assert left.max() <= 100 * UNIT


def test_nothing_but_terms_of_a_sum_is_moved_again() -> None:
    def function(x: Array) -> Array:
        rounded = x / 3
        return np.stack([rounded, np.negative(-rounded), np.maximum(rounded, rounded)])

    for first, *others in draws(function, np.linspace(-3, 3, 50).astype(np.float32)):
        assert all((other == first).all() for other in others)


def test_ties_of_rounded_values_stay_ties() -> None:
    x = np.repeat(np.linspace(1, 3, 10).astype(np.float32), 5)
    for result in draws(lambda x: x / 3, x):
        assert (result.reshape(10, 5) == result.reshape(10, 5)[:, :1]).all()


def test_what_cancels_is_off_by_its_own_terms_errors() -> None:
    """A product whose terms nearly cancel is off by far more than by its own rounding."""
    a = np.array([[1000.3, 0.7, -1000.2]], np.float32)
    b = np.array([[1.1], [0.3], [1.1]], np.float32)

    def function(a: Array) -> Array:
        product = a @ b
        return product - product * 1

    *_, last = draws(function, a)
    assert 1e-6 < np.abs(last).max() < 1e-2


def test_two_terms_with_the_same_errors_do_not_move_alike() -> None:
    """Of a sum and a product in one difference, each is moved, and both by errors of one origin."""
    a = np.array([[1000.3, 0.7, -1000.2]], np.float32)
    b = np.array([[1.1], [0.3], [1.1]], np.float32)

    def function(a: Array) -> Array:
        product = a @ b
        return product - (product * 1).sum(1, keepdims=True)

    *_, last = draws(function, a)
    assert 1e-6 < np.abs(last).max() < 1e-2


def gru(z: Array, n: Array, h: Array) -> Array:
    gate = 1 / (1 + np.exp(-z))
    updated: Array = (1 - gate) * np.tanh(n) + gate * h
    return updated


def gru_in_one_product(z: Array, n: Array, h: Array, *, off: float = 0.0) -> Array:
    """The same as PyTorch's cell has it; a gate of 1 leaves a rounding of tanh beside h."""
    gate, t = 1 / (1 + np.exp(-z)), np.tanh(n)
    updated: Array = t + gate * (h - t) + F32(off) * t
    return updated


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("large", [120.0, 1e4])
def test_a_gate_is_rounded_whose_exponential_underflows(large: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    z, n, h = rng.standard_normal((3, 16, 9)).astype(F32)
    z[3:6], h[3:6] = large, 1e-16 * h[3:6]
    inputs = {"z": z, "n": n, "h": h}
    assert judged(gru, gru_in_one_product, inputs, seed=seed).verdict is Verdict.PASSED

    def wrong(*tensors: Array) -> Array:
        return gru_in_one_product(*tensors, off=1e-4)

    assert judged(gru, wrong, inputs, seed=seed).verdict is Verdict.FAILED


def test_masked_places_are_allowed_nothing_although_their_weights_underflow() -> None:
    """A mask of finite numbers makes weights of 0 by an underflow, in place of -Inf."""
    rng = np.random.default_rng(0)
    q, k, v, do = (rng.standard_normal((12, 8)).astype(F32) for _ in range(4))
    below = np.tri(12, dtype=bool)

    def weights_gradient(q: Array, k: Array, v: Array, do: Array, mask: Array) -> Array:
        scores = np.where(mask, q @ k.T, -1e9)
        p = np.exp(scores - scores.max(1, keepdims=True))
        p = p / p.sum(1, keepdims=True)
        dp = do @ v.T
        result: Array = p * (dp - (p * dp).sum(1, keepdims=True))
        return result

    def leaking(*tensors: Array) -> Array:
        result = weights_gradient(*tensors)
        result[~tensors[-1]] += F32(1e-12)
        return result

    inputs = {"q": q, "k": k, "v": v, "do": do, "mask": below}
    assert judged(weights_gradient, weights_gradient, inputs).verdict is Verdict.PASSED
    assert judged(weights_gradient, leaking, inputs).verdict is Verdict.FAILED
