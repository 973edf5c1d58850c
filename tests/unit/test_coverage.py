"""Coverage: cells are counted, merged and kept; gaps name what was never exercised."""

from __future__ import annotations

import json
from typing import Any

import pytest
from for_each import for_each
from msgspec.structs import replace

from gpuemu_flow.cases.coverage import HEADINGS, Cell, CountedCell, Coverage, table
from gpuemu_flow.cases.op_schema import BUILTIN_SCHEMAS, Dim, OpSchema, TensorDef
from gpuemu_flow.cases.plan import plan_cases
from gpuemu_flow.model.decoding import convert, plain
from gpuemu_flow.model.types import CORE_STRATEGIES, STRATEGIES, Case, Verdict

LAYOUTS = ("contiguous", "strided", "transposed", "offset")
REDUCTION = BUILTIN_SCHEMAS["reduction"]
TINY = OpSchema((Dim("N", (4, 7)),), (TensorDef("x", ("N",)),))


def cases(
    count: int = 24, schema: OpSchema = REDUCTION, strategies: tuple[str, ...] = STRATEGIES
) -> list[Case]:
    return plan_cases(
        schema, seed=1, dtype="float32", count=count, strategies=strategies, layouts=LAYOUTS
    )


def covered(count: int = 24, **options: Any) -> Coverage:
    coverage = Coverage()
    for case in cases(count, **options):
        coverage.add("op", case, Verdict.PASSED)
    return coverage


def gaps(coverage: Coverage, **options: Any) -> dict[str, tuple[str, ...]]:
    arguments = {
        "schema": REDUCTION,
        "dtypes": ["float32"],
        "layouts": LAYOUTS,
        "strategies": STRATEGIES,
        **options,
    }
    return {gap.aspect: gap.missing for gap in coverage.gaps("op", **arguments)}


def test_cases_are_counted_by_their_five_names() -> None:
    coverage = covered()
    assert coverage.total == 24
    case = cases()[0]
    row = ["op", "float32", case.shape_class, case.layout, case.strategy]
    assert row in [entry[:5] for entry in plain(coverage.counted)]
    assert sum(entry.judged for entry in coverage.counted) == 24


def test_what_ended_without_a_verdict_is_counted_and_exercises_nothing() -> None:
    coverage, case = Coverage(), cases()[0]
    for verdict in (Verdict.ERROR, Verdict.INCONCLUSIVE, Verdict.SKIPPED):
        coverage.add("op", case, verdict)
    row = coverage.row("op", "float32", REDUCTION, LAYOUTS, STRATEGIES)
    assert (coverage.total, row.cases, row.unjudged) == (0, 0, 3)
    assert all(met == 0 for met, _ in row.seen.values())
    assert gaps(coverage) == {"dtype": ("float32",)}
    assert Coverage.of(coverage.counted) == coverage
    assert (
        coverage.merge(coverage).row("op", "float32", REDUCTION, LAYOUTS, STRATEGIES).unjudged == 6
    )


def test_an_empty_case_is_exercised_though_nothing_of_it_can_be_compared() -> None:
    coverage, (case,) = Coverage(), cases(1)
    empty = replace(case, shape_class="empty")
    coverage.add("op", empty, Verdict.INCONCLUSIVE)
    coverage.add("op", empty, Verdict.ERROR)
    row = coverage.row("op", "float32", REDUCTION, LAYOUTS, STRATEGIES)
    assert (coverage.total, row.unjudged) == (1, 1)


def test_merging_adds_and_leaves_its_parts_alone() -> None:
    cell, other = Cell("a", "f", "c", "l", "s"), Cell("b", "f", "c", "l", "s")
    first, second = Coverage({cell: 2}), Coverage({cell: 1, other: 4})
    merged = first.merge(second)
    assert merged == Coverage({cell: 3, other: 4})
    assert merged == second.merge(first)
    assert (first.total, second.total) == (2, 5)


def test_json_and_back() -> None:
    coverage = covered()
    text = json.dumps(plain(coverage.counted))
    assert Coverage.of(convert(json.loads(text), list[CountedCell])) == coverage
    assert Coverage.of([]) == Coverage()


@for_each(
    "data",
    [
        [["a", "b", 1]],
        [["a", "b", "c", "d", "e", 1]],
        [["a", "b", "c", "d", "e", "f", 0]],
        [["a", "b", "c", "d", "e", 0, "f"]],
        [["a", "b", "c", "d", "e", -1, 0]],
        [["a", "b", "c", "d", "e", True, 0]],
        [["a", "b", "c", "d", 5, 1, 0]],
        [[]],
        7,
        None,
        "text",
        {"a": 1},
    ],
)
def test_what_is_no_coverage_is_refused(data: Any) -> None:
    with pytest.raises(ValueError):
        convert(data, list[CountedCell])


def test_the_default_24_cases_leave_no_single_gap_but_pairs() -> None:
    found = gaps(covered(24))
    assert not {"dtype", "shape_class", "layout", "strategy"} & found.keys()
    assert found["layout × strategy"]


def test_long_runs_close_the_pairs_too() -> None:
    assert gaps(covered(600)) == {}


def test_what_was_left_out_is_a_gap() -> None:
    coverage = covered(strategies=CORE_STRATEGIES)
    found = gaps(coverage)
    assert set(found["strategy"]) == set(STRATEGIES) - set(CORE_STRATEGIES)
    assert "strategy" not in gaps(coverage, strategies=["core"])
    assert gaps(coverage, dtypes=["float32", "float16"])["dtype"] == ("float16",)
    assert "expanded" in gaps(coverage, layouts=[*LAYOUTS, "expanded"])["layout"]


def test_gaps_know_which_classes_a_schema_allows() -> None:
    coverage = covered(200, schema=TINY)
    assert "shape_class" not in gaps(coverage, schema=TINY)
    assert "shape_class" in gaps(coverage)


def test_layouts_that_no_input_has_dims_for_are_no_gaps() -> None:
    every = [*LAYOUTS, "padded", "permuted"]
    coverage = covered(24, schema=TINY)
    assert "layout" not in gaps(coverage, schema=TINY, layouts=every)
    assert gaps(covered(24), layouts=every)["layout"] == ("padded",)
    row = coverage.row("op", "float32", TINY, every, STRATEGIES)
    assert row.seen["layout"] == (4, 4)


def test_another_ops_cases_close_no_gap() -> None:
    missing = covered().gaps("other", REDUCTION, ["float32"], LAYOUTS, STRATEGIES)
    assert [(gap.aspect, gap.missing) for gap in missing] == [("dtype", ("float32",))]
    assert missing[0].op == "other"


def test_a_row_and_the_table_agree() -> None:
    coverage = covered(24)
    row = coverage.row("op", "float32", REDUCTION, LAYOUTS, STRATEGIES)
    assert row.cases == 24
    assert row.seen["layout"] == (4, 4)
    assert row.seen["strategy"] == (11, 11)
    met, possible = row.seen["layout × strategy"]
    assert 0 < met < possible == 44
    lines = table([row])
    assert lines[0] == list(HEADINGS)
    assert lines[1][:3] == ["op", "float32", "24"]
    assert lines[1][5:7] == ["4/4", "11/11"]
    assert {len(line) for line in lines} == {len(HEADINGS)}
