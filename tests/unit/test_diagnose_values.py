"""diagnose: what the wrong values are, each kind named with its numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from diagnosing import CLOSE, EXACT, kinds, one, values, with_zeroed
from for_each import for_each

from gpuemu_flow.model.types import Tolerance
from gpuemu_flow.numerics.diagnose import diagnose

# What


@pytest.mark.parametrize(
    ("factor", "name"),
    [
        (2.0, "2"),
        (-1.0, "sign flipped"),
        (1 / 8, "1/√64"),
        (8.0, "√64"),
        (64 / 63, "64/63"),
        (0.1, "1/10"),
    ],
)
def test_a_constant_factor_is_found_and_named(factor: float, name: str) -> None:
    expected = values(30, 64)
    found = diagnose((expected * np.float32(factor)).astype(np.float32), expected, CLOSE)
    finding = one(found, "factor")
    assert finding.numbers["factor"] == pytest.approx(factor, rel=1e-6)
    assert finding.numbers["meaning"] == name
    assert finding.numbers["residual"] < 1e-6
    assert found[0] is finding


def test_the_sentence_of_a_factor_says_it_all() -> None:
    expected = values(30, 60)
    assert diagnose(expected * 2, expected, CLOSE)[0].sentence == "actual = 2.000 × expected"


def test_a_factor_in_half_precision_is_found() -> None:
    expected = values(30, 60, dtype=np.float64)
    found = diagnose((expected * 0.5).astype(np.float16), expected, Tolerance(1e-3, 1e-2))
    assert one(found, "factor").numbers["factor"] == pytest.approx(0.5, rel=1e-3)


def test_a_factor_of_some_elements_is_not_claimed_for_all() -> None:
    expected = values(30, 60)
    actual = expected * np.where(values(30, 60, seed=3) > 0, 2, 3).astype(np.float32)
    assert "factor" not in kinds(diagnose(actual, expected, CLOSE))


def test_a_constant_offset_is_found() -> None:
    expected = values(30, 60)
    finding = one(diagnose(expected + np.float32(3.25), expected, CLOSE), "offset")
    assert finding.numbers["offset"] == pytest.approx(3.25)
    assert "expected + 3.25" in finding.sentence


def test_each_row_with_a_factor_of_its_own() -> None:
    expected = values(30, 60)
    factors = np.linspace(0.3, 0.9, 30, dtype=np.float32)[:, None]
    finding = one(diagnose(expected * factors, expected, CLOSE), "row-factor")
    assert finding.numbers["low"] == pytest.approx(0.3, rel=1e-5)
    assert finding.numbers["high"] == pytest.approx(0.9, rel=1e-5)


def test_rows_of_two_elements_are_enough_when_there_are_many() -> None:
    expected = values(40, 2)
    actual = expected * np.linspace(0.3, 0.9, 40, dtype=np.float32)[:, None]
    assert "row-factor" in kinds(diagnose(actual, expected, CLOSE))


def test_a_missing_bias_is_traced_to_the_input() -> None:
    bias = values(60, seed=5)
    expected = values(30, 60) + bias
    finding = one(
        diagnose(expected - bias, expected, CLOSE, inputs={"bias": bias}), "column-offset"
    )
    assert finding.numbers["source"] == "minus bias"


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_missing_term_of_a_product_is_seen_whatever_rounding_hides(dtype: Any) -> None:
    a, b = values(40, 50), values(50, 30, seed=1)
    for fewer in (1, 2):  # a bias of the wrong index is the sum of two, too
        right, wrong = (a @ b).astype(dtype), (a[:, :-fewer] @ b[:-fewer]).astype(dtype)
        assert ("low-rank" in kinds(diagnose(wrong, right, CLOSE))) is (fewer == 1)


def test_errors_of_right_values_with_few_terms_are_no_missing_terms() -> None:
    """Whatever rows a bug takes instead, here by a wrong stride, it is one product, too."""
    a, b = values(12, 1), values(1, 8, seed=1)
    taken = np.zeros_like(a)
    taken[:2] = a[::8]
    assert "low-rank" not in kinds(diagnose(taken @ b, a @ b, CLOSE))


def test_errors_where_all_right_values_are_zero_are_described() -> None:
    expected = np.zeros((20, 20), np.float32)
    actual = values(20, 1) @ values(1, 20, seed=1)
    assert "low-rank" not in kinds(diagnose(actual, expected, CLOSE))


def test_memory_that_nobody_wrote_is_called_so() -> None:
    expected = values(8, 20)
    actual = expected.copy()
    actual.view(np.uint8)[2:4] = 0xA5
    assert "before anyone writes it" in one(diagnose(actual, expected, CLOSE), "constant").sentence


@pytest.mark.parametrize("shape", [(8, 8), (16, 16), (40, 30)])
def test_a_few_large_errors_are_no_missing_terms(shape: tuple[int, int]) -> None:
    """Of sizes from one to millions, the largest ones have singular values of their own."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        sizes = np.exp(6.0 * rng.standard_normal(shape))
        expected = (sizes * np.sign(rng.standard_normal(shape))).astype(np.float32)
        actual = (expected * (1.0 + 0.3 * rng.standard_normal(shape))).astype(np.float32)
        assert "low-rank" not in kinds(diagnose(actual, expected, CLOSE)), seed


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_inf_where_finite_values_belong(bad: float) -> None:
    expected = values(30, 60)
    actual = expected.copy()
    actual[4] = bad
    finding = diagnose(actual, expected, CLOSE)[0]
    assert finding.kind == ("nan" if np.isnan(bad) else "inf")
    assert "where the reference is finite" in finding.sentence


def test_a_swallowed_nan_says_what_came_instead() -> None:
    expected = values(30, 60)
    expected[3, 5:9] = np.nan
    actual = np.nan_to_num(expected, nan=0.0)
    finding = diagnose(actual, expected, CLOSE)[0]
    assert finding.kind == "nan-lost"
    assert finding.sentence == "actual is 0 where the reference is NaN"


def test_saturation_is_told_from_a_lost_inf() -> None:
    expected = values(30, 60)
    expected[3] = np.inf
    actual = np.where(np.isinf(expected), np.finfo(np.float32).max, expected).astype(np.float32)
    assert diagnose(actual, expected, CLOSE)[0].kind == "saturated"
    assert (
        diagnose(np.where(np.isinf(expected), 7, expected), expected, CLOSE)[0].kind == "inf-lost"
    )


def test_zeros_and_other_constants() -> None:
    expected = values(30, 60)
    found = diagnose(with_zeroed(expected, np.s_[:, 50:]), expected, EXACT)
    assert "zeros" in kinds(found)
    found = diagnose(np.full_like(expected, 2.5), expected, EXACT)
    assert one(found, "constant").numbers["value"] == 2.5


def test_flushed_subnormals_are_told_from_zeros() -> None:
    expected = values(30, 60) * np.float32(1e-39)
    found = diagnose(np.zeros_like(expected), expected, EXACT)
    assert "flushed" in kinds(found)
    assert "zeros" not in kinds(found)


def test_values_clipped_to_the_largest_half() -> None:
    expected = values(30, 60) * np.float32(1e7)
    expected = expected[np.abs(expected) > 70000].reshape(-1)
    found = diagnose(np.clip(expected, -65504, 65504), expected, EXACT)
    assert one(found, "clipped").numbers["format"] == "float16"


@pytest.mark.parametrize(
    ("name", "dtype"), [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)]
)
def test_rounding_to_a_narrower_format_is_named(name: str, dtype: Any) -> None:
    expected = values(30, 60)
    found = diagnose(expected.astype(dtype).astype(np.float32), expected, CLOSE)
    assert one(found, "narrower").numbers["format"] == name


def test_wrong_values_that_happen_to_be_short_are_not_called_rounded() -> None:
    expected = values(30, 60)
    actual = np.round(values(30, 60, seed=1) * 100).astype(np.float32)
    assert "narrower" not in kinds(diagnose(actual, expected, CLOSE))


def test_a_few_ulp_in_both_directions_are_rounding() -> None:
    expected = values(30, 60, dtype=np.float16)
    steps = np.where(values(30, 60, seed=1) > 0, 4, -4).astype(np.int16)
    actual = (expected.view(np.int16) + steps).view(np.float16)
    finding = one(diagnose(actual, expected, EXACT), "rounding")
    assert finding.numbers["median_ulp"] == pytest.approx(4, abs=1)


def test_integers_that_wrap() -> None:
    expected = np.arange(0, 400, 3, dtype=np.int64)
    found = diagnose(expected.astype(np.int8).astype(np.int64), expected, EXACT)
    assert one(found, "wrapped").numbers["modulus"] == 256
    found = diagnose(expected + 1, expected, EXACT)
    assert one(found, "offset").numbers["offset"] == 1


def test_large_integers_are_compared_exactly() -> None:
    expected = np.full(19, 2**60, np.int64)
    found = diagnose(expected + np.eye(19, dtype=np.int64)[18], expected, EXACT)
    assert one(found, "one-element").numbers["index"] == [18]


# Right values in wrong places


def test_swapped_axes_of_a_square() -> None:
    expected = values(3, 20, 20)
    finding = one(diagnose(expected.swapaxes(1, 2), expected, CLOSE), "transposed")
    assert finding.numbers["axes"] == [1, 2]


@pytest.mark.parametrize("distance", [-1, 1, -32])
def test_rows_that_are_other_rows(distance: int) -> None:
    expected = values(600, 12)
    actual = np.roll(expected, -distance, axis=0)
    finding = one(diagnose(actual, expected, CLOSE), "shifted")
    assert (finding.numbers["axis"], finding.numbers["distance"]) == (0, distance)
    assert "row" in finding.sentence


def test_one_stale_row_is_both_placed_and_explained() -> None:
    expected = values(30, 60)
    actual = expected.copy()
    actual[7] = expected[6]
    found = diagnose(actual, expected, CLOSE)
    assert one(found, "shifted").numbers["distance"] == -1
    assert one(found, "line").numbers["start"] == 7


def test_a_repeated_first_row_and_tile() -> None:
    expected = values(30, 60)
    actual = np.repeat(expected[:1], 30, axis=0)
    assert one(diagnose(actual, expected, CLOSE), "repeated").numbers["tile"] == 1
    tiled = expected[:, np.arange(60) % 16]
    assert one(diagnose(tiled, expected, CLOSE), "repeated").numbers["tile"] == 16


def test_reversed_order_and_any_other_order() -> None:
    expected = values(30, 60)
    assert "reversed" in kinds(diagnose(expected[:, ::-1], expected, CLOSE))
    shuffled = np.random.default_rng(1).permuted(expected, axis=1)
    assert one(diagnose(shuffled, expected, CLOSE), "permuted").numbers["within_rows"]


def test_an_input_in_place_of_the_output() -> None:
    x = values(30, 60)
    finding = one(diagnose(x, np.tanh(x) + 2, CLOSE, inputs={"x": x}), "input-copy")
    assert finding.numbers["input"] == "x"


def test_values_that_occur_everywhere_prove_no_move() -> None:
    expected = np.ones((30, 60), np.float32)
    expected[values(30, 60) > 2] = 0
    found = diagnose(np.ones_like(expected), expected, CLOSE)
    assert not {"shifted", "transposed", "repeated", "reversed"} & set(kinds(found))


def test_moves_are_claimed_from_the_least_evidence_on() -> None:
    def said(actual: np.ndarray, expected: np.ndarray) -> list[str]:
        return kinds(diagnose(actual, expected, EXACT))

    order = np.array([3, 0, 4, 1, 6, 2, 7, 5])
    for count in (7, 8):
        expected = values(1, 90)
        actual = expected.copy()
        actual[0, 30 : 30 + count] = expected[0, 30 + (order[order < count])]
        assert ("permuted" in said(actual, expected)) == (count == 8)
    for size, lines in ((15, 2), (15, 3), (16, 2)):
        expected = values(size, 40)
        actual = expected.copy()
        actual[4 : 4 + lines] = expected[3 : 3 + lines]
        assert ("shifted" in said(actual, expected)) == ((size, lines) != (15, 2))
    close = expected * np.float32(1 + 1e-3)
    assert "permuted" not in said(np.sort(close), np.sort(expected))


def test_shifts_and_repetitions_of_the_usual_tiles_are_found() -> None:
    long, table = values(2600), values(600, 3)
    powers = [1 << n for n in range(9)]
    for distance in [*powers, 3, 512]:
        moved = distance if distance.bit_length() % 2 else -distance
        found = diagnose(np.roll(long, -moved), long, EXACT)
        told = [each.numbers["distance"] for each in found if each.kind == "shifted"]
        assert told == ([moved] if distance in powers else [])
    for tile in [*powers, 24]:
        found = diagnose(table[np.arange(600) % tile], table, EXACT)
        told = [each.numbers["tile"] for each in found if each.kind == "repeated"]
        assert told == ([tile] if tile in (1, *powers[3:]) else [])


@for_each(
    ("total", "wrong", "claimed"),
    [(90, 7, False), (90, 8, True), (60, 53, False), (60, 52, True), (400, 381, False),
     (400, 380, True)],
)  # fmt: skip
def test_a_border_needs_enough_elements_on_both_sides(
    total: int, wrong: int, claimed: bool
) -> None:
    rng = np.random.default_rng(3)
    x = rng.permutation(np.arange(total) + 0.5).astype(np.float32)
    expected = values(total)
    for sign in (1, -1):
        failing = sign * x > np.sort(sign * x)[total - wrong - 1]
        actual = np.where(failing, expected + rng.uniform(0.2, 2, total), expected)
        found = diagnose(actual.astype(np.float32), expected, EXACT, inputs={"x": x})
        assert ("input-value" in kinds(found)) == claimed
        for each in found:
            if each.kind == "input-value":
                border = x[failing].min() if sign == 1 else x[failing].max()
                assert abs(each.numbers["border"] - border) <= 1 + 0.01 * wrong
                assert each.numbers["side"] == ("above" if sign == 1 else "below")


def test_rows_of_a_table_are_no_rows_of_the_output() -> None:
    table, index = values(5, 6), np.array([0, 0, 0, 3, 4])
    table[4, 0] = np.nan
    wrong = table[np.minimum(index, 3)]
    told = kinds(diagnose(wrong, table[index], EXACT, inputs={"table": table, "index": index}))
    assert "input-row" not in told
    assert "input-row" in kinds(diagnose(wrong, table[index], EXACT, inputs={"x": table}))


@for_each(
    ("rows", "what", "claimed"),
    [(5, "holds NaN", True), (4, "holds NaN", False), (100, "is all negative", True),
     (99, "is all negative", False), (5, "is all zeros", True), (100, "is constant", True),
     (99, "is constant", False), (5, "holds -Inf", True), (5, "holds +Inf", True),
     (5, "is -Inf throughout", True)],
)  # fmt: skip
def test_a_row_is_blamed_on_what_it_holds_unless_by_chance(
    rows: int, what: str, claimed: bool
) -> None:
    x = 1 + np.random.default_rng(4).random((rows, 6)).astype(np.float32)
    x[2] = {
        "holds NaN": [1, np.nan, 1.2, 1.3, 1.4, 1.5], "is all negative": [-1, -2, -3, -4, -5, -6],
        "is all zeros": 0, "is constant": 1.5, "holds -Inf": [1, -np.inf, 1.2, 1.3, 1.4, 1.5],
        "holds +Inf": [1, np.inf, 1.2, 1.3, 1.4, 1.5], "is -Inf throughout": -np.inf,
    }[what]  # fmt: skip
    expected = values(rows)
    actual = expected.copy()
    actual[2] += 1
    found = diagnose(actual, expected, EXACT, inputs={"x": x}, limit=9)
    told = [each.numbers.get("holds") for each in found if each.kind == "input-row"]
    assert told == ([what] if claimed else [])
