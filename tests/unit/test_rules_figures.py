"""Rules that compare figures with limits: sources, severities, warnings below the limit."""

from __future__ import annotations

import msgspec
import pytest
from for_each import for_each
from msgspec import to_builtins
from msgspec.structs import replace
from ptx_text import broken_rules, kernel_views, lint, view_of, with_sass

from gpuemu_flow.lint.kernel import (
    ARCHITECTURES,
    KernelMetrics,
    KernelPolicy,
    KernelRecord,
    KernelView,
    occupancy,
    opcode_matches,
)
from gpuemu_flow.model.types import Verdict


def view(**figures: object) -> KernelView:
    metrics = KernelMetrics("k", "sm_80", **{"metric_source": "cubin", **figures})  # type: ignore[arg-type]
    return KernelView("k", "k.ptx", "sm_80", metrics)


def severities(subject: KernelView, policy: KernelPolicy, rule: str) -> list[str]:
    return [v.severity for v in lint(subject, policy).violations if v.rule == rule]


def explicit(**limits: int | float) -> KernelPolicy:
    return KernelPolicy(**limits, explicit=frozenset(limits))  # type: ignore[arg-type]


@for_each(
    ("figures", "policy", "expected"),
    [
        ({"spill_instructions": 0, "spill_bytes": 0}, KernelPolicy(), []),
        ({"spill_instructions": 1, "spill_bytes": 4}, KernelPolicy(), ["warning"]),
        ({"spill_instructions": 1, "spill_bytes": 4}, explicit(max_spills=0), ["error"]),
        ({"spill_instructions": 8, "spill_bytes": 32}, explicit(max_spills=8), []),
        ({"spill_instructions": 9, "spill_bytes": 36}, explicit(max_spills=8), ["error"]),
        (
            {"spill_instructions": 2, "spill_bytes": 32},
            explicit(max_spills=2, max_spill_bytes=16),
            ["error"],
        ),
        (
            {"spill_instructions": 5, "spill_bytes": 20},
            replace(explicit(max_spills=8), spills_warn_above=4),
            ["warning"],
        ),
        ({"metric_source": "ptxas", "spill_bytes": 4}, explicit(max_spills=0), ["error"]),
        ({"metric_source": "ptxas", "spill_bytes": 64}, explicit(max_spills=4), []),
        ({"metric_source": "ptxas", "spill_bytes": 80}, explicit(max_spills=4), ["error"]),
        ({"metric_source": "estimate", "spill_instructions": 9}, explicit(max_spills=0), []),
    ],
)
def test_spills(figures: dict[str, object], policy: KernelPolicy, expected: list[str]) -> None:
    assert severities(view(**figures), policy, "real-spills") == expected


def test_unknown_spills_are_unchecked_and_not_passed_over() -> None:
    for subject in (view(spill_instructions=None), view_of("ret;")):
        assert "real-spills" in {u.rule for u in lint(subject).unchecked}
    assert "real-spills" not in {
        u.rule for u in lint(view(spill_instructions=0, spill_bytes=0)).unchecked
    }


def test_local_loads_in_ptx_are_no_spills() -> None:
    assert "real-spills" not in broken_rules(view_of("ld.local.u32 %r1, [%rd1]; ret;"))


@for_each(
    ("figures", "policy", "expected"),
    [
        ({"stack_bytes": 0}, KernelPolicy(), []),
        ({"stack_bytes": 8}, KernelPolicy(), ["warning"]),
        ({"stack_bytes": 8}, explicit(max_local_memory_bytes=0), ["error"]),
        ({"stack_bytes": 8}, explicit(max_local_memory_bytes=8), []),
        (
            {"stack_bytes": 8},
            replace(explicit(max_local_memory_bytes=16), local_memory_warn_above=4),
            ["warning"],
        ),
        (
            {"metric_source": "estimate", "local_bytes": 8},
            explicit(max_local_memory_bytes=0),
            ["info"],
        ),
        ({"metric_source": "estimate", "local_bytes": 0}, explicit(max_local_memory_bytes=0), []),
    ],
)
def test_local_memory(
    figures: dict[str, object], policy: KernelPolicy, expected: list[str]
) -> None:
    assert severities(view(**figures), policy, "local-memory") == expected


def test_recursion_has_no_known_stack() -> None:
    subject = replace(view(stack_bytes=0), recursive=True)
    assert severities(subject, KernelPolicy(), "local-memory") == ["warning"]


@for_each(
    ("figures", "policy", "expected"),
    [
        ({"registers": 128}, KernelPolicy(), []),
        ({"registers": 129}, KernelPolicy(), ["warning"]),
        ({"registers": 65}, explicit(max_registers=64), ["error"]),
        ({"registers": 64}, explicit(max_registers=64), []),
        (
            {"registers": 60},
            replace(explicit(max_registers=64), registers_warn_above=56),
            ["warning"],
        ),
        ({"metric_source": "estimate", "registers": 70}, explicit(max_registers=64), ["warning"]),
        ({"metric_source": "estimate", "registers": 83}, explicit(max_registers=64), ["warning"]),
        ({"metric_source": "estimate", "registers": 84}, explicit(max_registers=64), ["error"]),
        ({"registers": 40, "declared_registers": 9999}, explicit(max_registers=64), []),
    ],
)
def test_registers(figures: dict[str, object], policy: KernelPolicy, expected: list[str]) -> None:
    assert severities(view(**figures), policy, "register-limit") == expected


def test_occupancy_limit() -> None:
    limits = ARCHITECTURES[80]
    stated = view(registers=64, occupancy=occupancy(limits, 256, 64))
    assumed = view(registers=64, occupancy=occupancy(limits, 256, 64, assumed_threads=True))
    assert severities(stated, explicit(min_occupancy=0.6), "register-limit") == ["error"]
    assert severities(assumed, explicit(min_occupancy=0.6), "register-limit") == ["warning"]
    assert severities(stated, explicit(min_occupancy=0.5), "register-limit") == []


@pytest.mark.parametrize(
    ("figures", "broken"),
    [
        ({"registers": 64}, False),
        ({"registers": 65}, True),
        ({"registers": 200, "metric_source": "estimate"}, False),
        ({"registers": 200, "occupancy": occupancy(ARCHITECTURES[80], 128, 200)}, False),
        (
            {
                "registers": 200,
                "occupancy": occupancy(ARCHITECTURES[80], 128, 200, assumed_threads=True),
            },
            True,
        ),
    ],
)
def test_a_block_of_1024_threads_that_does_not_fit(
    figures: dict[str, object], broken: bool
) -> None:
    assert ("no-full-block" in broken_rules(view(**figures))) == broken


def test_real_kernels_without_launch_bounds() -> None:
    assert "no-full-block" in broken_rules(kernel_views("many_registers")["many_registers_kernel"])
    assert "no-full-block" not in broken_rules(kernel_views("several_kernels")["scale_kernel"])
    assert "no-full-block" not in broken_rules(
        kernel_views("forced_spills")["relaxed_spills_kernel"]
    )


def test_shared_memory_limit_counts_known_dynamic_memory() -> None:
    policy = KernelPolicy(max_shared_memory=1000)
    assert "shared-memory-limit" not in broken_rules(view(shared_bytes=1000), policy)
    assert "shared-memory-limit" in broken_rules(view(shared_bytes=1001), policy)
    assert "shared-memory-limit" in broken_rules(
        view(shared_bytes=900, dynamic_shared_bytes=200), policy
    )
    assert "shared-memory-limit" in {u.rule for u in lint(view(), policy).unchecked}


def test_instruction_limit() -> None:
    policy = KernelPolicy(max_instructions=10)
    assert "instruction-limit" not in broken_rules(view(instructions=10), policy)
    assert "instruction-limit" in broken_rules(view(instructions=11), policy)
    assert "instruction-limit" in {u.rule for u in lint(view(), policy).unchecked}


@for_each(
    ("pattern", "opcode", "matches"),
    [
        ("f64", "add.rn.f64", True),
        ("f64", "cvt.rn.f32.f64", True),
        ("f64", "mma.m8n8k4.f64x2", False),
        ("ld.local", "ld.local.u32", True),
        ("ld.local", "ld.volatile.local.u32", False),
        ("ld.*.local", "ld.volatile.local.u32", True),
        (".f64", "add.f64", True),
        ("add", "add.s32", True),
        ("add", "atom.global.add.u32", True),
        ("add", "madd.s32", False),
        ("div.rn", "div.rn.f32", True),
        ("bar.sync", "bar.sync", True),
        ("LDG.E", "LDG.E.128", True),
        ("FADD", "FADD.FTZ", True),
        ("FADD", "FFMA", False),
        ("", "add", False),
        ("...", "add", False),
        ("a.b.c.d", "a.b", False),
    ],
)
def test_patterns_match_by_segments(pattern: str, opcode: str, matches: bool) -> None:
    assert opcode_matches(pattern, opcode) is matches


@pytest.mark.parametrize(
    ("pattern", "kernel", "broken"),
    [
        ("f64", "accidental_f64_kernel", True),
        ("f64", "meant_f32_kernel", False),
        ("mul.f32", "meant_f32_kernel", False),
        ("fma.rn.f32", "meant_f32_kernel", True),
        ("FMA", "meant_f32_kernel", False),
    ],
)
def test_forbidden_instructions_on_real_kernels(pattern: str, kernel: str, broken: bool) -> None:
    subject = kernel_views("accidental_f64")[kernel]
    policy = KernelPolicy(forbidden_instructions=(pattern,))
    assert ("forbidden-instruction" in broken_rules(subject, policy)) == broken


def test_forbidden_words_that_programmers_write() -> None:
    prints = kernel_views("printf_left_in")
    policy = KernelPolicy(forbidden_instructions=("printf",))
    assert "forbidden-instruction" in broken_rules(prints["printf_left_in_kernel"], policy)
    assert "forbidden-instruction" not in broken_rules(prints["printf_removed_kernel"], policy)
    barrier = KernelPolicy(forbidden_instructions=("__syncthreads",))
    assert "forbidden-instruction" in broken_rules(
        kernel_views("softmax")["softmax_kernel"], barrier
    )
    spill = KernelPolicy(forbidden_instructions=("spill",))
    spills = kernel_views("forced_spills")
    assert "forbidden-instruction" in broken_rules(spills["forced_spills_kernel"], spill)
    assert "forbidden-instruction" not in broken_rules(spills["relaxed_spills_kernel"], spill)


def test_forbidden_machine_instructions_need_a_listing() -> None:
    policy = KernelPolicy(forbidden_instructions=("STL",))
    assert "forbidden-instruction" in {u.rule for u in lint(view_of("ret;"), policy).unchecked}
    listed = with_sass(view_of("ret;"), {"STL.64": 2, "EXIT": 1})
    found = [v for v in lint(listed, policy).violations if v.rule == "forbidden-instruction"]
    assert [v.actual for v in found] == [2]


def test_a_forbidden_instruction_is_shown_where_it_stands() -> None:
    subject = kernel_views("accidental_f64")["accidental_f64_kernel"]
    (found,) = lint(subject, KernelPolicy(forbidden_instructions=("fma.rn.f64",))).violations[-1:]
    assert (found.file, found.line) == ("scripts/kernels/accidental_f64.cu", 6)


@pytest.mark.parametrize(
    ("pattern", "broken"),
    [
        ("mma.sync", False),
        ("wmma.mma", False),
        ("cp.async", True),
        ("matmul_tensor", False),
        ("softmax", True),
        ("HMMA", False),  # not checked: no listing
    ],
)
def test_required_patterns(pattern: str, broken: bool) -> None:
    subject = kernel_views("matmul_tensor")["matmul_tensor_kernel"]
    patterns = (pattern,) if pattern != "mma.sync" else ("mma.sync",)
    assert (
        "required-instruction" in broken_rules(subject, KernelPolicy(required_patterns=patterns))
    ) == broken


def test_required_machine_instructions() -> None:
    policy = KernelPolicy(required_patterns=("HMMA",))
    listed = with_sass(view_of("ret;"), {"FADD": 2})
    assert "required-instruction" in broken_rules(listed, policy)
    assert "required-instruction" in {u.rule for u in lint(view_of("ret;"), policy).unchecked}


def test_verdict_depends_on_errors_alone() -> None:
    spilling = kernel_views("forced_spills")["forced_spills_kernel"]
    assert lint(spilling).verdict is Verdict.PASSED
    assert lint(spilling, explicit(max_spills=0)).verdict is Verdict.FAILED
    silenced = replace(explicit(max_spills=0), severities={"real-spills": "off"})
    assert lint(spilling, silenced).verdict is Verdict.PASSED
    assert "real-spills" not in broken_rules(spilling, silenced)
    raised = KernelPolicy(severities={"real-spills": "error"})
    assert lint(spilling, raised).verdict is Verdict.FAILED


def test_an_allowed_violation_stays_visible_and_does_not_fail() -> None:
    spilling = kernel_views("forced_spills")["forced_spills_kernel"]
    policy = replace(explicit(max_spills=0), allow={"real-spills": "measured: faster so"})
    result = lint(spilling, policy)
    assert result.verdict is Verdict.PASSED
    (found,) = [v for v in result.violations if v.rule == "real-spills"]
    assert found.allowed == "measured: faster so"
    assert to_builtins(found)["allowed"] == "measured: faster so"


def test_a_cubin_alone_leaves_the_ptx_rules_unchecked() -> None:
    bare = replace(view(registers=8, spill_instructions=0), has_ptx=False)
    unchecked = {u.rule for u in lint(bare).unchecked}
    assert {"accidental-f64", "debug-call", "divergent-barrier", "debug-build"} <= unchecked
    assert "real-spills" not in unchecked


def test_json_of_a_kernel_has_the_documented_fields() -> None:
    subject = kernel_views("forced_spills")["forced_spills_kernel"]
    data = to_builtins(lint(subject))
    assert set(data) >= {
        "name",
        "file",
        "arch",
        "metric_source",
        "metrics",
        "violations",
        "verdict",
    }
    assert set(data["metrics"]) == {
        "registers", "spill_instructions", "spill_bytes", "stack_bytes", "local_bytes",
        "shared_bytes", "declared_registers", "max_live", "instructions", "occupancy", "families",
        "sass",
    }  # fmt: skip
    assert set(data["violations"][0]) == {
        "rule", "severity", "message", "file", "line", "actual", "limit",
    }  # fmt: skip


def test_a_record_is_what_its_json_says() -> None:
    for name in ("forced_spills", "several_kernels"):
        for subject in kernel_views(name).values():
            record = lint(subject)
            assert msgspec.json.decode(msgspec.json.encode(record), type=KernelRecord) == record
