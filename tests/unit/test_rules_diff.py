"""Differences from a baseline: what is a regression, an improvement, or not comparable."""

from __future__ import annotations

import json

import pytest
from for_each import for_each
from msgspec import to_builtins
from msgspec.structs import replace
from ptx_text import kernel_views

from gpuemu_flow.lint.diff import KernelDiff, diff_kernels
from gpuemu_flow.lint.kernel import ARCHITECTURES, KernelMetrics, occupancy

BASE = KernelMetrics(
    name="k",
    arch="sm_80",
    metric_source="cubin",
    tool_version="13.0.88",
    ptx_target="sm_80",
    registers=64,
    spill_instructions=0,
    spill_bytes=0,
    stack_bytes=0,
    shared_bytes=1024,
    instructions=1000,
    occupancy=occupancy(ARCHITECTURES[80], 256, 64, 1024),
    families={"f32": 900, "tensor": 16, "int": 84},
    opcodes={"fma.rn.f32": 900, "mma.sync": 16, "add.s32": 84},
)


def with_registers(registers: int) -> KernelMetrics:
    reached = occupancy(ARCHITECTURES[80], 256, registers, 1024)
    return replace(BASE, registers=registers, occupancy=reached)


def only(old: KernelMetrics, new: KernelMetrics, **options: object) -> KernelDiff:
    (diff,) = diff_kernels([old], [new], **options)  # type: ignore[arg-type]
    return diff


def kinds(diff: KernelDiff) -> list[tuple[str, str]]:
    return [(j.kind, j.metric) for j in diff.judgements]


def test_the_same_figures_are_unchanged() -> None:
    diff = only(BASE, BASE)
    assert (diff.status, diff.changes, diff.judgements) == ("unchanged", (), ())
    assert not diff.is_regression


@for_each(
    ("change", "expected"),
    [
        ({"spill_instructions": 2, "spill_bytes": 8}, {"spill_instructions", "spill_bytes"}),
        ({"stack_bytes": 8}, {"stack_bytes"}),
        ({"shared_bytes": 49_153}, {"shared_bytes"}),
        ({"families": {"f32": 900, "tensor": 16, "f64": 1}}, {"f64"}),
        ({"families": {"f32": 900, "tensor": 16, "generic": 1}}, {"generic"}),
        ({"families": {"f32": 900}}, {"tensor"}),
        ({"calls": {"vprintf": 1}}, {"printf"}),
        ({"calls": {"__assertfail": 1}}, {"assert"}),
        ({"opcodes": {"div.rn.f32": 1}}, {"div.rn"}),
    ],
)
def test_regressions_and_their_inverse(change: dict[str, object], expected: set[str]) -> None:
    worse = replace(BASE, **change)  # type: ignore[arg-type]
    regression = only(BASE, worse, forbidden=("div.rn",))
    assert {j.metric for j in regression.judgements if j.kind == "regression"} == expected
    improvement = only(worse, BASE, forbidden=("div.rn",))
    assert {j.metric for j in improvement.judgements if j.kind == "improvement"} == expected
    assert (regression.is_regression, regression.is_improvement) == (True, False)
    assert (improvement.is_regression, improvement.is_improvement) == (False, True)


@pytest.mark.parametrize(
    "change",
    [
        {"shared_bytes": 40_000},
        {"families": {"f32": 900, "tensor": 20}},
        {"calls": {"my_function": 3}},
        {"declared_registers": 9999},
    ],
)
def test_what_is_no_regression(change: dict[str, object]) -> None:
    assert not only(BASE, replace(BASE, **change)).is_regression  # type: ignore[arg-type]


def test_more_of_what_was_there_is_not_new() -> None:
    old = replace(BASE, families={"f64": 10}, calls={"vprintf": 1}, opcodes={"div.rn.f32": 2})
    new = replace(BASE, families={"f64": 20}, calls={"vprintf": 3}, opcodes={"div.rn.f32": 9})
    assert kinds(only(old, new, forbidden=("div.rn",))) == []


def test_fewer_resident_blocks_are_a_regression_and_more_registers_alone_a_warning() -> None:
    assert kinds(only(BASE, with_registers(80))) == [("regression", "occupancy")]
    assert kinds(only(with_registers(80), BASE)) == [("improvement", "occupancy")]
    assert kinds(only(with_registers(57), BASE)) == [("warning", "registers")]
    assert kinds(only(BASE, with_registers(57))) == [("improvement", "registers")]


def test_an_estimate_only_warns_of_fewer_blocks() -> None:
    old = replace(BASE, metric_source="estimate")
    new = replace(with_registers(80), metric_source="estimate")
    assert kinds(only(old, new)) == [("warning", "occupancy")]


def test_another_block_size_is_no_change_of_occupancy() -> None:
    smaller = replace(BASE, occupancy=occupancy(ARCHITECTURES[80], 1024, 64, 1024))
    assert not only(BASE, smaller).is_regression


def test_instruction_count_is_information_beyond_five_percent() -> None:
    assert kinds(only(BASE, replace(BASE, instructions=1050))) == []
    assert kinds(only(BASE, replace(BASE, instructions=1051))) == [("info", "instructions")]


def test_better_and_worse_at_once_are_both_reported() -> None:
    diff = only(replace(BASE, stack_bytes=16), replace(BASE, families={"f32": 900}))
    assert (diff.is_regression, diff.is_improvement) == (True, True)


@pytest.mark.parametrize(
    ("change", "part"),
    [({"metric_source": "ptxas"}, "ptxas"), ({"ptx_target": "sm_75"}, "sm_75")],
)
def test_different_sources_and_targets_are_refused_with_the_reason(
    change: dict[str, str], part: str
) -> None:
    diff = only(replace(BASE, **change), BASE)  # type: ignore[arg-type]
    assert (diff.status, diff.changes) == ("refused", ())
    assert part in diff.reason
    assert not diff.is_regression


def test_another_architecture_is_new_and_says_why() -> None:
    found = diff_kernels([BASE], [replace(BASE, arch="sm_90")])
    assert [(d.arch, d.status) for d in found] == [("sm_90", "new"), ("sm_80", "missing")]
    assert "sm_80" in found[0].reason


def test_new_and_missing_kernels() -> None:
    found = diff_kernels([BASE, replace(BASE, name="gone")], [BASE, replace(BASE, name="fresh")])
    assert [(d.name, d.status) for d in found] == [
        ("k", "unchanged"),
        ("fresh", "new"),
        ("gone", "missing"),
    ]


def test_another_compiler_is_a_warning() -> None:
    diff = only(replace(BASE, tool_version="12.9.86"), BASE)
    assert kinds(diff) == [("warning", "tool_version")]
    assert diff.status == "unchanged"


def test_changes_have_old_new_delta_and_percent() -> None:
    diff = only(BASE, with_registers(80))
    by_name = {c.metric: c for c in diff.changes}
    assert (by_name["registers"].delta, by_name["registers"].percent) == (16, 25.0)
    assert set(by_name) == {"registers", "occupancy.blocks", "occupancy.fraction"}
    assert diff.occupancy_limited_by == ("registers", "registers")
    json.dumps(to_builtins(diff))


def test_an_unknown_old_value_has_no_delta() -> None:
    (change,) = only(replace(BASE, spill_bytes=None), replace(BASE, spill_bytes=4)).changes
    assert (change.old, change.delta, change.percent) == (None, None, None)


def test_families_are_ordered_by_the_size_of_their_change() -> None:
    new = replace(BASE, families={"f32": 890, "tensor": 16, "int": 184, "branches": 2})
    diff = only(BASE, new)
    assert [(c.metric, c.delta) for c in diff.families] == [
        ("int", 100),
        ("f32", -10),
        ("branches", 2),
    ]


def test_real_kernels_relaxed_bounds_end_the_spills() -> None:
    views = kernel_views("forced_spills")
    forced = views["forced_spills_kernel"].metrics
    relaxed = replace(views["relaxed_spills_kernel"].metrics, name=forced.name)
    better = only(forced, relaxed)
    assert {j.metric for j in better.judgements if j.kind == "improvement"} >= {
        "spill_instructions",
        "stack_bytes",
    }
    assert only(relaxed, forced).is_regression
