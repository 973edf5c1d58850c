"""Relations between wrong and right outputs: each is named, and nothing that merely looks alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gpuemu_flow.numerics.relations import ObservedCase, agrees, output_relations
from gpuemu_flow.numerics.relations_inputs import input_relations

Array = NDArray[Any]
M, N = 6, 40


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def layernorm(x: Array, w: Array, b: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w + b)


def seen(actual: Array, expected: Array, **inputs: Array) -> ObservedCase:
    axes = {name: ("M", "N") if array.ndim == 2 else ("N",) for name, array in inputs.items()}
    axes["output"] = ("M", "N") if expected.ndim == 2 else ("M",)
    return ObservedCase(
        {"M": M, "N": N},
        axes,
        {"output": "float32"},
        inputs,
        {"output": actual.astype(np.float32).astype(np.float64)},
        {"output": expected},
    )


@pytest.fixture
def x() -> Array:
    return np.random.default_rng(1).normal(size=(M, N))


OUTPUTS: list[tuple[str, str, Callable[[Array, Array], Array]]] = [
    ("factor", "1/√N", lambda e, x: e / np.sqrt(N)),
    ("factor", "1.001", lambda e, x: 1.001 * e),
    ("factor", "N/(N-1)", lambda e, x: e * N / (N - 1)),
    ("factor", "log2 e", lambda e, x: e / np.log(2)),
    ("offset", "0.5", lambda e, x: e + 0.5),
    ("power", "√expected, a root too many or a square missing", lambda e, x: np.sqrt(e)),
    ("shifted", "1 before, axis 1", lambda e, x: np.roll(e, 1, 1)),
    ("reversed", "1", lambda e, x: e[:, ::-1]),
    ("repeated", "16, axis 1", lambda e, x: e[:, np.arange(N) % 16]),
    ("row-term", "minus max", lambda e, x: e - x.max(-1, keepdims=True)),
    ("half", "float16", lambda e, x: e.astype(np.float16).astype(np.float64)),
]


@pytest.mark.parametrize(("kind", "formula", "bug"), OUTPUTS, ids=[o[1] for o in OUTPUTS])
def test_a_relation_of_the_outputs_is_named(
    kind: str, formula: str, bug: Callable[[Array, Array], Array], x: Array
) -> None:
    expected = np.abs(np.sin(3 * x)) + 0.1
    found = output_relations(seen(bug(expected, x), expected, x=x))
    assert (kind, formula) in {(r.kind, r.formula) for r in found}


@pytest.mark.parametrize("factor", [1.001, 1.01, 0.999])
def test_a_scale_is_no_repeat_and_no_permutation(factor: float) -> None:
    for period in (1, 4, 16):
        wave = 5.0 + np.cos(np.arange(N) * 2 * np.pi / period) * 1e-4
        expected = np.tile(wave, (M, 1)) + np.arange(M)[:, None] * 1e-4
        found = output_relations(seen(factor * expected, expected, x=expected))
        assert not {r.kind for r in found} & {"repeated", "shifted", "reversed", "transposed"}


def test_what_is_right_has_no_relation(x: Array) -> None:
    expected = softmax(x)
    assert output_relations(seen(expected, expected, x=x)) == set()


@pytest.mark.parametrize("held", ["int8", "uint8", "int16"])
def test_integers_that_wrap_are_named(held: str, x: Array) -> None:
    expected = np.rint(x * 40_000)
    actual = expected.astype(np.int64).astype(held).astype(np.float64)
    one = seen(actual, expected, x=x)
    integers = replace(one, dtypes={"output": "int32"}, actual={"output": actual})
    assert ("wrapped", held) in {(r.kind, r.formula) for r in output_relations(integers)}
    assert not {r.kind for r in output_relations(one)} & {"wrapped"}, "floats do not wrap"


REFERENCES: list[tuple[str, str, str, Callable[..., Array], Callable[..., Array]]] = [
    ("padded", "x", "32", softmax, lambda x: softmax(np.pad(x, ((0, 0), (0, 24))))[:, :N]),
    ("wrong-axis", "x", "0, 1", softmax, lambda x: softmax(x.T).T),
    ("scaled-input", "x", "√N", softmax, lambda x: softmax(np.sqrt(N) * x)),
    ("reversed-input", "x", "1", softmax, lambda x: softmax(x[:, ::-1])),
    (
        "swapped-halves", "x", "1", lambda x: x[:, :20] * np.tanh(x[:, 20:40]),
        lambda x: x[:, 20:40] * np.tanh(x[:, :20]),
    ),
    ("repeated-input", "x", "0", softmax, lambda x: softmax(np.tile(x[:1], (M, 1)))),
    (
        "cut", "N", "whole tiles of 16", lambda x: np.asarray(x.sum(-1)),
        lambda x: np.asarray(x[:, :32].sum(-1)),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "subject", "formula", "reference", "bug"), REFERENCES, ids=[r[0] for r in REFERENCES]
)
def test_a_relation_that_the_reference_tests_is_named(
    kind: str,
    subject: str,
    formula: str,
    reference: Callable[..., Array],
    bug: Callable[..., Array],
    x: Array,
) -> None:
    def ask(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {"output": reference(*inputs.values())}

    found = input_relations(seen(bug(x), reference(x), x=x), ask)
    named = {(r.kind, r.formula) for r in found}
    assert (kind, formula) in named, named


NORMS: list[tuple[str, str, Callable[..., Array]]] = [
    ("ignored", "0", lambda x, w, b: layernorm(x, w, 0 * b)),
    ("ignored", "1", lambda x, w, b: layernorm(x, 0 * w + 1, b)),
    ("rolled", "1 behind, axis 0", lambda x, w, b: layernorm(x, w, np.roll(b, -1))),
    ("swapped-inputs", "", lambda x, w, b: layernorm(x, b, w)),
    (
        "eps", "outside, variance, 1e-05",
        lambda x, w, b: (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-5) * w + b,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "formula", "bug"), NORMS, ids=[f"{n[0]} {n[1]}" for n in NORMS])
def test_dropped_and_moved_terms_of_a_norm_are_named(
    kind: str, formula: str, bug: Callable[..., Array], x: Array
) -> None:
    w, b = (np.random.default_rng(n).normal(size=N) for n in (2, 3))
    small = 1e-3 * x

    def ask(inputs: Mapping[str, Array]) -> dict[str, Array] | None:
        try:
            return {"output": layernorm(*inputs.values())}
        except ValueError:
            return None

    with np.errstate(all="ignore"):
        found = input_relations(
            seen(bug(small, w, b), layernorm(small, w, b), x=small, w=w, b=b), ask
        )
    assert (kind, formula) in {(r.kind, r.formula) for r in found}


def test_a_reference_that_refuses_changed_inputs_is_asked_no_more_of(x: Array) -> None:
    assert input_relations(seen(2 * softmax(x), softmax(x), x=x), lambda _: None) == set()


def test_one_right_element_refutes_what_foretells_it_to_be_far_off() -> None:
    """Tell a maximum that begins at 0 from one of rows whose last element is taken for 0."""
    rows = np.random.default_rng(3).normal(-1.5, 1.0, (400, 5))
    rows[0] = [-1.0, -2.0, -1.0, -2.0, 3.0]
    rows[1:, -1] = -4.0
    case = seen(np.maximum(rows.max(-1), 0.0), rows.max(-1), x=rows)
    wrong = case.wrong["output"]
    assert agrees(case, "output", np.maximum(rows.max(-1), 0.0), wrong)
    masked = np.where(np.arange(5) < 4, rows, 0.0).max(-1)
    assert not agrees(case, "output", masked, wrong)


@pytest.mark.parametrize(("ends", "formula"), [((0, 4), "V-2"), ((1, 5), "1")])
def test_an_index_that_never_reaches_an_end(ends: tuple[int, int], formula: str) -> None:
    table = np.random.default_rng(4).normal(size=(6, 7))
    index = np.array([0, 5, 2, 5, 0, 3, 1, 4])
    case = ObservedCase(
        {"V": 6, "D": 7, "K": 8},
        {"table": ("V", "D"), "index": ("K",), "output": ("K", "D")},
        {"output": "float32"},
        {"table": table, "index": index},
        {"output": table[np.clip(index, *ends)]},
        {"output": table[index]},
    )

    def ask(given: Mapping[str, Array]) -> dict[str, Array] | None:
        within = given["index"].max() < len(given["table"])
        return {"output": given["table"][given["index"]]} if within else None

    found = input_relations(case, ask)
    assert ("clamped-index", formula) in {(r.kind, r.formula) for r in found}
