"""Arithmetic that stays in float32: what would widen it, what goes on as numpy has it, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from for_each import for_each
from numpy.typing import NDArray

from gpuemu_flow.model.errors import Problem, RunnerError
from gpuemu_flow.numerics.cancelling import Operands, cancelling
from gpuemu_flow.numerics.envelope import Envelope
from gpuemu_flow.numerics.evaluations import Evaluations
from gpuemu_flow.numerics.noise import flushing, inverting, marking, noisy, stepping
from gpuemu_flow.numerics.perturb import Arrays
from gpuemu_flow.numerics.regroup import moving_constants, overflowing, regrouped
from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.numerics.shadow import shadow_source
from gpuemu_flow.numerics.single import MAKERS, Single, single, staying_single

Array = NDArray[Any]


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


KINDS: dict[str, Callable[[Arrays], Arrays]] = {
    "single": single,
    "noisy": lambda inputs: noisy(inputs, SeededRng(1), 2.0**-23),
    "flushing": flushing,
    "regrouped": regrouped,
    "stepping": lambda inputs: stepping(inputs, 1, 2.0**-23)[0],
    "inverting": lambda inputs: inverting(inputs, 85),
    "overflowing": overflowing,
    "cancelling": lambda inputs: cancelling(
        inputs, SeededRng(1), 2.0**-23, Operands(), shadow=True
    ),
}
WIDENING: dict[str, Callable[[Any], Any]] = {
    "a scalar of a ufunc": lambda x: x / np.sqrt(5),
    "the same on the left": lambda x: np.sqrt(5) - x,
    "an integer scalar": lambda x: x.sum(axis=1) / np.int64(5),
    "integers": lambda x: x * np.arange(5),
    "a new array": lambda x: x + np.ones(5),
    "a column of constants": lambda x: x @ np.array([[0.1], [0.2], [0.3], [0.4], [0.5]]),
    "integers in a product": lambda x: np.dot(x, np.arange(5)),
    "a choice": lambda x: np.where(x > 0, x, np.zeros(5)),
    "a list of arrays": lambda x: np.concatenate([x, np.zeros((1, 5))]),
    "bounds": lambda x: np.clip(x, np.float64(-0.5), np.ones(5)),
    "a sum over all": lambda x: x.sum() / np.sqrt(2),
    "an initial value": lambda x: np.add.reduce(x, initial=np.float64(2)),
    "a ufunc of float64 alone": lambda x: np.float_power(x, 2),
    "a function of float64 alone": lambda x: np.interp(x[0], [0, 1], [2.0, 3.0]),
    "weights": lambda x: np.average(x, axis=1, weights=np.arange(1, 6)),
    "an outer product": lambda x: np.multiply.outer(x[0], np.arange(3)),
    "a type that is asked for": lambda x: np.cumsum(x, axis=1, dtype=np.float64),
    "a tuple of results": lambda x: np.divmod(x, np.float64(0.3))[0],
    "a named tuple of results": lambda x: np.linalg.svd(x * np.sqrt(2)).S,
}


@for_each("compute", WIDENING.values())
def test_wider_numbers_widen_nothing(compute: Callable[[Any], Any]) -> None:
    for kind in KINDS:
        x = normal(4, 5)
        result = compute(KINDS[kind]({"x": x})["x"])
        assert isinstance(result, Single)
        assert result.dtype == np.float32
        np.testing.assert_allclose(np.asarray(result), compute(x), rtol=1e-4, atol=1e-5)


@for_each(
    "compute",
    [
        lambda x: np.exp(x) / x.max(axis=1, keepdims=True),
        lambda x: x.mean(axis=0) - x.var(axis=0),
        lambda x: x @ x.T,
        lambda x: np.sort(x, axis=1)[:, ::-1],
        lambda x: np.take_along_axis(x, np.argsort(x, axis=1), axis=1),
        lambda x: np.argmax(x, axis=1),
        lambda x: x > np.float64(0.5),
        lambda x: np.ldexp(x, np.arange(5)),
        lambda x: np.einsum("ij,kj->ik", x, x),
        lambda x: np.subtract(x, 1, out=np.zeros(x.shape, np.float32), where=x > 0),
    ],
)
def test_all_else_is_as_numpy_has_it(compute: Callable[[Any], Any]) -> None:
    x = normal(4, 5)
    result, plain = compute(single({"x": x})["x"]), compute(x)
    assert np.asarray(result).dtype == np.asarray(plain).dtype
    np.testing.assert_array_equal(np.asarray(result), plain)


@for_each(
    "forms",
    [
        (lambda a, b, c: (a - b) - c, lambda a, b, c: a - (b + c)),
        (lambda a, b, c: (a - b) + c, lambda a, b, c: a - (b - c)),
        (lambda a, b, c: (a + b) + c, lambda a, b, c: a - (-b - c)),
        (lambda a, b, c: a + (b - c), lambda a, b, c: (a + b) - c),
        (lambda a, b, c: a - (b - c), lambda a, b, c: (a + c) - b),
    ],
)
def test_sums_of_three_are_grouped_otherwise(forms: Any) -> None:
    compute, other = forms
    terms = {name: normal(50, seed=n) for n, name in enumerate("abc")}
    result = compute(*regrouped(terms).values())
    np.testing.assert_array_equal(np.asarray(result), other(*terms.values()))
    assert (np.asarray(result) != compute(*terms.values())).any()


def test_what_is_written_to_stays_the_callers_own() -> None:
    x = single({"x": normal(4, 5)})["x"]
    total = np.zeros(5)
    total += x[0]
    np.add.at(total, [0, 0], x[1, :2])
    np.copyto(total[1:], x[2, 1:])
    np.add(x[3], 1, out=total[:], where=np.arange(5) == 4)
    assert type(total) is np.ndarray
    first = np.asarray(x[0, 0]) + np.asarray(x[1, 0], np.float64) + np.asarray(x[1, 1], np.float64)
    assert total[0] == pytest.approx(float(first), rel=1e-6)
    assert total[1:4].tolist() == np.asarray(x[2, 1:4], np.float64).tolist()
    assert total[4] == np.float32(x[3, 4] + np.float32(1))
    before = np.asarray(x).copy()
    x /= np.sqrt(3)
    assert type(x) is Single
    np.testing.assert_array_equal(np.asarray(x), before / np.float32(np.sqrt(3)))
    with pytest.raises(TypeError, match="Cannot cast"):
        np.multiply(x, 0.5, out=np.zeros(x.shape, np.int64))


def test_float16_and_float64_are_left() -> None:
    given = {"h": np.ones(2, np.float16), "d": np.ones(2)}
    assert all(array is given[name] for name, array in single(given).items())


FROM_INTEGERS: dict[str, Callable[[Any], Any]] = {
    "a quotient": lambda i: i / 7,
    "a quotient of two": lambda i: i / (i + 1),
    "a factor": lambda i: 0.1 * i,
    "an array of factors": lambda i: i * np.array([[0.1]]),
    "a function": np.sin,
    "a power": lambda i: 1.1**i,
    "float64 by name": lambda i: i.astype("float64") / 7,
    "float": lambda i: i.astype(float) / 7,
    "a sum in float64": lambda i: i.sum(axis=1, dtype=np.float64) / 7,
    "a mean": lambda i: i.mean(axis=1),
    "a variance": lambda i: i.var(axis=1),
    "truth values": lambda i: (i > 2) * 0.1,
    "a mean of truth values": lambda i: (i > 2).mean(axis=1),
    "a view": lambda i: i[:, None, :].T[::-1] / 7,
    "integers of integers": lambda i: (2 * i + 1) / 7,
    "an order": lambda i: np.argsort(i, axis=1) / 7,
    "an outer product": lambda i: np.outer(i, np.linspace(0, 1, 5)),
    "a product of matrices": lambda i: i @ np.linspace(0, 1, 5),
    "einsum": lambda i: np.einsum("ij,j->i", i, np.linspace(0, 1, 5)),
    "a choice": lambda i: np.where(i > 2, i * 0.3, 0.0),
    "a column": lambda i: np.concatenate([i / 3, i], axis=1),
}


@for_each("dtype", ["int32", "int64", "uint8"])
@for_each("compute", FROM_INTEGERS.values())
def test_floats_of_integers_are_float32(
    compute: Callable[[Any], Any],
    dtype: str,
) -> None:
    for kind in KINDS:
        i = np.random.default_rng(1).integers(1, 100, (4, 5)).astype(dtype)
        if compute is FROM_INTEGERS["a function"] and dtype == "uint8":
            i = i.astype(np.uint16)  # numpy computes functions of bytes in float16
        result = compute(KINDS[kind]({"i": i})["i"])
        assert isinstance(result, Single)
        assert result.dtype == np.float32
        plain = compute(i)
        np.testing.assert_allclose(np.asarray(result), plain, rtol=1e-5, atol=1e-5)
        again = np.asarray(compute(noisy({"i": i}, SeededRng(2), 2.0**-12)["i"]))
        rounded = plain != plain.astype(np.float32)
        assert (again != plain.astype(np.float32))[rounded].any() or not rounded.any()


@for_each(
    "compute",
    [
        lambda i: i // 3 + i % 3,
        lambda i: i @ i.T,
        lambda i: np.dot(i, i.T),
        lambda i: i.sum(axis=1),
        lambda i: i > 2,
        lambda i: i > 2.5,
        lambda i: np.maximum(i, 3),
        lambda i: np.bincount(i.ravel(), minlength=9),
        lambda i: np.arange(300)[i],
        lambda i: i.astype(np.int64) << 2,
        np.unique,
        lambda i: np.searchsorted(np.arange(50), i),
        lambda i: 0.5 * i,
        lambda i: (i * 1.0 - 3) / 4,
        lambda i: np.floor(i / 2).astype(np.int32),
    ],
)
def test_exact_results_of_integers_stay_exact(compute: Callable[[Any], Any]) -> None:
    i = np.random.default_rng(1).integers(1, 100, (4, 5)).astype(np.int32)
    kinds = {
        **KINDS,
        "noisy": lambda inputs: noisy(inputs, SeededRng(1), 2.0**-12),
        "marking": lambda inputs: marking(inputs, 85),
        "moving constants": lambda inputs: moving_constants(inputs, SeededRng(1), 2.0**-12),
    }
    for make in kinds.values():
        result, plain = compute(make({"i": i})["i"]), compute(i)
        assert np.asarray(result).dtype.kind == plain.dtype.kind
        np.testing.assert_array_equal(np.asarray(result), plain)


@for_each("name", MAKERS)
def test_makers_make_what_numpy_makes_in_float32(name: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {
        "full": (3, 0.1),
        "linspace": (0.0, 1.0, 4),
        "arange": (0.0, 1.0, 0.3),
    }
    from_values = name.startswith("a") and name != "arange"
    given = arguments.get(name, ([0.1, 0.2],) if from_values else (3,))
    plain, own = getattr(np, name)(*given), MAKERS[name](*given)
    assert type(own) is np.ndarray
    assert own.dtype == np.float32
    assert own.shape == plain.shape
    with staying_single():
        assert type(MAKERS[name](*given)) is Single
    if name not in ("empty",):
        np.testing.assert_array_equal(own, plain.astype(np.float32))


def test_makers_keep_a_kind_and_integers() -> None:
    x = noisy({"x": normal(3)}, SeededRng(1), 2.0**-23)["x"]
    with staying_single():
        assert type(MAKERS["asarray"](x)) is type(x)
        assert np.shares_memory(MAKERS["asarray"](x), x)
        assert type(MAKERS["array"]([1, 2])) is np.ndarray
        assert MAKERS["arange"](3).dtype == np.int64


ATTENTION = """
import numpy as np

def attention(q, k, v):
    scores = np.asarray(q, np.float64) @ k.astype(np.float64).T / np.sqrt(q.shape[1])
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    total = np.zeros((e.shape[0], v.shape[1]))
    total += np.einsum("ij,jk->ik", e, v.astype(np.float64))
    return total / e.sum(axis=1, keepdims=True)
"""


class Attention:
    """A reference that divides by a float64 scalar and adds in new float64 memory."""

    has_source = True

    def __init__(self) -> None:
        self.functions: dict[bool, Callable[..., Any]] = {}
        for shadow in (False, True):
            names: dict[str, Any] = {}
            exec((shadow_source(ATTENTION) or "") if shadow else ATTENTION, names)
            self.functions[shadow] = names["attention"]

    def __call__(self, inputs: Arrays, *, shadow: bool = False) -> dict[str, Array]:
        copies = {name: array.copy(order="K") for name, array in inputs.items()}
        return {"out": self.functions[shadow](**copies)}


def test_a_weight_that_vanishes_in_float32_is_seen_to_by_the_shadow_itself() -> None:
    """A weight of 1e-52 meets a value of 1e18: what came of it was a false alarm."""
    q = np.array([[120.0, 0.0, 0.0, 0.0]], np.float32)
    k = np.array([[0.0] * 4, [-2.0, 0.0, 0.0, 0.0]], np.float32)
    v = np.array([[1e-18] * 4, [1e38, 1.0, -1e38, 1e30]], np.float32)
    inputs = {"q": q, "k": k, "v": v}
    reference = Attention()
    expected = reference({name: array.astype(np.float64) for name, array in inputs.items()})
    found = Evaluations(reference, inputs).outputs(inputs, shadow=True)
    assert found is not None
    assert type(found["out"]) is np.ndarray
    assert (found["out"] == np.float32(1e-18)).all()
    assert expected["out"][0, 0] > 1e-15


def test_a_right_op_is_allowed_what_follows_a_float64_scalar_in_float32() -> None:
    def reference(inputs: Arrays, *, shadow: bool = False) -> Arrays:
        return {"y": (inputs["x"] / np.sqrt(inputs["x"].shape[1]) + 1000) - 1000}

    x = normal(6, 8)
    expected = reference({"x": x.astype(np.float64)})
    wide = expected["y"].ravel()
    right = ((x / np.float32(np.sqrt(8)) + 1000) - 1000).ravel()
    envelope = Envelope(
        {"x": x}, expected, reference, dtype="float32", seed=1, exact_op=False, weak=False
    )
    assert envelope.full("y").no_verdict(slice(0, wide.size)) is None
    allowed = envelope.full("y").tolerance(wide, slice(0, wide.size))
    assert (np.abs(right - wide) <= allowed).all()
    assert (np.abs(right - wide) > envelope.quick("y").tolerance(wide, slice(0, wide.size))).any()


def test_a_reference_that_takes_plain_arrays_alone_is_given_them() -> None:
    tried = []

    def reference(inputs: Arrays, *, shadow: bool = False) -> Arrays:
        tried.append(type(inputs["x"]))
        if type(inputs["x"]) is not np.ndarray:
            raise RunnerError(Problem("reference-failed", "not an array"))
        return {"y": inputs["x"] / 3}

    evaluations = Evaluations(reference, {"x": normal(3)})
    for _ in range(2):
        assert evaluations.outputs({"x": normal(3)}, shadow=True) is not None
    assert tried == [Single, np.ndarray, np.ndarray]
    assert evaluations.outputs(flushing({"x": normal(3)}), shadow=True) is None
