"""Claims name the value or the place of wrong elements, and nothing that the cases contradict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gpuemu_flow.numerics.claim_words import sentence_of
from gpuemu_flow.numerics.claims import claims, has_moved, is_firm, is_sharp, reaches
from gpuemu_flow.numerics.elements import LabelledUnits, label_units
from gpuemu_flow.numerics.relations import ObservedCase

Array = NDArray[Any]
SHAPES = ((7, 200), (40, 33), (64, 129), (9, 77), (130, 65), (31, 300))


HEADS = ((1, 1, 8), (2, 9, 8), (8, 17, 8), (1, 20, 8), (2, 2, 8), (8, 5, 8))


def seen(
    op: Callable[[Array], Array],
    right: Callable[[Array], Array],
    shapes: Sequence[tuple[int, ...]] = SHAPES,
) -> list[LabelledUnits]:
    """Look at an op on a few shapes, with values to ±20."""
    found = []
    for number, shape in enumerate(shapes):
        dims = "MN" if len(shape) == 2 else "HTD"
        x = np.random.default_rng(number).uniform(-20, 20, shape)
        actual, expected = op(x.copy()), right(x)
        observation = ObservedCase(
            dict(zip(dims, shape, strict=True)),
            {"x": tuple(dims), "out": tuple(dims)[: expected.ndim]},
            {"out": "float32"},
            {"x": x},
            {"out": actual},
            {"out": expected},
            bool(np.allclose(actual, expected)),
        )
        each = label_units(observation)
        assert each is not None
        found.append(each)
    return found


def tripled(x: Array) -> Array:
    return np.asarray(3.0 * x)


def changed(index: Any) -> Callable[[Array], Array]:
    def op(x: Array) -> Array:
        y = tripled(x)
        y[index] += 1.0
        return y

    return op


def changed_flat(index: slice) -> Callable[[Array], Array]:
    def op(x: Array) -> Array:
        y = tripled(x)
        y.reshape(-1)[index] += 1.0
        return y

    return op


def tail_of_256(x: Array) -> Array:
    y = tripled(x)
    y.reshape(-1)[y.size // 256 * 256 :] = 0.5
    return y


@pytest.mark.parametrize(
    ("op", "said"),
    [
        (lambda x: 3.0 * np.minimum(x, 12.0), "only elements with x ≥ 12"),
        (lambda x: 3.0 * np.clip(x, -12.0, 12.0), "only elements with |x| ≥ 12"),
        (lambda x: np.where(x < 0, 0.5, 3.0) * x, "only elements with x < 0 are wrong"),
        (changed_flat(slice(512, None)), "only elements from flat index 512 on are wrong"),
        (changed_flat(slice(1, None, 2)), "only elements whose flat index is 1 modulo 2 are wrong"),
        (changed_flat(slice(3, None, 4)), "only elements whose flat index is 3 modulo 4 are wrong"),
        (tail_of_256, "only elements in the last, partial tile of 256 in memory order are wrong"),
        (changed(np.s_[:, 64:128]), "only elements from index 64 to 127 along axis 1 are wrong"),
        (changed(np.s_[:, 0]), "only elements at index 0 along axis 1 are wrong"),
        (changed(np.s_[:, 5]), "only elements at index 5 along axis 1 are wrong"),
        (changed(np.s_[32:]), "only elements from index 32 on along axis 0 are wrong"),
        (
            changed(np.s_[32:, 64:]),
            "only elements from index 32 on along axis 0 and from index 64 on along axis 1 are",
        ),
    ],
)
def test_the_likeliest_claim_is_the_true_one(op: Callable[[Array], Array], said: str) -> None:
    found = claims(seen(op, tripled))
    assert sentence_of(found[0]).startswith(said)
    assert is_sharp(found[0])


@pytest.mark.parametrize(
    ("op", "said"),
    [
        (changed(np.s_[:, 1:]), "only elements from index 1 on along axis 1 are wrong"),
        (changed(np.s_[:, 2:]), "only elements from index 2 on along axis 1 are wrong"),
        (changed(np.s_[1:]), "only elements from index 1 on along axis 0 are wrong"),
        (changed_flat(slice(8, None)), "only elements from flat index 8 on are wrong"),
        (changed_flat(slice(24, None)), "only elements from flat index 24 on are wrong"),
    ],
)
def test_an_axis_is_named_where_it_tells_exactly_what_is_wrong(
    op: Callable[[Array], Array], said: str
) -> None:
    found = claims(seen(op, tripled, HEADS))
    assert sentence_of(found[0]).startswith(said)
    assert is_sharp(found[0])


def test_of_an_axis_and_the_flat_index_that_say_the_same_the_axis_is_named() -> None:
    shapes = [(1, rows, 8) for rows in (2, 5, 9, 17, 20)]
    found = claims(seen(changed(np.s_[:, 3:]), tripled, shapes))
    assert sentence_of(found[0]).startswith("only elements from index 3 on along axis 1 are wrong")


def test_rows_are_told_by_their_largest_element() -> None:
    def op(x: Array) -> Array:
        return np.asarray(np.minimum(x.max(-1), 19.0))

    found = claims(seen(op, lambda x: np.asarray(x.max(-1))))
    assert sentence_of(found[0]).startswith("only rows of x whose largest element is ≥ 19")


def test_nothing_is_claimed_where_all_is_wrong_or_wrong_at_random() -> None:
    assert claims(seen(lambda x: 3.0 * x + 1.0, tripled)) == []

    def scattered(x: Array) -> Array:
        return np.asarray(3.0 * x + (np.random.default_rng(x.size).random(x.shape) < 0.3))

    assert claims(seen(scattered, tripled)) == []


def test_what_an_op_gives_is_never_claimed_to_be_the_cause() -> None:
    # Only outputs of 30 and more are wrong, and so they are for inputs of 10 and more.
    found = claims(seen(lambda x: np.minimum(3.0 * x, 30.0), tripled))
    assert [claim.feature.subject for claim in found[:1]] == ["x"]
    assert all(claim.feature.kind != "expected" for claim in found)


def test_a_border_that_was_known_and_moves_is_none() -> None:
    before = claims(seen(lambda x: 3.0 * np.minimum(x, 12.0), tripled))[0]
    after = claims(seen(lambda x: 3.0 * np.minimum(x, 5.0), tripled))[0]
    assert has_moved(before, after)
    assert not has_moved(before, before)


def test_a_place_is_reached_by_outputs_that_are_large_enough() -> None:
    claim = claims(seen(changed(np.s_[32:, 64:]), tripled))[0]
    assert reaches(claim, (33, 65))
    assert not reaches(claim, (33, 64))
    assert not reaches(claim, (32, 65))


def fading(x: Array) -> Array:
    """Be wrong by a share that fades above 0 and has no border."""
    return np.asarray(3.0 * x * (1.0 + np.exp(-np.maximum(x, 0.0))))


def stepping(x: Array) -> Array:
    return np.asarray(np.where(x < 9.0, 3.3 * x, 3.0 * x))


def test_an_error_that_fades_has_no_border() -> None:
    faded = [each for each in claims(seen(fading, tripled)) if each.feature.kind == "value"]
    assert faded and not any(is_firm(each, seen(fading, tripled)) for each in faded)
    stepped = [each for each in claims(seen(stepping, tripled)) if each.feature.kind == "value"]
    assert stepped and all(is_firm(each, seen(stepping, tripled)) for each in stepped)


def test_all_but_the_first_is_no_place() -> None:
    def tiled(x: Array) -> Array:
        return np.asarray(3.0 * np.roll(x[:, ::-1], 1, axis=1))

    named = [each.feature.kind for each in claims(seen(tiled, tripled))]
    assert "axis" not in named
