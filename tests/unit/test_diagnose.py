"""diagnose: where errors lie, when they show, and that nothing else is claimed."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from diagnosing import CLOSE, EXACT, kinds, one, values, with_zeroed
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuemu_flow.model.decoding import plain
from gpuemu_flow.model.types import Tolerance
from gpuemu_flow.numerics.diagnose import MOST_FINDINGS, diagnose, failing_elements
from gpuemu_flow.numerics.finding import SAMPLE, some_positions
from gpuemu_flow.numerics.judge import AffineBound, Rules

# Where


def test_the_last_element_is_called_so() -> None:
    expected = values(5, 7)
    found = diagnose(with_zeroed(expected, (4, 6)), expected, EXACT)
    assert "only the last element of 35" in found[0].sentence
    # Where another stands, the message says already; of values that hide errors it may be chance.
    assert not diagnose(with_zeroed(expected, (3, 2)), expected, EXACT)
    assert not diagnose(with_zeroed(expected, (4, 6)), expected, EXACT, plain=False)


@pytest.mark.parametrize(
    ("shape", "where", "said"),
    [
        # One row of few, or a border that only one or two right elements show, may be chance.
        ((2, 1, 2, 16), np.s_[1, :, 0], None),
        ((2, 6, 4, 16), np.s_[1, :, 0], "index 0 of 4 along axis 2 and index 1 of 2 along axis 0"),
        ((2, 150), np.s_[:, 1:], None),
        ((4, 150), np.s_[:, 1:], "columns 1 to 149 of 150 (all but the first)"),
        ((40, 8), np.s_[39:, :7], "row 39 of 40 (the last)"),
        ((67, 6), np.s_[[*range(1, 30), *range(33, 67)], 4:], "columns 4 to 5 of 6"),
    ],
)
def test_a_border_is_named_if_enough_right_elements_show_it(
    shape: tuple[int, ...], where: Any, said: str | None
) -> None:
    expected = values(*shape)
    found = diagnose(with_zeroed(expected, where), expected, EXACT)
    told = [each.sentence.removeprefix("wrong only in ") for each in found]
    told = [each.partition(",")[0] for each in told if "0" not in each.partition(" ")[0]]
    assert (said in told) if said else not any("to" in each for each in told), told


def test_where_values_hide_errors_chance_may_pick_some_rows() -> None:
    expected = values(40, 137)
    actual = with_zeroed(expected, np.s_[17])
    assert "line" in kinds(diagnose(actual, expected, EXACT))
    assert "line" not in kinds(diagnose(actual, expected, EXACT, plain=False))
    actual = with_zeroed(expected, np.s_[:, 128:])
    assert "tail" in kinds(diagnose(actual, expected, EXACT, plain=False))


@pytest.mark.parametrize(
    ("where", "axis", "words"),
    [
        (np.s_[0], 0, "row 0 of 40 (the first)"),
        (np.s_[-1], 0, "row 39 of 40 (the last)"),
        (np.s_[:, 0], 1, "column 0 of 137 (the first)"),
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
    assert f"from a multiple of {tile} on" in tail.sentence


def test_all_but_the_first_tile_is_recognised() -> None:
    expected = values(12, 200)
    tail = one(diagnose(with_zeroed(expected, np.s_[:, 64:]), expected, EXACT), "tail")
    assert (tail.numbers["start"], tail.numbers["tile"]) == (64, 64)
    assert "from a multiple of 64 on" in tail.sentence


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


def test_every_axis_is_named_of_which_a_part_is_right() -> None:
    expected = values(3, 4, 8)
    found = diagnose(with_zeroed(expected, np.s_[1:, 1:, :4]), expected, EXACT)
    said = " ".join(finding.sentence for finding in found)
    assert "columns 0 to 3 of 8" in said
    assert "1 to 2 of 3 along axis 0" in said
    assert "1 to 3 of 4 along axis 1" in said


@pytest.mark.parametrize(
    ("shape", "where"),
    [
        ((3, 65), np.s_[1:, 32:]),
        ((3, 65), np.s_[:1]),
        ((9, 5), np.s_[1::2, 2:]),
        ((6, 2, 16), np.s_[3:, 1]),
    ],
)
def test_few_rows_are_given_no_meaning(shape: tuple[int, ...], where: Any) -> None:
    """Which of few rows are wrong may be due to their values."""
    expected = values(*shape)
    found = diagnose(with_zeroed(expected, where), expected, EXACT)
    said = " ".join(finding.sentence for finding in found)
    assert not any(words in said for words in ("the first", "the last", "all but", "of every"))


def test_what_right_elements_contradict_is_not_said() -> None:
    first, last = -1.68, -0.06
    expected = np.array([[first, 0.75 * first + 0.25 * last, 0.25 * first + 0.75 * last, last]])
    actual = np.array([[last, expected[0, 2], expected[0, 1], last]])
    assert "reversed" not in kinds(diagnose(actual, expected, EXACT))
    assert "reversed" in kinds(diagnose(expected[:, ::-1].copy(), expected, EXACT))
    square = values(40, 40)
    half = square.T.copy()
    half[:, 20:] = square[:, 20:]
    assert "transposed" not in kinds(diagnose(half, square, EXACT))


def test_nearly_constant_rows_have_no_offset_of_their_own() -> None:
    expected = np.repeat(values(6, 1), 16, axis=1)
    expected = expected + 1e-6 * values(6, 16, seed=3)
    actual = expected * np.linspace(1.1, 1.7, 6)[:, None]
    assert "row-offset" not in kinds(diagnose(actual, expected, EXACT))


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


def test_where_right_zeros_came_out_wrong_zeros_are_not_spared() -> None:
    expected = values(6, 10)
    expected[:, :5] = 0
    factor = diagnose(expected * 1.5 + expected**2, expected, CLOSE)
    assert "tail" not in kinds(factor)
    actual = expected + 1
    actual[:, :5] = 0
    actual[:, 0] = 1  # of the right zeros some are wrong
    assert kinds(diagnose(actual, expected, CLOSE))


def test_of_whole_rows_no_border_of_their_elements_is_claimed() -> None:
    """Elements of a row share what is wrong with it: that 5 rows are the larger ones is chance."""
    expected = values(12, 4)
    rows = [1, 4, 6, 7, 11]
    expected[rows] = 30 + np.abs(expected[rows])
    actual = expected.copy()
    actual[rows] += np.arange(1, 21, dtype=np.float32).reshape(5, 4) ** 2
    found = kinds(diagnose(actual, expected, CLOSE))
    assert "whole-lines" in found and "magnitude" not in found


def test_of_elements_without_a_pattern_nothing_is_said() -> None:
    expected = values(50, 60)
    where = np.random.default_rng(1).choice(3000, 40, replace=False)
    actual = expected.copy()
    actual.reshape(-1)[where] += 1.0 + values(40, seed=2) ** 2
    assert diagnose(actual, expected, EXACT) == ()


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
    actual[-1, -1] = 3
    with np.errstate(over="ignore"):
        half = actual.astype(np.float16)
    found = diagnose(half, expected, Tolerance(1e-2, 1e-2))
    assert one(found, "one-element").numbers["index"] == [29, 59]


def test_findings_are_json() -> None:
    expected = values(30, 60)
    expected[3, 5] = np.nan
    for finding in diagnose(np.nan_to_num(expected, nan=np.inf), expected, EXACT):
        json.dumps(plain(finding.numbers), allow_nan=False)


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
            json.dumps(plain(finding.numbers), allow_nan=False)


def test_a_scale_of_values_that_are_nearly_alike_is_no_move() -> None:
    """If neighbours hardly differ, an element that is near another's value is near its own as
    well."""
    rng = np.random.default_rng(4)
    expected = 1.0 + 1e-7 * rng.normal(size=(64, 48))
    found = diagnose((1.0 + 5e-6) * expected, expected, Tolerance(0.0, 1e-6), limit=9)
    assert {finding.kind for finding in found} & {"factor", "offset"}
    moves = {"shifted", "repeated", "reversed", "transposed", "permuted", "input-copy"}
    assert not {finding.kind for finding in found} & moves
