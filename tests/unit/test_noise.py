"""Arithmetic with moved roundings: what moves, what stays, and what the tolerance learns of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from for_each import for_each
from numpy.typing import NDArray

from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS
from gpuemu_flow.numerics.envelope import Envelope, shadow_is_faithful
from gpuemu_flow.numerics.evaluations import on_each
from gpuemu_flow.numerics.noise import Noisy64, flushing, noisy, wrapped64
from gpuemu_flow.numerics.perturb import Arrays, Perturbation
from gpuemu_flow.numerics.rng import SeededRng

UNIT = 2.0**-23
Array = NDArray[Any]


def moved(values: Array, seed: int = 1) -> Array:
    return noisy({"x": values}, SeededRng(seed), UNIT)["x"]


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@for_each(
    "compute",
    [
        lambda x: x / 3,
        np.exp,
        lambda x: x.sum(axis=1),
        lambda x: np.cumsum(x, axis=1),
        lambda x: x.mean(axis=0),
        lambda x: x.var(axis=1),
        lambda x: x @ x.T,
        lambda x: np.einsum("ij,kj->ik", x, x),
        lambda x: np.where(x > 0, x, 0) * 0.1,
        lambda x: np.concatenate([x, x]) / 7,
        lambda x: np.add(x, 0.1, out=np.empty_like(x)),
        lambda x: np.sum(x * 0.1, dtype=np.float32),
    ],
)
def test_inexact_results_move_by_roundings_only(compute: Any) -> None:
    x = normal(20, 30)
    plain = np.asarray(compute(x))
    first, second = (np.asarray(compute(moved(x, seed))) for seed in (1, 2))
    assert first.dtype == plain.dtype
    assert first.shape == plain.shape
    assert (first != plain).any()
    assert (first != second).any()
    assert np.abs(first - plain).max() <= 100 * UNIT * max(1.0, float(np.abs(plain).max()))


@for_each(
    "compute",
    [
        lambda x: x * 2,
        lambda x: -np.abs(x),
        lambda x: np.maximum(x, 1) - x.max(),
        lambda x: np.round(4 * x).sum(axis=1),
        lambda x: np.sort(x, axis=1)[:, ::-1],
        lambda x: x > 0,
        lambda x: np.argmax(x, axis=1),
    ],
)
def test_exact_results_stay(compute: Any) -> None:
    x = np.round(normal(20, 30) * 16) / 16
    np.testing.assert_array_equal(np.asarray(compute(moved(x))), compute(x))


def test_in_place_arithmetic_moves_what_is_written() -> None:
    x = normal(50)
    y = moved(x.copy())
    y /= 3
    assert (np.asarray(y) != x / 3).any()
    np.testing.assert_allclose(np.asarray(y), x / 3, rtol=4 * UNIT)
    z = moved(x.copy())
    np.add.at(z, [0, 0], 1.0)
    assert float(z[0]) == pytest.approx(float(x[0]) + 2.0)


def test_special_values_and_integers_are_left() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32)
    np.testing.assert_array_equal(np.asarray(moved(x) * 3.3), x * 3.3)
    given = {"h": np.ones(2, np.float16)}
    assert noisy(given, SeededRng(0), UNIT) == given
    integers = noisy({"i": np.arange(3)}, SeededRng(0), UNIT)["i"]
    assert integers.dtype == np.arange(3).dtype
    assert (2 * integers + integers // 2).tolist() == [0, 2, 5]
    assert (integers * 0.5).tolist() == [0.0, 0.5, 1.0]


class Numpy:
    """A numpy function as a reference whose shadow is itself."""

    has_source = True

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, inputs: Arrays, *, shadow: bool = False) -> dict[str, Array]:
        copies = {name: array.copy(order="K") for name, array in inputs.items()}
        return {"y": np.asarray(self._function(**copies))}


def samples() -> list[Arrays]:
    return [{"x": normal(9, 7, seed=seed)} for seed in range(2)]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x / 127,
        lambda x: np.sqrt(np.abs(x)),
        lambda x: (x / 127)[0, 0],
    ],
)
def test_a_reference_that_rounds_once_is_seen_to_compute_in_float32(function: Any) -> None:
    assert shadow_is_faithful(on_each(Numpy(function), samples()))


def test_a_reference_that_leaves_float32_unseen_has_no_shadow() -> None:
    def function(x: Array) -> Array:
        wide = np.array([float(v) / 127 * 3 for v in x.ravel()])
        return wide.reshape(x.shape).astype(x.dtype)

    assert not shadow_is_faithful(on_each(Numpy(function), samples()))


def layernorm_backward(dy: Array, x: Array) -> Array:
    """Of two elements a row: all terms cancel, whatever is fed."""
    mean = x.mean(1, keepdims=True)
    rstd = 1 / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    xhat = (x - mean) * rstd
    inner = (dy * xhat).mean(1, keepdims=True)
    result: Array = rstd * (dy - dy.mean(1, keepdims=True) - xhat * inner)
    return result


def in_another_order(dy: Array, x: Array) -> Array:
    mean = x.sum(1, keepdims=True) / np.float32(x.shape[1])
    centred = x - mean
    rstd = 1 / np.sqrt((centred * centred).sum(1, keepdims=True) / np.float32(2) + np.float32(1e-5))
    xhat = centred * rstd
    c1 = (xhat * dy).sum(1, keepdims=True) / np.float32(2)
    c2 = dy.sum(1, keepdims=True) / np.float32(2)
    result: Array = (dy - (xhat * c1 + c2)) * rstd
    return result


def test_a_second_look_knows_what_cancelled_on_the_way() -> None:
    rng = np.random.default_rng(3)
    scale = 10.0 ** rng.integers(-9, 9, (300, 1))
    inputs = {
        "dy": (rng.standard_normal((300, 2)) * 10.0 ** rng.integers(-9, 9, (300, 2))),
        "x": rng.standard_normal((300, 2)) * scale,
    }
    inputs = {name: array.astype(np.float32) for name, array in inputs.items()}
    reference = Numpy(layernorm_backward)
    wide = {name: array.astype(np.float64) for name, array in inputs.items()}
    expected = reference(wide)
    envelope = Envelope(
        inputs, expected, reference, dtype="float32", seed=5, exact_op=False, weak=False
    )
    error = np.abs(in_another_order(**inputs) - expected["y"]).ravel()
    everywhere = slice(0, error.size)
    quick, thorough = (
        bound.tolerance(expected["y"].ravel(), everywhere)
        for bound in (envelope.quick("y"), envelope.thorough("y"))
    )
    unjudged = envelope.thorough("y").no_verdict(everywhere)
    judged = np.ones(error.size, bool) if unjudged is None else ~unjudged
    assert (error > quick)[judged].any()
    assert not (error > thorough)[judged].any()
    assert FLOAT_LIMITS["float32"].eps == UNIT


def test_flushing_arithmetic_knows_no_subnormals() -> None:
    tiny, large = np.float32(2.0**-130), np.float32(2.0**100)
    x = np.array([2.0**-70, 1.0, -1.0], np.float32)
    copies = flushing({"x": x})["x"]
    assert np.asarray(copies * copies * large).tolist() == [0.0, float(large), float(large)]
    assert np.asarray(copies * tiny).tolist() == [0.0, 0.0, 0.0]
    assert np.asarray((copies * tiny) @ np.ones(3, np.float32)) == 0.0
    assert np.asarray(copies / 3).tolist() == (x / np.float32(3)).tolist()


def test_an_op_that_flushes_subnormal_intermediates_is_right() -> None:
    """Scaled down into the subnormals and up again: 0 on hardware that has none."""

    def reference(inputs: Arrays, *, shadow: bool = False) -> Arrays:
        x = inputs["x"]
        return {"y": x * x.dtype.type(2.0**-60) * x.dtype.type(2.0**50)}

    x = np.array([2.0**-80, 1.1], np.float32)
    expected = reference({"x": x.astype(np.float64)})
    envelope = Envelope(
        {"x": x}, expected, reference, dtype="float32", seed=1, exact_op=False, weak=False
    )
    allowed = envelope.full("y").tolerance(expected["y"], slice(0, 2))
    assert allowed[0] >= expected["y"][0] > 2.0**-100, "0 is allowed where 2**-90 is expected"
    assert allowed[1] < 2.0**-17 * expected["y"][1]


def test_an_op_that_rounds_a_subnormal_input_is_right() -> None:
    """2**-149 times 1.5 is 2**-148 in float32; all flushed to 0, what remains cancels."""

    def reference(inputs: Arrays, *, shadow: bool = False) -> Arrays:
        return {"y": 1.5 * (inputs["a"] @ inputs["b"])}

    a = np.array([[2.0**-127, 2.0**-149, 2.0**-30]], np.float32)
    b = np.array([[-(2.0**40), 0], [2.0**62 * (1 - 2.0**-5), 0], [0, 1]], np.float32)
    expected = reference({"a": a.astype(np.float64), "b": b.astype(np.float64)})["y"]
    right = (a * np.float32(1.5)) @ b
    assert right[0, 0] > 0.0 > expected[0, 0]
    envelope = Envelope(
        {"a": a, "b": b}, {"y": expected}, reference,
        dtype="float32", seed=1, exact_op=False, weak=False,
    )  # fmt: skip
    for bound in (envelope.full("y"), envelope.thorough("y")):
        allowed = bound.tolerance(expected.ravel(), slice(0, 2))
        assert (np.abs(right - expected).ravel() <= allowed).all()
        assert allowed[1] < 2.0**-46, "what no subnormal has a part in is judged as ever"


def test_a_right_op_may_scale_subnormals_that_cancel_afterwards() -> None:
    """Of two subnormals on one side of every bound, scaling in float32 leaves a rounding each."""

    def reference(inputs: Arrays, *, shadow: bool = False) -> Arrays:
        return {"y": 0.6 * (inputs["a"] @ inputs["b"])}

    a = np.array([[3 * 2.0**-149, 7 * 2.0**-149]], np.float32)
    b = np.array([[7 * 2.0**60], [-3 * 2.0**60 * (1 - 2.0**-4)]], np.float32)
    expected = reference({"a": a.astype(np.float64), "b": b.astype(np.float64)})["y"]
    right = (a * np.float32(0.6)) @ b
    assert right[0, 0] > 2.0 * expected[0, 0] > 0.0
    envelope = Envelope(
        {"a": a, "b": b}, {"y": expected}, reference,
        dtype="float32", seed=1, exact_op=False, weak=False,
    )  # fmt: skip
    bound = envelope.full("y")
    unjudged = bound.no_verdict(slice(0, 1))
    allowed = bound.tolerance(expected.ravel(), slice(0, 1))
    assert (unjudged is not None and unjudged[0]) or np.abs(right - expected).ravel() <= allowed


def test_a_coin_decides_which_subnormals_are_flushed_together() -> None:
    x = np.array([2.0**-149, 2.0**-130, 2.0**-130, 2.0**-127, 1.0, 0.0, -(2.0**-130)])
    moved = Perturbation({"x": x, "i": np.arange(3)}, 1, UNIT)
    seen = set()
    for draw in range(40):
        flushed = moved.flushed_some(draw)
        if flushed is None:
            continue
        kept = flushed["x"] == x
        np.testing.assert_array_equal(flushed["x"], np.where(kept, x, 0.0))
        assert kept[4]
        assert kept[1] == kept[2] == kept[6]
        seen.add((bool(kept[0]), bool(kept[1]), bool(kept[3])))
    assert len(seen) == 7, "each of the three or not, and never none of them"
    assert Perturbation({"x": np.ones(3)}, 1, UNIT).flushed_some(0) is None
    few = moved.flushed(2.0**-140)
    assert few is not None
    assert (few["x"] == x).tolist() == [False, *[True] * 6]


def test_a_scalar_of_float64_does_not_widen_what_follows() -> None:
    """``x / np.sqrt(n)``: numpy's own promotion would hide that a weight underflows in float32."""
    x = np.array([-120.0, 0.0], np.float32)
    copies = flushing({"x": x})["x"]
    weights = np.exp(copies / np.sqrt(1))
    assert weights.dtype == np.float32
    assert np.asarray(weights).tolist() == [0.0, 1.0]
    assert np.asarray(np.exp(moved(x) / np.sqrt(1))).dtype == np.float32


LONG_DOUBLES = np.finfo(np.longdouble).eps < np.finfo(np.float64).eps


def noisy64(x: Array, seed: int) -> Array:
    return wrapped64({"x": x}, Noisy64, rng=SeededRng(seed), unit=2.0**-52)["x"]


@pytest.mark.skipif(not LONG_DOUBLES, reason="long doubles are no wider than float64 here")
@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x / 3,
        np.log1p,
        lambda x: x.sum(axis=1),
        lambda x: x @ x.T,
        lambda x: np.einsum("ij,kj->ik", x, x),
        lambda x: np.divide(x, 3, out=x),
    ],
)
def test_roundings_of_float64_move_too(compute: Any) -> None:
    x = np.random.default_rng(4).random((20, 30))
    plain = compute(x.copy())
    first, second = (np.asarray(compute(noisy64(x.copy(), seed))) for seed in (1, 2))
    assert first.dtype == plain.dtype and first.shape == plain.shape
    assert (first != plain).any() and (first != second).any()
    assert np.abs(first - plain).max() <= 100 * 2.0**-52 * np.abs(plain).max()
    for dtype in (np.float64, np.int32):
        exact = noisy64(np.arange(12, dtype=dtype), 1)
        assert np.asarray(exact * 2 - exact.max()).tolist() == (np.arange(12.0) * 2 - 11).tolist()
        assert (np.asarray((exact - 3) * 0.1) != (np.arange(12) - 3) * 0.1).any()


@pytest.mark.skipif(not LONG_DOUBLES, reason="long doubles are no wider than float64 here")
@pytest.mark.parametrize("size", [1.0, 1e150])
def test_a_float64_op_may_be_more_accurate_than_its_reference(size: float) -> None:
    """Divergence of two distributions by one logarithm, where the reference takes two."""

    def reference(p: Array, q: Array) -> Array:
        return (p * (np.log(p) - np.log(q))).sum(-1)

    rng = np.random.default_rng(1)
    inputs = {"p": size * (1 + rng.random((400, 3))), "q": size * (1 + rng.random((400, 3)))}
    evaluate = Numpy(reference)
    expected = evaluate(inputs)
    envelope = Envelope(
        inputs, expected, evaluate, dtype="float64", seed=5, exact_op=False, weak=False
    )
    everywhere = slice(0, 400)
    allowed = envelope.thorough("y").tolerance(expected["y"], everywhere)
    p, q = inputs.values()
    right = (p * np.log(p / q)).sum(-1)
    wrong = right * (1 + 1e-9)
    if size > 1.0:
        assert (
            np.abs(right - expected["y"]) > envelope.quick("y").tolerance(right, everywhere)
        ).any()
    assert (np.abs(right - expected["y"]) <= allowed).all()
    assert (np.abs(wrong - expected["y"]) > allowed).mean() > 0.9
