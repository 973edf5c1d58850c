"""Triggering features: the planted cause is named, simple before pairs, and nothing from noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from gpuemu_flow.cases.conditions import PREFERENCE, Condition, conditions_of, sizes_of
from gpuemu_flow.cases.features import TriggeringFeature, group
from gpuemu_flow.cases.op_schema import BUILTIN_SCHEMAS, fixed_shapes_schema
from gpuemu_flow.cases.plan import plan_cases
from gpuemu_flow.types import STRATEGIES, Case, FailureKind, InputSpec

Bug = Callable[[Case], bool]
LAYOUTS = ("contiguous", "strided", "transposed", "offset")


def cases(op: str = "matmul", count: int = 300) -> list[Case]:
    return plan_cases(
        BUILTIN_SCHEMAS[op],
        seed=1,
        dtype="float32",
        count=count,
        strategies=STRATEGIES,
        layouts=LAYOUTS,
    )


def parted(bug: Bug, among: Sequence[Case]) -> tuple[list[Case], list[Case]]:
    return [c for c in among if bug(c)], [c for c in among if not bug(c)]


def triggering_feature(
    failing: Sequence[Case], passing: Sequence[Case]
) -> TriggeringFeature | None:
    groups = group([(case, FailureKind.TOLERANCE) for case in failing], passing)
    assert len(groups) <= 1, "the cases were divided"
    return groups[0].feature if groups else None


def trigger(bug: Bug, among: Sequence[Case] | None = None) -> TriggeringFeature:
    failing, passing = parted(bug, among or cases())
    assert failing, "the bug shows in no case"
    assert passing, "the bug shows in every case"
    feature = triggering_feature(failing, passing)
    assert feature is not None
    assert feature.failing == len(failing)
    return feature


def dim(case: Case, name: str) -> int:
    return dict(case.dims)[name]


def of(case: Case, name: str) -> InputSpec:
    return next(spec for spec in case.inputs if spec.name == name)


SINGLE: list[tuple[Bug, Condition]] = [
    (lambda c: dim(c, "N") % 128 != 0, Condition("not_multiple", "N", 128)),
    (lambda c: dim(c, "K") % 8 != 0, Condition("not_multiple", "K", 8)),
    (lambda c: dim(c, "K") % 2 == 1, Condition("odd", "K", "")),
    (lambda c: dim(c, "K") > 64, Condition("above", "K", 64)),
    (lambda c: dim(c, "K") <= 16, Condition("at_most", "K", 16)),
    (lambda c: dim(c, "M") == 1, Condition("size", "M", 1)),
    (lambda c: dim(c, "K") == dim(c, "N") > 1, Condition("equal", "K and N", "")),
    (lambda c: of(c, "a").strategy == "special", Condition("strategy", "a", "special")),
    (lambda c: c.strategy == "special", Condition("strategy", "", "special")),
    (lambda c: of(c, "b").layout == "strided", Condition("layout", "b", "strided")),
    (lambda c: of(c, "b").layout != "contiguous", Condition("not_layout", "b", "contiguous")),
    (lambda c: dim(c, "K") == 520, Condition("maximum", "K", 520)),
]


@pytest.mark.parametrize(("bug", "condition"), SINGLE, ids=lambda v: getattr(v, "sentence", ""))
def test_a_single_cause_is_named_as_such(bug: Bug, condition: Condition) -> None:
    feature = trigger(bug)
    assert feature.conditions == (condition,)
    assert feature.exceptions == 0


PAIRS: list[tuple[Bug, set[Condition]]] = [
    (
        lambda c: dim(c, "K") % 32 != 0 and dim(c, "K") > 32,
        {Condition("not_multiple", "K", 32), Condition("above", "K", 32)},
    ),
    (
        lambda c: of(c, "a").strategy == "negative" and dim(c, "K") > 16,
        {Condition("strategy", "a", "negative"), Condition("above", "K", 16)},
    ),
    (
        lambda c: of(c, "a").layout == "transposed" and dim(c, "M") > 16,
        {Condition("layout", "a", "transposed"), Condition("above", "M", 16)},
    ),
]


@pytest.mark.parametrize(("bug", "conditions"), PAIRS)
def test_two_conditions_are_named_only_where_both_are_needed(
    bug: Bug, conditions: set[Condition]
) -> None:
    feature = trigger(bug, cases(count=600))
    assert set(feature.conditions) == conditions
    assert feature.exceptions == 0


def test_the_dtype_is_a_feature_across_runs() -> None:
    other = plan_cases(
        BUILTIN_SCHEMAS["matmul"],
        seed=1,
        dtype="float16",
        count=60,
        strategies=STRATEGIES,
        layouts=LAYOUTS,
    )
    feature = trigger(lambda c: c.dtype == "float16", [*cases(count=60), *other])
    assert feature.conditions == (Condition("dtype", "", "float16"),)


def test_axes_stand_for_dims_where_the_schema_has_none() -> None:
    schema = fixed_shapes_schema(["x"], [(4, 7), (4, 8), (3, 8), (3, 9), (5, 16), (5, 17)])
    among = plan_cases(
        schema, seed=1, dtype="float32", count=40, strategies=["normal"], layouts=["contiguous"]
    )
    assert sizes_of(among[0]).keys() == {"x[-2]", "x[-1]"}
    feature = trigger(lambda c: c.inputs[0].shape[-1] % 8 != 0, among)
    assert feature.conditions[0].subject == "x[-1]"
    assert feature.conditions[0].kind == "not_multiple"


def test_a_cause_with_exceptions_counts_them() -> None:
    among = cases()
    special = [c for c in among if c.strategy == "special"]
    feature = trigger(lambda c: c in special[::2], among)
    assert feature.conditions[0] == Condition("strategy", "", "special")
    assert 0.4 < feature.failing / (feature.failing + feature.exceptions) < 0.6
    assert f"{feature.failing} of {feature.failing + feature.exceptions} such cases" in (
        feature.sentence
    )


def test_a_likelier_condition_may_have_one_exception_more() -> None:
    among = cases()
    special = [c for c in among if c.strategy == "special"]
    failing = [replace(c, shape_class="odd one") for c in special[1:]]
    assert len(failing) > 20
    feature = triggering_feature(failing, [c for c in among if c not in special[1:]])
    assert feature is not None
    assert feature.conditions == (Condition("strategy", "", "special"),)
    assert feature.exceptions == 1


def test_noise_has_no_feature() -> None:
    failing, passing = parted(lambda c: (c.seed >> 20) % 5 == 0, cases())
    assert len(failing) > 30
    assert triggering_feature(failing, passing) is None


def test_without_cases_of_both_kinds_there_is_no_feature() -> None:
    among = cases(count=20)
    assert triggering_feature(among, []) is None
    assert triggering_feature([], among) is None


def test_the_choice_does_not_depend_on_the_order_of_cases() -> None:
    failing, passing = parted(lambda c: dim(c, "K") % 32 != 0 and dim(c, "K") > 32, cases())
    first = triggering_feature(failing, passing)
    assert triggering_feature(failing[::-1], passing[::-1]) == first


def test_every_condition_has_a_sentence_and_a_place_in_the_order() -> None:
    seen = {condition.kind for case in cases() for condition in conditions_of(case, {"N": 260})}
    assert seen <= set(PREFERENCE)
    for case in cases(count=30):
        for condition in conditions_of(case):
            assert condition.sentence
            assert "{" not in condition.sentence
    assert Condition("strategy", "", "special").sentence == "strategy special"
    assert Condition("strategy", "x", "special").sentence == "strategy special of x"


def test_groups_by_kind_smallest_first() -> None:
    among = cases()
    nan = [c for c in among if c.strategy == "special"]
    wrong = [c for c in among if dim(c, "N") % 128 and c.strategy != "special"]
    passing = [c for c in among if c not in nan and c not in wrong]
    failures = [(c, FailureKind.NAN) for c in nan] + [(c, FailureKind.TOLERANCE) for c in wrong]
    groups = group(failures, passing)
    by_kind = {g.kind: g for g in groups}
    assert len(groups) == 2
    assert sum(len(g.members) for g in groups) == len(failures)
    named = by_kind[FailureKind.NAN].feature
    assert named is not None
    assert named.conditions == (Condition("strategy", "", "special"),)
    named = by_kind[FailureKind.TOLERANCE].feature
    assert named is not None
    assert Condition("not_multiple", "N", 128) in named.conditions
    for g in groups:
        sizes = [case.numel for case in g.members]
        assert sizes == sorted(sizes)
    assert groups[0].members[0].numel <= groups[1].members[0].numel


def test_two_causes_of_one_kind_are_parted() -> None:
    failing, passing = parted(
        lambda c: of(c, "a").strategy == "special" or of(c, "b").layout == "strided", cases()
    )
    groups = group([(c, FailureKind.TOLERANCE) for c in failing], passing)
    named = {g.feature.conditions[0] for g in groups if g.feature is not None}
    assert {Condition("strategy", "a", "special"), Condition("layout", "b", "strided")} <= named
    assert sum(len(g.members) for g in groups) == len(failing)


def test_groups_without_passing_cases_still_hold_all() -> None:
    among = cases(count=20)
    groups = group([(c, FailureKind.NAN) for c in among])
    assert [len(g.members) for g in groups] == [20]
    assert groups[0].feature is None
    assert group([]) == []
