"""Masks that are off by one, and edges of tiles: each is named by what it does to the outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gpuemu_flow.numerics.relations import ObservedCase, Relation
from gpuemu_flow.numerics.relations_masks import KINDS, mask_holds, mask_relations

Array = NDArray[Any]
M, N = 6, 40
IN_ROWS = {"x": ("M", "N"), "output": ("M", "N")}
OF_ROWS = {"x": ("M", "N"), "output": ("M",)}


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def mean(x: Array) -> Array:
    return np.asarray(x.mean(-1))


def largest(x: Array) -> Array:
    return np.asarray(x.max(-1))


def causal(q: Array, k: Array) -> Array:
    scores = np.where(np.tri(len(q), dtype=bool), q @ k.T, -np.inf)
    return np.asarray(softmax(scores) @ k)


def seen(
    actual: Array,
    reference: Callable[..., Array],
    axes: Mapping[str, tuple[str, ...]],
    *,
    passed: bool = False,
    **inputs: Array,
) -> ObservedCase:
    sizes = {
        dim: size for n, a in inputs.items() for dim, size in zip(axes[n], a.shape, strict=True)
    }
    rounded = {"output": actual.astype(np.float32).astype(np.float64)}
    expected = {"output": reference(*inputs.values())}
    return ObservedCase(sizes, axes, {"output": "float32"}, inputs, rounded, expected, passed)


def asking(reference: Callable[..., Array]) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    return lambda inputs: {"output": reference(*inputs.values())}


def put(array: Array, where: Any, value: float = 0.0) -> Array:
    changed = array.copy()
    changed[where] = value
    return changed


def short_softmax(x: Array) -> Array:
    return np.pad(softmax(x[:, :-1]), ((0, 0), (0, 1)))


def one_more(x: Array) -> Array:
    flat = np.append(x.reshape(-1), 7.0)
    return np.asarray([flat[i * N : (i + 1) * N + 1].max() for i in range(len(x))])


EDGE = np.arange(N) % 8 == 7
BUGS: list[tuple[str, str, Any, Any, Callable[[Array], Array]]] = [
    ("unwritten", "last, axis 1, 0", softmax, IN_ROWS, lambda x: put(softmax(x), np.s_[:, -1])),
    ("unwritten", "first, axis 1, 0", softmax, IN_ROWS, lambda x: put(softmax(x), np.s_[:, 0])),
    ("unwritten", "last, axis 0, 0", softmax, IN_ROWS, lambda x: put(softmax(x), -1)),
    (
        "unwritten", "last, axis 0, NaN", mean, OF_ROWS,
        lambda x: put(mean(x), -1, np.nan),
    ),
    ("unwritten", "last, in memory, 0", softmax, IN_ROWS, lambda x: put(softmax(x), (-1, -1))),
    ("place", "last, axis 0", mean, OF_ROWS, lambda x: put(mean(x), -1, 9.0)),
    (
        "unwritten-tiles", "tail, 16, axis 1", softmax, IN_ROWS,
        lambda x: put(softmax(x), np.s_[:, 32:]),
    ),
    (
        "unwritten-tiles", "edge, 8, axis 1", softmax, IN_ROWS,
        lambda x: put(softmax(x), np.s_[:, 7::8]),
    ),
    ("short", "last", softmax, IN_ROWS, short_softmax),
    ("short", "first", largest, OF_ROWS, lambda x: largest(x[:, 1:])),
    ("masked", "last", mean, OF_ROWS, lambda x: np.asarray(x[:, :-1].sum(-1) / N)),
    ("masked", "last", softmax, IN_ROWS, lambda x: softmax(put(x, np.s_[:, -1]))),
    ("masked-tiles", "whole tiles of 16", mean, OF_ROWS, lambda x: x[:, :32].sum(-1) / N),
    ("masked-tiles", "first 16", mean, OF_ROWS, lambda x: x[:, :16].sum(-1) / N),
    ("overread", "1", largest, OF_ROWS, one_more),
    (
        "overread", "1, not divided by", mean, OF_ROWS,
        lambda x: mean(x) + np.append(x[1:, 0], 3.0) / N,
    ),
    ("tile-edge", "8, left out", mean, OF_ROWS, lambda x: mean(x[:, ~EDGE])),
    ("tile-edge", "8, twice", mean, OF_ROWS, lambda x: mean(np.repeat(x, 1 + EDGE, 1))),
]  # fmt: skip


def inputs_that_show(kind: str) -> Array:
    x = np.random.default_rng(1).normal(size=(M, N))
    if kind == "overread":
        x[:, 0] = 10.0 + np.arange(M)  # what is counted too much is the largest
        x[0, 0] = 20.0
    if kind == "short":
        x[:, 0] += 5.0
    return x


@pytest.mark.parametrize(
    ("kind", "formula", "reference", "axes", "bug"), BUGS, ids=[f"{b[0]} {b[1]}" for b in BUGS]
)
def test_a_mask_that_is_off_by_one_is_named(
    kind: str, formula: str, reference: Any, axes: Any, bug: Callable[[Array], Array]
) -> None:
    x, ask = inputs_that_show(kind), asking(reference)
    found = mask_relations(seen(bug(x), reference, axes, x=x), ask)
    relation = next((r for r in found if (r.kind, r.formula) == (kind, formula)), None)
    assert relation is not None, found
    # A case that passes contradicts it, and so does another bug.
    assert mask_holds(relation, seen(reference(x), reference, axes, passed=True, x=x), ask) is False
    assert mask_holds(relation, seen(1.5 * reference(x), reference, axes, x=x), ask) is not True


@pytest.mark.parametrize(("below", "formula"), [(1, "next, S"), (-1, "previous, S")])
def test_a_causal_mask_that_is_off_by_one_is_named(below: int, formula: str) -> None:
    q, k = np.random.default_rng(2).normal(size=(2, 20, 8))
    allowed = np.tri(20, k=below, dtype=bool)
    actual = np.zeros_like(q)
    rows = slice(1, None) if below < 0 else slice(None)
    actual[rows] = softmax(np.where(allowed, q @ k.T, -np.inf)[rows]) @ k
    axes = {"q": ("S", "D"), "k": ("S", "D"), "output": ("S", "D")}
    found = mask_relations(seen(actual, causal, axes, q=q, k=k), asking(causal))
    assert {(r.kind, r.subject, r.formula) for r in found} == {("mask-shift", "q", formula)}


@pytest.mark.parametrize("factor", [1.001, 0.9, 2.0])
def test_a_scale_is_no_mask(factor: float) -> None:
    x = np.random.default_rng(3).normal(size=(M, N))
    for reference, axes in ((softmax, IN_ROWS), (mean, OF_ROWS)):
        case = seen(factor * reference(x), reference, axes, x=x)
        assert mask_relations(case, asking(reference)) == set()


def test_what_is_right_has_no_mask_and_a_refusing_reference_is_no_witness() -> None:
    x = np.random.default_rng(4).normal(size=(M, N))
    assert mask_relations(seen(softmax(x), softmax, IN_ROWS, x=x), asking(softmax)) == set()
    case = seen(short_softmax(x), softmax, IN_ROWS, x=x)
    assert {r.kind for r in mask_relations(case, lambda _: None)} == set()


def test_a_case_too_small_to_tell_says_nothing() -> None:
    """With one column only, an op that leaves out the last has nothing left to be judged."""
    relation = Relation("short", "N", "last", "")
    one = np.ones((M, 1))
    ask = asking(softmax)
    assert mask_holds(relation, seen(np.zeros((M, 1)), softmax, IN_ROWS, x=one), ask) is None


def test_every_kind_has_a_test() -> None:
    assert {bug[0] for bug in BUGS} | {"mask-shift"} == set(KINDS)
