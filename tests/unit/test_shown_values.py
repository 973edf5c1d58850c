"""The place of a failure, the values there if there are any, and what they have to agree with."""

from __future__ import annotations

import numpy as np
from for_each import for_each
from msgspec.structs import replace
from report_samples import failed, results_of

from gpuemu_flow.cases.conditions import Rule, meets
from gpuemu_flow.judge.results import Minimal, MinimalInput
from gpuemu_flow.judge.verdicts import with_violations
from gpuemu_flow.model.types import Case, CheckResult, Failure, FailureKind, InputSpec, Verdict
from gpuemu_flow.model.verdicts import Condition, shown_values
from gpuemu_flow.report.text import Style, render_failures, says


def shown(**fields: object) -> str:
    return shown_values(Failure(FailureKind.UNWRITTEN, "text", **fields))  # type: ignore[arg-type]


def test_an_element_without_values_has_its_place_alone() -> None:
    assert shown(output="y", index=(1, 2)) == "first at y[1, 2]"


def test_one_value_is_enough_to_show_both() -> None:
    assert shown(index=(), expected=2.0) == "output[]: actual None, expected 2"
    assert shown(index=(3,), actual=1.5, expected=2.0) == "output[3]: actual 1.5, expected 2"


def test_an_element_that_breaks_an_invariant_was_compared_with_nothing() -> None:
    assert shown(index=(2,), actual=-1.5) == "output[2]: actual -1.5"


def test_without_a_place_there_is_nothing_to_show() -> None:
    assert shown(actual=1.0, expected=2.0) == ""


@for_each(
    ("kind", "value", "met"),
    [
        ("above", 16, (False, True)),
        ("at_most", 16, (True, False)),
        ("value_above", 24, (False, True)),
        ("not_multiple", 8, (True, False)),
        ("not_multiple", 4, (False, False)),
        ("larger", "M", (True, True)),
        ("equal", "M", (False, False)),
    ],
)
def test_a_small_case_is_held_against_a_condition_on_sizes(
    kind: str, value: int | str, met: tuple[bool, bool]
) -> None:
    for size, expected in zip((12, 32), met, strict=True):
        spec = InputSpec("x", (3, size), "float32")
        case = Case(0, 1, "float32", "contiguous", "normal", (spec,), dims=(("M", 3), ("N", size)))
        assert meets(case, {}, Condition(kind, "N", value, "")) is expected


@for_each(
    ("kind", "met"),
    [
        ("negative", (True, False)),
        ("nan", (False, True)),
        ("not_finite", (False, True)),
        ("infinite", (False, False)),
    ],
)
def test_a_small_case_is_held_against_a_condition_on_its_own_values(
    kind: str, met: tuple[bool, bool]
) -> None:
    """Not on those that were drawn for the case that it comes from."""
    spec = InputSpec("x", (2,), "float32", strategy="special")
    case = Case(0, 1, "float32", "contiguous", "special", (spec,))
    for values, expected in zip(([0.0, -1.0], [1.0, np.nan]), met, strict=True):
        assert meets(case, {"x": np.array(values)}, Condition(kind, "x", "", "")) is expected


def test_beside_a_failure_a_case_without_a_verdict_is_said_in_a_line() -> None:
    wrong = failed("total", 1)
    unjudged = failed("total", 2, verdict=Verdict.INCONCLUSIVE, notes=("no verdict on 3 of 15",))
    page = "\n".join(render_failures(results_of([wrong, unjudged]), Style()))
    assert page.count("inconclusive total: ") == 1 and "no verdict on 3" not in page
    assert page.count("reproduce: ") == 2
    alone = "\n".join(render_failures(results_of([unjudged]), Style()))
    assert "no verdict on 3 of 15" in alone


def test_the_values_that_stand_first_are_not_said_again() -> None:
    wrong = failed("total", 1, "3 of 15 elements are NaN")
    (failure,) = wrong.result.failures
    minimal = Minimal(
        {"x": MinimalInput("float32", (3, 5), "x")}, "", failure.output, failure.index,
        failure.expected, failure.actual, says(failure, "float32"),
    )  # fmt: skip
    key = ("total", 1, wrong.case.dtype)
    page = "\n".join(render_failures(results_of([wrong]), Style(), {key: minimal}))
    assert page.count("expected 2") == 1 and "3 of 15 elements are NaN" in page
    other = replace(minimal, index=(0, 0))
    page = "\n".join(render_failures(results_of([wrong]), Style(), {key: other}))
    assert "output[1, 2]: actual 2.5, expected 2" in page


def test_where_results_are_wrong_is_said_of_the_case_that_tells_most_of_it() -> None:
    cases = [failed("total", seed, notes=(f"note {seed}",)) for seed in (1, 2, 3)]
    sizes = (((1, 1), "normal"), ((9, 40), "normal"), ((9, 80), "sparse"))
    cases = [
        replace(
            each, case=replace(each.case, inputs=(InputSpec("x", shape, "float32", strategy=how),))
        )
        for each, (shape, how) in zip(cases, sizes, strict=True)
    ]
    page = "\n".join(render_failures(results_of(cases), Style()))
    assert "smallest: float32  x[1, 1]" in page and "larger: float32  x[9, 40]" in page
    assert "note 2" in page and "note 1" not in page and "note 3" not in page


def test_accesses_out_of_bounds_come_before_what_may_follow_from_them() -> None:
    kinds = (FailureKind.UNINITIALIZED_READ, FailureKind.RACE, FailureKind.OUT_OF_BOUNDS)
    result = with_violations(CheckResult(Verdict.FAILED), [Failure(kind, "") for kind in kinds])
    assert [one.kind for one in result.failures] == [kinds[2], *kinds[:2]]


def test_few_allowed_sizes_that_two_conditions_share_tell_of_neither() -> None:
    """With C in (1, 3, 33) and B in (1, 4), only C = 33 is larger than B where both count."""
    larger = Rule("larger", "C", "B")
    assert larger.may_be_taken_for(Rule("above", "C", 33, 3))
    assert not larger.may_be_taken_for(larger)


def test_of_a_listed_scalar_the_values_are_named() -> None:
    rule = Rule("value_below", "alpha", 0.5, 1.0)
    told = rule.condition(whole=False, listed={-2.0: "-2", 0.5: "0.5", 1.0: "1"})
    assert told.sentence == "alpha is -2 or 0.5 (not when it is 1)"
    drawn = rule.condition(whole=False).sentence
    assert drawn == "alpha is 0.5 or less (not when it is 1 or more)"
