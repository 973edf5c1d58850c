"""diagnose: each pattern of errors is named with its numbers, and nothing else is claimed."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuemu_flow.numerics.diagnose import MOST_FINDINGS, Finding, diagnose, failing_elements
from gpuemu_flow.numerics.finding import SAMPLE, some_positions
from gpuemu_flow.numerics.judge import AffineBound, Rules
from gpuemu_flow.types import Tolerance

EXACT = Tolerance(0.0, 0.0)
CLOSE = Tolerance(1e-6, 1e-5)


def values(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def kinds(found: tuple[Finding, ...]) -> list[str]:
    return [finding.kind for finding in found]


def one(found: tuple[Finding, ...], kind: str) -> Finding:
    matching = [finding for finding in found if finding.kind == kind]
    assert matching, f"{kind} is not among {[f.sentence for f in found]}"
    return matching[0]


def with_zeroed(expected: np.ndarray, where: Any) -> np.ndarray:
    actual = expected.copy()
    actual[where] = 0
    return actual


# Where


def test_one_element_is_named_with_its_index() -> None:
    expected = values(5, 7)
    found = diagnose(with_zeroed(expected, (3, 2)), expected, EXACT)
    assert one(found, "one-element").numbers["index"] == [3, 2]
    assert "[3, 2]" in found[0].sentence


def test_the_last_element_is_called_so() -> None:
    expected = values(5, 7)
    found = diagnose(with_zeroed(expected, (4, 6)), expected, EXACT)
    assert "only the last element of 35" in found[0].sentence


@pytest.mark.parametrize(
    ("where", "axis", "words"),
    [
        (np.s_[0], 0, "the first row 0 of 40"),
        (np.s_[-1], 0, "the last row 39 of 40"),
        (np.s_[:, 0], 1, "the first column 0 of 137"),
        (np.s_[:, 17], 1, "column 17 of 137"),
    ],
)
def test_a_single_line_is_named(where: Any, axis: int, words: str) -> None:
    expected = values(40, 137)
    line = one(diagnose(with_zeroed(expected, where), expected, EXACT), "line")
    assert line.numbers["axis"] == axis
    assert words in line.sentence


@pytest.mark.parametrize("tile", [8, 16, 32, 64, 128])
def test_the_partial_last_tile_is_recognised_with_its_width(tile: int) -> None:
    start = 3 * tile  # an odd multiple: no wider tile ends there
    expected = values(12, start + 5)
    tail = one(diagnose(with_zeroed(expected, np.s_[:, start:]), expected, EXACT), "tail")
    assert (tail.numbers["start"], tail.numbers["tile"]) == (start, tile)
    assert f"the last, partial tile of {tile}" in tail.sentence


def test_all_but_the_first_tile_is_recognised() -> None:
    expected = values(12, 200)
    tail = one(diagnose(with_zeroed(expected, np.s_[:, 64:]), expected, EXACT), "tail")
    assert (tail.numbers["start"], tail.numbers["tile"]) == (64, 64)
    assert "all tiles of 64 but the first" in tail.sentence


def test_a_tail_of_rows_and_columns_names_both_axes() -> None:
    expected = values(40, 137)
    found = diagnose(with_zeroed(expected, np.s_[32:, 128:]), expected, EXACT)
    assert "rows 32 to 39 of 40" in one(found, "tail").sentence
    assert "columns 128 to 136 of 137" in one(found, "tail").sentence


@pytest.mark.parametrize("period", [2, 8, 64, 256])
def test_a_tile_periodic_error_is_named_with_its_period(period: int) -> None:
    expected = values(3, 4 * period + 3)
    columns = np.arange(expected.shape[1]) % period == period - 1
    periodic = one(diagnose(with_zeroed(expected, np.s_[:, columns]), expected, EXACT), "periodic")
    assert periodic.numbers["period"] == period
    assert f"{period - 1} of every {period}" in periodic.sentence


def test_whole_rows_without_pattern_are_counted() -> None:
    expected = values(40, 30)
    rows = [1, 4, 5, 17, 30]
    found = diagnose(with_zeroed(expected, rows), expected, EXACT)
    assert one(found, "whole-lines").numbers == {"axis": 0, "lines": 5, "size": 40}
    assert "1, 4 to 5, 17" in one(found, "whole-lines").sentence


def test_blocks_of_memory_are_told_from_rows() -> None:
    expected = values(33, 137)
    actual = expected.copy()
    actual.reshape(-1)[4096:] = 0
    tail = one(diagnose(actual, expected, EXACT), "memory-tail")
    assert (tail.numbers["start"], tail.numbers["tile"]) == (4096, 4096)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (np.triu(np.ones((20, 20), bool), 1), "above the diagonal"),
        (np.tril(np.ones((20, 20), bool)), "on and below the diagonal"),
        (np.eye(20, dtype=bool), "on the diagonal"),
    ],
)
def test_sides_of_the_diagonal_are_named(mask: np.ndarray, words: str) -> None:
    expected = values(20, 20)
    assert words in one(diagnose(with_zeroed(expected, mask), expected, EXACT), "diagonal").sentence


def test_a_tail_of_columns_is_not_called_a_diagonal() -> None:
    expected = values(20, 200)
    found = diagnose(with_zeroed(expected, np.s_[:, 64:]), expected, EXACT)
    assert "diagonal" not in kinds(found)


def test_few_scattered_elements_are_called_scattered() -> None:
    expected = values(50, 60)
    where = np.random.default_rng(1).choice(3000, 40, replace=False)
    actual = expected.copy()
    actual.reshape(-1)[where] += 1.0 + values(40, seed=2) ** 2
    found = diagnose(actual, expected, EXACT)
    assert one(found, "scattered").numbers["failing"] == 40
    assert "tail" not in kinds(found)


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


def test_missing_terms_of_a_product_are_counted() -> None:
    a, b = values(40, 50), values(50, 30, seed=1)
    finding = one(diagnose(a[:, :-3] @ b[:-3], a @ b, Tolerance(1e-4, 0)), "low-rank")
    assert finding.numbers["rank"] == 3


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


def test_noise_of_an_accumulation_in_half_precision() -> None:
    expected = values(30, 60)
    noise = 1 + values(30, 60, seed=1) * np.float32(2.0**-10)
    found = diagnose(expected * noise, expected, CLOSE)
    assert "half-precision" in kinds(found)
    # An error of the same size that always goes away from zero is none.
    outward = 1 + np.abs(values(30, 60, seed=1)) * np.float32(2.0**-10)
    assert "half-precision" not in kinds(diagnose(expected * outward, expected, CLOSE))


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
    expected = np.full(9, 2**60, np.int64)
    found = diagnose(expected + np.eye(9, dtype=np.int64)[4], expected, EXACT)
    assert one(found, "one-element").numbers["index"] == [4]


# Right values in wrong places


def test_swapped_axes_of_a_square() -> None:
    expected = values(3, 20, 20)
    finding = one(diagnose(expected.swapaxes(1, 2), expected, CLOSE), "transposed")
    assert finding.numbers["axes"] == [1, 2]


def test_memory_read_in_the_wrong_order() -> None:
    expected = values(20, 33)
    read = np.ascontiguousarray(expected.T).reshape(expected.shape)
    assert "memory-order" in kinds(diagnose(read, expected, CLOSE))
    written = expected.reshape(33, 20).T
    assert "memory-order" in kinds(diagnose(written, expected, CLOSE))


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
    assert not {"shifted", "transposed", "memory-order", "repeated", "reversed"} & set(kinds(found))


# When


def test_a_threshold_in_the_input_is_found() -> None:
    x = values(30, 60) * 100
    expected = np.abs(x)
    actual = np.where(x > 88, np.float32(1e9), expected) + np.where(x > 88, x, 0) ** 2
    finding = one(
        diagnose(actual.astype(np.float32), expected, CLOSE, inputs={"x": x}), "input-value"
    )
    assert finding.numbers["side"] == "above"
    assert 88 < finding.numbers["border"] < 95


def test_rows_that_hold_nan_are_blamed() -> None:
    x = values(40, 30)
    x[[3, 17, 20], 5] = np.nan
    expected = values(40, 30, seed=1)
    actual = expected + np.isnan(x).any(axis=1)[:, None] * (1 + values(40, 30, seed=2) ** 2)
    found = diagnose(actual.astype(np.float32), expected, CLOSE, inputs={"x": x})
    assert one(found, "input-row").numbers == {"input": "x", "holds": "holds NaN", "rows": 3}


def test_one_odd_row_of_few_is_no_evidence() -> None:
    x = np.abs(values(5, 3))
    x[2] = -x[2]
    expected = values(5, 3, seed=1)
    found = diagnose(with_zeroed(expected, 2), expected, EXACT, inputs={"x": x})
    assert "input-row" not in kinds(found)


def test_an_error_that_grows_along_an_axis() -> None:
    expected = values(8, 400)
    walk = np.linspace(1e-3, 1.0, 400) ** 2 * np.sign(values(8, 400, seed=1))
    finding = one(
        diagnose((expected + walk).astype(np.float32), expected, Tolerance(1e-9, 0)), "growing"
    )
    assert finding.numbers["axis"] == 1
    assert finding.numbers["last"] > 10 * finding.numbers["first"]


# Limits


def test_nothing_wrong_gives_nothing() -> None:
    expected = values(30, 60)
    assert diagnose(expected, expected, EXACT) == ()
    assert diagnose(expected, expected[:, :59], EXACT) == ()
    assert diagnose(np.zeros((0, 3)), np.zeros((0, 3)), EXACT) == ()
    assert diagnose(expected.astype(complex), expected.astype(complex), EXACT) == ()


def test_a_scalar_output_is_explained_too() -> None:
    found = diagnose(np.array(np.nan), np.array(1.0), EXACT)
    assert kinds(found) == ["nan"]
    assert diagnose(np.array(2.0), np.array(1.0), EXACT) == ()


def test_at_most_three_are_given_and_the_likeliest_first() -> None:
    expected = values(30, 64)
    actual = expected * np.float32(2)
    actual[3] = np.nan
    found = diagnose(actual, expected, CLOSE)
    assert 0 < len(found) <= MOST_FINDINGS
    assert [f.likelihood for f in found] == sorted((f.likelihood for f in found), reverse=True)
    assert len(diagnose(actual, expected, CLOSE, limit=1)) == 1


def test_a_mask_may_be_given_in_place_of_a_tolerance() -> None:
    expected = values(30, 60)
    actual = with_zeroed(expected, 3)
    mask = actual != expected
    assert diagnose(actual, expected, mask) == diagnose(actual, expected, EXACT)
    assert np.array_equal(failing_elements(actual, expected, AffineBound(0.0, 0.0), Rules()), mask)


def test_an_overflow_that_any_op_shows_is_not_blamed() -> None:
    expected = values(30, 60, dtype=np.float64)
    expected[2, 3] = 1e6
    actual = expected.copy()
    actual[7, 8] = 3
    with np.errstate(over="ignore"):
        half = actual.astype(np.float16)
    found = diagnose(half, expected, Tolerance(1e-2, 1e-2))
    assert one(found, "one-element").numbers["index"] == [7, 8]


def test_findings_are_json() -> None:
    expected = values(30, 60)
    expected[3, 5] = np.nan
    for finding in diagnose(np.nan_to_num(expected, nan=np.inf), expected, EXACT):
        text = json.dumps(finding.to_json(), allow_nan=False)
        assert finding.kind in text


def test_many_failures_are_sampled_evenly_and_keep_both_ends() -> None:
    mask = np.zeros(3_000_000, bool)
    mask[7::3] = True
    positions = some_positions(mask, int(mask.sum()))
    assert mask[positions].all()
    assert (np.diff(positions) > 0).all()
    assert SAMPLE * 0.9 < positions.size <= SAMPLE
    assert positions[0] == 7
    assert positions[-1] == np.flatnonzero(mask)[-1]
    assert np.diff(positions).max() < 6 * 3_000_000 / SAMPLE


def test_the_sample_has_no_step_in_common_with_tiles() -> None:
    positions = some_positions(np.ones(2**22, bool), 2**22)
    assert np.unique(positions % 128).size == 128


DTYPES = [
    np.float32,
    np.float16,
    np.float64,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    np.int32,
    np.uint8,
    np.bool_,
]
SHAPES = [(), (1,), (2,), (9,), (1, 1), (2, 3), (5, 8), (9, 9), (3, 1, 7), (2, 3, 4, 5), (1, 40)]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(SHAPES),
    st.sampled_from(DTYPES),
    st.integers(0, 2**32),
    st.sampled_from(["normal", "special", "huge", "tiny", "ties", "zeros"]),
    st.booleans(),
)
def test_whatever_the_values_nothing_is_raised(
    shape: tuple[int, ...], dtype: Any, seed: int, style: str, sparse: bool
) -> None:
    rng = np.random.default_rng(seed)
    palette = {
        "special": [np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0],
        "huge": [1e308, -1e308, 1e300, 1.0],
        "tiny": [5e-324, -1e-310, 0.0, 1e-300],
        "ties": [1.0, 2.0],
        "zeros": [0.0],
    }

    def draw() -> np.ndarray:
        if style == "normal":
            return rng.standard_normal(shape)
        return rng.choice(palette[style], size=shape)

    with np.errstate(all="ignore"):
        expected, actual = np.asarray(draw()), np.asarray(draw()).astype(dtype)
        x = np.asarray(draw()).astype(dtype)
        mask = rng.random(shape) < (0.2 if sparse else 0.95)
    for failing in (np.asarray(mask), EXACT):
        for finding in diagnose(actual, expected, failing, inputs={"x": x, "row": x.reshape(-1)}):
            assert finding.sentence
            assert 0 <= finding.likelihood <= 1
            json.dumps(finding.to_json(), allow_nan=False)
