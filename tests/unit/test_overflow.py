"""Sums whose terms overflow in some order have no verdict; others keep theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from envelope_ops import F32, Function, check
from for_each import for_each
from numpy.typing import NDArray

from gpuemu_flow.model.types import Verdict
from gpuemu_flow.numerics.regroup import overflowing

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

Array = NDArray[Any]
LARGE = F32(3e38)
NAN, INF = float("nan"), float("inf")


def wrapped(*values: float) -> Array:
    return overflowing({"x": np.array(values, np.float32)})["x"]


def of(value: Any) -> float:
    return float(np.asarray(value))


SUMS: dict[str, Any] = {
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean() * x.size,
    "add.reduce": np.add.reduce,
    "cumsum": lambda x: np.cumsum(x)[-1],
    "matmul": lambda x: (x[None] @ np.ones((x.size, 1), np.float32))[0, 0],
    "dot": lambda x: np.dot(x, np.ones(x.size, np.float32)),
    "einsum": lambda x: np.einsum("i,i->", x, np.ones(x.size, np.float32)),
    "tensordot": lambda x: np.tensordot(x, np.ones(x.size, np.float32), 1),
}
TERMS = {
    "both signs": ((LARGE, -LARGE, LARGE, -LARGE), NAN),
    "one sign": ((LARGE, 1.0, LARGE, 1.0), INF),
    "the other": ((-LARGE, 1.0, -LARGE, 1.0), -INF),
    "within the factor of their number": ((1e38, 1.0, -1.0, 2.0), INF),
    "far from it": ((1e37, -1e37, 1e37, 1.0), 1e37),
    "beside an infinity": ((INF, -LARGE, -LARGE, -LARGE), NAN),
    "an infinity alone": ((INF, -1e30, 1.0, 1.0), INF),
    "NaN": ((NAN, 1.0, 1.0, 1.0), NAN),
}


@for_each("name", SUMS)
def test_a_sum_overflows_where_some_order_of_its_terms_does(name: str) -> None:
    for terms in sorted(TERMS):
        values, expected = TERMS[terms]
        np.testing.assert_allclose(of(SUMS[name](wrapped(*values))), expected, rtol=1e-6)


def test_products_of_terms_count_and_integers_and_shapes_stay() -> None:
    a = np.array([[1.995e19, 1.95e19], [1.0, 2.0]], np.float32)
    b = np.array([[-2e19, 1.0], [2e19, 1.0]], np.float32)
    x = overflowing({"a": a, "i": np.arange(3)})
    product = x["a"] @ b
    assert np.isnan(np.asarray(product)[0, 0])
    np.testing.assert_array_equal(np.asarray(product)[1], (a @ b)[1])
    assert x["i"].sum() == 3
    assert np.asarray(x["a"].sum(axis=1, keepdims=True)).shape == (2, 1)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    weights: Array = e / e.sum(-1, keepdims=True)
    return weights


def attention(q: Array, k: Array, v: Array) -> Array:
    """Add the products of a score from left to right, on every machine."""
    scores = np.cumsum(q[:, None] * k, -1)[..., -1]
    result: Array = softmax(scores) @ v
    return result


def in_another_order(q: Array, k: Array, v: Array) -> Array:
    """Add the products of even places, then those of odd ones."""
    products = q[:, None] * k
    return softmax(products[..., ::2].sum(-1) + products[..., 1::2].sum(-1)) @ v


def unnormalised(q: Array, k: Array, v: Array) -> Array:
    """Divide by the sum of the weights in the end, as an online softmax does."""
    scores = np.cumsum(q[:, None] * k, -1)[..., -1]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    result: Array = (weights @ v) / weights.sum(-1, keepdims=True)
    return result


def judge(op: Any, q: Array, k: Array, v: Array) -> Any:
    return check(Function(attention), op, {"q": q, "k": k, "v": v}, "float32")[0]


def attended(sign: int) -> tuple[Array, Array, Array]:
    """Return inputs with five keys whose scores are near -3e38, and whose weights are 0.

    With a `sign` of -1 their products are of both signs, and sums of either sign overflow. Among
    magnitudes it is these keys that have all the weight, now one of them and now another one.
    """
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal(shape).astype(F32) for shape in ((4, 5), (16, 5), (16, 8)))
    q[:] = 0.9
    k[4:] = F32(-3.3e38) * np.array([1, sign, 1, sign, 1], F32)
    k[4] *= F32(1.01)
    v[4] = F32(1e38)
    v[5:] = 1.0
    return q, k, v


def test_a_right_attention_may_overflow_on_the_way_to_a_score() -> None:
    inputs = attended(-1)
    assert np.isfinite(attention(*inputs)).all()
    assert np.isnan(in_another_order(*inputs)).all()
    result = judge(in_another_order, *inputs)
    assert result.verdict is not Verdict.FAILED, result.failures
    assert result.stats.num_no_verdict == 32


def test_a_right_attention_may_divide_by_the_weights_in_the_end() -> None:
    q, k, v = attended(1)
    k[:4], v[:4, 0] = 0.0, F32(1.2e38)
    assert np.isfinite(attention(q, k, v)).all()
    assert np.isposinf(unnormalised(q, k, v)[:, 0]).all()
    result = judge(unnormalised, q, k, v)
    assert result.verdict is not Verdict.FAILED, result.failures
    assert result.stats.num_no_verdict == 4, "and the other columns keep their verdict"


def test_a_wrong_result_beside_an_overflow_fails() -> None:
    q, k, v = attended(-1)
    q, k = q * F32(1e5), k * F32(1e-5)
    q[2], v[4] = 0.0, 1.0  # this row overflows nowhere

    def wrong(*inputs: Array) -> Array:
        result = attention(*inputs)
        result[2] = np.nan
        return result

    assert judge(wrong, q, k, v).verdict is Verdict.FAILED
