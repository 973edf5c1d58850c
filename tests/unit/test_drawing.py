"""From outputs to figures: the worst of what a cell holds is shown, and nothing is lost."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from for_each import for_each

from gpuemu_flow.judge.judge import Criteria
from gpuemu_flow.model.types import Case, Tolerance
from gpuemu_flow.numerics.checked_output import Policy
from gpuemu_flow.numerics.contracts import CaseContracts
from gpuemu_flow.report import pictures
from gpuemu_flow.report.minimal import one_line
from gpuemu_flow.report.pictures import draw, heat_map

CASE = Case(0, 0, "float32", "contiguous", "normal", ())
TERMS = Criteria(
    {"float32": Tolerance(1e-3, 0.0)},
    Policy(),
    {"y": "float32"},
    CaseContracts((), {}, CASE, {}, {}),
)


@for_each(
    ("shape", "rows", "columns"),
    [((), 1, 1), ((5,), 1, 5), ((1000,), 16, 64), ((1 << 20,), 32, 64), ((3, 4), 3, 4),
     ((2, 3, 4), 6, 4), ((5, 17, 129), 32, 64), ((100_000, 1), 32, 1), ((1, 1, 1, 7), 1, 7)],
)  # fmt: skip
def test_every_shape_folds_and_its_worst_element_is_seen(
    shape: tuple[int, ...], rows: int, columns: int
) -> None:
    for place in {0, np.prod(shape, dtype=int) // 2, np.prod(shape, dtype=int) - 1}:
        share = np.full(shape, 0.05)
        share.reshape(-1)[place] = 5000.0
        found, words = heat_map(share)
        assert (len(found), {len(row) for row in found}) == (rows, {columns})
        assert "".join(found).count("6") == 1
        assert set("".join(found)) <= {"0", "1", "6"}
        assert words


def test_levels_end_where_they_say() -> None:
    share = np.array([0.0, 0.1, 0.11, 0.5, 1.0, 1.0001, 10.0, 1000.0, 1001.0, np.inf])
    assert heat_map(share)[0] == ("0122344566",)


def test_a_drawing_agrees_with_the_verdict() -> None:
    expected = np.arange(12, dtype=np.float32).reshape(3, 4)
    actual = expected.copy()
    actual[1, 2] += 0.5
    actual[2, 3] = np.nan
    actual[0, 1] += 5e-4
    found = draw("y", {"y": actual}, {"y": expected}, {}, TERMS)
    assert (found.elements, found.failing) == (12, 2)
    assert found.rows == ("0200", "0050", "0006")


def test_what_cannot_be_drawn_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = np.zeros((0, 3), np.float32)
    assert draw("y", {"y": nothing}, {"y": nothing}, {}, TERMS).note == (
        "an output without elements"
    )
    monkeypatch.setattr(pictures, "MAX_ELEMENTS", 5)
    many = np.zeros(6, np.float32)
    assert "too many to draw" in draw("y", {"y": many}, {"y": many}, {}, TERMS).note


def test_a_large_input_that_is_nearly_all_one_value_names_the_others() -> None:
    """Zeros around the one element that matters would hide it between dots."""
    x = np.zeros((1, 1, 129), np.float32)
    assert one_line(x) == "float32[1, 1, 129]: 0.0 everywhere"
    x[0, 0, 128], x[0, 0, 64] = 1.5, np.nan
    named = "float32[1, 1, 129]: 0.0 everywhere but [0, 0, 64] = nan, [0, 0, 128] = 1.5"
    assert one_line(x) == named
    ones = np.ones(100, ml_dtypes.bfloat16)
    ones[7] = 2
    assert one_line(ones) == "bfloat16[100]: 1.0 everywhere but [7] = 2.0"
    labels = np.full(100, -1, np.int32)
    labels[3] = 5
    assert one_line(labels) == "int32[100]: -1 everywhere but [3] = 5"
    assert one_line(np.full(100, True)) == "bool[100]: True everywhere"
    assert one_line(np.arange(100.0)) == "float64[100]"
    assert one_line(np.zeros((0, 3), np.float32)) == "[]"
    assert one_line(np.array([10.0, np.inf, 1e30, -0.0, np.nan])) == "[10., inf, 1e+30, -0., nan]"
    assert one_line(np.array([[1.0, 0.5]], np.float32)) == "[[1., 0.5]]"
