"""Rules that look into PTX: kernels that trigger them, and close ones that must not."""

from __future__ import annotations

import pytest
from for_each import for_each
from msgspec.structs import replace
from ptx_text import (
    HEADER,
    broken_rules,
    entry,
    kernel_views,
    lint,
    module,
    view_of,
    with_sass,
)

from gpuemu_flow.lint.kernel import KernelPolicy
from gpuemu_flow.lint.measure import Artifact, measure

LOOP = "mov.b32 %r9, 0; L: {body} add.s32 %r9, %r9, 1; setp.lt.s32 %p9, %r9, 10; @%p9 bra L; ret;"


def in_loop(body: str) -> str:
    return LOOP.replace("{body}", body)


SHARED = ".shared .b32 s[64]; "

# rule, a body that breaks it, a body like it that does not
BODIES = [
    (
        "accidental-f64",
        "cvt.f64.f32 %fd1, %f1; mul.f64 %fd2, %fd1, 0d3FD3333333333333; cvt.rn.f32.f64 %f2, %fd2;"
        "st.global.f32 [%rd1], %f2; ret;",
        "cvt.f64.f32 %fd1, %f1; mul.f64 %fd2, %fd1, 0d3FD3333333333333;"
        "st.global.f64 [%rd1], %fd2; ret;",
    ),
    (
        "accidental-f64",
        "cvt.f64.f16 %fd1, %rs1; add.f64 %fd2, %fd1, %fd1; cvt.rn.f32.f64 %f2, %fd2; ret;",
        "ld.global.b64 %fd3, [%rd1]; cvt.f64.f16 %fd1, %rs1; add.f64 %fd2, %fd1, %fd3; ret;",
    ),
    (
        "accidental-f64",
        "cvt.f64.f32 %fd1, %f1; sqrt.rn.f64 %fd2, %fd1; cvt.rn.f32.f64 %f2, %fd2; ret;",
        "cvt.f64.f32 %fd1, %f1; cvt.rn.f32.f64 %f2, %fd1; sqrt.rn.f64 %fd9, 0d4000000000000000;"
        "st.global.f64 [%rd1], %fd9; st.global.f64 [%rd1+8], %fd1; ret;",
    ),
    (
        "debug-call",
        "call.uni (retval0), vprintf, (p0, p1); ret;",
        "call.uni (retval0), my_printf, (p0, p1); ret;",
    ),
    ("debug-call", "call.uni __assertfail, (p0); ret;", "call.uni report_free_slot, (p0); ret;"),
    ("debug-call", "call (r), malloc, (n); ret;", "call (r), malloc_like, (n); ret;"),
    (
        "divergent-barrier",
        "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 16; @!%p1 bra E; bar.sync 0; E: bar.sync 0;"
        "ret;",
        "mov.u32 %r1, %ctaid.x; setp.lt.u32 %p1, %r1, 16; @!%p1 bra E; bar.sync 0; E: bar.sync 0;"
        "ret;",
    ),
    (
        "divergent-barrier",
        "mov.u32 %r1, %tid.x; L: bar.sync 0; add.s32 %r1, %r1, 32; setp.lt.u32 %p1, %r1, 99;"
        "@%p1 bra L; ret;",
        "mov.u32 %r1, 0; L: bar.sync 0; add.s32 %r1, %r1, 32; setp.lt.u32 %p1, %r1, 99;"
        "@%p1 bra L; ret;",
    ),
    (
        "divergent-barrier",
        "mov.u32 %r1, %laneid; setp.eq.u32 %p1, %r1, 0; @%p1 barrier.sync.aligned 0; ret;",
        "mov.u32 %r1, %laneid; setp.eq.u32 %p1, %r1, 0; @%p1 barrier.sync.aligned 1, 64; ret;",
    ),
    (
        "divergent-barrier",
        "mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; @%p1 bar.sync 0; ret;",
        "mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 0; @%p1 bar.sync 0; ret;",
    ),
    (
        "divergent-barrier",  # the definition stands after its use in the file
        "bra.uni D; U: setp.eq.u32 %p1, %r1, 0; @%p1 bra E; bar.sync 0; E: bar.sync 0; ret;"
        "D: mov.u32 %r1, %tid.x; bra.uni U;",
        "bra.uni D; U: setp.eq.u32 %p1, %r1, 0; @%p1 bra E; bar.sync 0; E: bar.sync 0; ret;"
        "D: mov.u32 %r1, %ctaid.x; bra.uni U;",
    ),
    (
        "divergent-barrier",  # register %r1 is reused: only its second life depends on the thread
        "mov.u32 %r1, 0; st.global.u32 [%rd1], %r1; mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 16;"
        "@!%p1 bra E; bar.sync 0; E: bar.sync 0; ret;",
        "mov.u32 %r1, %tid.x; st.global.u32 [%rd1], %r1; mov.u32 %r1, 0; setp.lt.u32 %p1, %r1, 16;"
        "@!%p1 bra E; bar.sync 0; E: bar.sync 0; ret;",
    ),
    (
        "integer-division-in-loop",
        in_loop("div.s32 %r2, %r3, %r4;"),
        "div.s32 %r2, %r3, %r4; " + in_loop("div.rn.f32 %f1, %f2, %f3;"),
    ),
    (
        "integer-division-in-loop",
        in_loop("rem.u64 %rd2, %rd3, %rd4;"),
        in_loop("shr.u64 %rd2, %rd3, 4;"),
    ),
    ("generic-address", "ld.f32 %f1, [%rd1]; ret;", "ld.global.f32 %f1, [%rd1]; ret;"),
    (
        "generic-address",
        "atom.add.u32 %r1, [%rd1], 1; ret;",
        "atom.shared.add.u32 %r1, [%r2], 1; ret;",
    ),
    (
        "generic-address",
        "st.v2.u32 [%rd1], {%r1, %r2}; ret;",
        "st.async.mbarrier::complete_tx::bytes.b32 [%r1], %r2, [%r3]; ret;",
    ),
    (
        "atomics-in-loop",
        in_loop("atom.global.add.u32 %r1, [%rd1], 1;"),
        "atom.global.add.u32 %r1, [%rd1], 1; " + in_loop("add.s32 %r1, %r1, 1;"),
    ),
    (
        "atomics-in-loop",
        in_loop("red.global.add.f32 [%rd1], %f1;"),
        in_loop("red.async.relaxed.cluster.global.add.u32 [%r1], %r2, [%r3];"),
    ),
    (
        "scalar-accesses",
        "ld.global.f32 %f1, [%rd1]; ld.global.f32 %f2, [%rd1+4]; ld.global.f32 %f3, [%rd1+12];"
        "ld.global.f32 %f4, [%rd1+8]; ret;",
        "ld.global.f32 %f1, [%rd1]; ld.global.f32 %f2, [%rd1+4]; ld.global.f32 %f3, [%rd1+12];"
        "ld.global.f32 %f4, [%rd1+16]; ret;",
    ),
    (
        "scalar-accesses",
        "st.global.u16 [%rd1], %rs1; st.global.u16 [%rd1+2], %rs1; st.global.u16 [%rd1+4], %rs1;"
        "st.global.u16 [%rd1+6], %rs1; ret;",
        "st.global.u16 [%rd1], %rs1; st.global.u16 [%rd1+2], %rs1; add.s64 %rd1, %rd1, 64;"
        "st.global.u16 [%rd1+4], %rs1; st.global.u16 [%rd1+6], %rs1; ret;",
    ),
    (
        "scalar-accesses",
        "@%p1 ld.global.f32 %f1, [%rd1]; @%p1 ld.global.f32 %f2, [%rd1+4];"
        "@%p1 ld.global.f32 %f3, [%rd1+8]; @%p1 ld.global.f32 %f4, [%rd1+12]; ret;",
        "@%p1 ld.global.f32 %f1, [%rd1]; @%p1 ld.global.f32 %f2, [%rd1+4];"
        "@%p2 ld.global.f32 %f3, [%rd1+8]; @%p2 ld.global.f32 %f4, [%rd1+12]; ret;",
    ),
    (
        "scalar-accesses",
        "ld.global.u32 %r1, [%rd1]; ld.global.u32 %r2, [%rd1+4]; ld.global.u32 %r3, [%rd1+8];"
        "ld.global.u32 %r4, [%rd1+12]; ret;",
        "ld.volatile.global.u32 %r1, [%rd1]; ld.volatile.global.u32 %r2, [%rd1+4];"
        "ld.volatile.global.u32 %r3, [%rd1+8]; ld.volatile.global.u32 %r4, [%rd1+12]; ret;",
    ),
    (
        "unfused-multiply-add",
        "mul.rn.f32 %f1, %f2, %f3; add.rn.f32 %f4, %f1, %f5; ret;",
        "mul.f32 %f1, %f2, %f3; add.f32 %f4, %f1, %f5; ret;",
    ),
    (
        "unfused-multiply-add",
        "mul.rn.f64 %fd1, %fd2, %fd3; sub.rn.f64 %fd4, %fd1, %fd5; ret;",
        "mul.rn.f32 %f1, %f2, %f3; add.rn.f32 %f4, %f1, %f5; st.global.f32 [%rd1], %f1; ret;",
    ),
    ("exact-division", "div.rn.f32 %f1, %f2, %f3; ret;", "div.approx.f32 %f1, %f2, %f3; ret;"),
    ("exact-division", "sqrt.rn.ftz.f32 %f1, %f2; ret;", "sqrt.rn.f64 %fd1, %fd2; ret;"),
    (
        "unused-shared-memory",
        SHARED + "mov.u32 %r1, %tid.x; ret;",
        SHARED + "mov.u32 %r1, s; ret;",
    ),
    (
        "unused-shared-memory",
        ".shared .b32 s[64]; .shared .b32 s2[64]; mov.u32 %r1, s2; ret;",
        ".shared .b32 s[64]; .shared .b32 s2[64]; mov.u32 %r1, s2; ld.shared.u32 %r2, [s+4]; ret;",
    ),
    (
        "legacy-warp-operations",
        "shfl.down.b32 %r1, %r2, 16, 31; ret;",
        "shfl.sync.down.b32 %r1, %r2, 16, 31, -1; ret;",
    ),
    (
        "legacy-warp-operations",
        "vote.all.pred %p1, %p2; ret;",
        "vote.ballot.sync.b32 %r1, %p1, -1; ret;",
    ),
    (
        "narrow-offset",  # a row of a Triton program: tl.program_id(0) * stride
        "ld.param.u32 %r0, [stride]; ld.param.u64 %rd0, [x]; mov.u32 %r1, %ctaid.x;"
        "mul.lo.s32 %r2, %r1, %r0; mul.wide.s32 %rd1, %r2, 4; add.s64 %rd2, %rd0, %rd1;"
        "ld.global.f32 %f1, [%rd2]; ret;",
        "ld.param.u32 %r0, [stride]; ld.param.u64 %rd0, [x]; mov.u32 %r1, %ctaid.x;"
        "mul.wide.s32 %rd1, %r1, %r0; shl.b64 %rd1, %rd1, 2; add.s64 %rd2, %rd0, %rd1;"
        "ld.global.f32 %f1, [%rd2]; ret;",
    ),
    (
        "narrow-offset",  # a grid of rows and columns
        "ld.param.u32 %r0, [n]; ld.param.u64 %rd0, [x]; mov.u32 %r1, %ctaid.y; mov.u32 %r3, %tid.x;"
        "mad.lo.s32 %r2, %r1, %r0, %r3; cvt.s64.s32 %rd1, %r2; shl.b64 %rd1, %rd1, 2;"
        "add.s64 %rd2, %rd0, %rd1; st.global.f32 [%rd2], %f1; ret;",
        "ld.param.u64 %rd0, [x]; mov.u32 %r1, %ctaid.x; mov.u32 %r0, %ntid.x; mov.u32 %r3, %tid.x;"
        "mad.lo.s32 %r2, %r1, %r0, %r3; cvt.s64.s32 %rd1, %r2; shl.b64 %rd1, %rd1, 2;"
        "add.s64 %rd2, %rd0, %rd1; st.global.f32 [%rd2], %f1; ret;",
    ),
    (
        "narrow-offset",  # unsigned, by an atomic
        "ld.param.u32 %r0, [n]; ld.param.u64 %rd0, [x]; mov.u32 %r1, %ctaid.x; mul.lo.u32 %r2, %r1,"
        "%r0; add.u32 %r2, %r2, 7; cvt.u64.u32 %rd1, %r2; add.s64 %rd2, %rd0, %rd1;"
        "red.global.add.u32 [%rd2], 1; ret;",
        "ld.param.u32 %r0, [n]; ld.param.u64 %rd0, [x]; mov.u32 %r1, %ctaid.x; mul.lo.u32 %r2, %r1,"
        "%r0; cvt.u64.u32 %rd1, %r1; add.s64 %rd2, %rd0, %rd1; red.global.add.u32 [%rd2], %r2;"
        "ret;",
    ),
]


@for_each(("rule", "bad", "good"), BODIES)
def test_rule_and_near_miss(rule: str, bad: str, good: str) -> None:
    assert rule in broken_rules(view_of(bad))
    assert rule not in broken_rules(view_of(good))


def test_a_narrow_offset_names_the_size_where_it_wraps() -> None:
    for bad, size in zip(
        [bad for rule, bad, _ in BODIES if rule == "narrow-offset"],
        ["2,147,483,648", "2,147,483,648", "4,294,967,296"],
        strict=True,
    ):
        found = [v for v in lint(view_of(bad)).violations if v.rule == "narrow-offset"]
        assert [f"where it reaches {size} elements" in v.message for v in found] == [True]


CONSTANTS = HEADER + (
    ".const .align 4 .u32 w[2]; .const .align 8 .b8 table[64]; .global .u32 calls;\n"
    ".const .u32 set[2] = {1, 2}; .const .align 4 .f32 _ZN2nsL1cE;\n"
)


@for_each(
    ("body", "unset"),
    [
        ("ld.const.u32 %r1, [w+4]; ret;", ["w"]),
        ("mov.u64 %rd1, table; cvta.const.u64 %rd2, %rd1; ld.u32 %r1, [%rd2]; ret;", ["table"]),
        ("ld.const.f32 %f1, [_ZN2nsL1cE]; ld.const.u32 %r1, [w]; ret;", ["_ZN2nsL1cE", "w"]),
        ("ld.const.u32 %r1, [set]; ld.global.u32 %r2, [calls]; ret;", []),
        ("mov.u32 %r1, 1; ret;", []),
    ],
)
def test_constants_that_nothing_sets_are_named(body: str, unset: list[str]) -> None:
    found = lint(view_of(body, CONSTANTS)).violations
    said = [v.message.split()[3].strip(",") for v in found if v.rule == "unset-constant"]
    assert sorted(said) == sorted(unset)


# rule, source, kernel that breaks it, kernels of the same source that do not
REAL = [
    ("real-spills", "forced_spills", "forced_spills_kernel", "relaxed_spills_kernel"),
    ("local-memory", "dynamic_index", "dynamic_index_kernel", "constant_index_kernel"),
    (
        "accidental-f64",
        "accidental_f64",
        "accidental_f64_kernel",
        "meant_f32_kernel real_f64_kernel",
    ),
    ("debug-call", "printf_left_in", "printf_left_in_kernel", "printf_removed_kernel"),
    (
        "divergent-barrier",
        "divergent_barrier",
        "divergent_barrier_kernel",
        "guarded_work_kernel uniform_barrier_kernel",
    ),
    (
        "integer-division-in-loop",
        "several_kernels",
        "transpose_index_kernel",
        "scale_kernel smooth_step_kernel",
    ),
    ("generic-address", "several_kernels", "smooth_step_kernel", "scale_kernel"),
    ("atomics-in-loop", "histogram", "histogram_global_kernel", ""),
    ("scalar-accesses", "gelu_vectorised", "gelu_scalar_kernel", "gelu_vector_kernel"),
]


@for_each("arch", ["sm_80", "sm_90"])
@for_each(("rule", "source", "bad", "good"), REAL)
def test_rule_on_compiled_kernels(arch: str, rule: str, source: str, bad: str, good: str) -> None:
    views = kernel_views(source, arch)
    assert rule in broken_rules(views[bad])
    for name in good.split():
        assert rule not in broken_rules(views[name])


def test_sound_kernels_break_no_rule_of_weight() -> None:
    for name in (
        "softmax",
        "layernorm",
        "matmul_tiled",
        "attention",
        "reduce_shuffle",
        "dynamic_shared",
    ):
        for view in kernel_views(name).values():
            result = lint(view)
            assert [v for v in result.violations if v.severity != "info"] == []


def test_an_early_return_before_a_barrier_is_information_only() -> None:
    guard = "mov.u32 %r1, %tid.x; setp.gt.u32 %p1, %r1, 99; "
    for leave in ("@%p1 ret; bar.sync 0; ret;", "@%p1 bra E; bar.sync 0; E: ret;"):
        found = [
            v for v in lint(view_of(guard + leave)).violations if v.rule == "divergent-barrier"
        ]
        assert [v.severity for v in found] == ["info"]


def test_a_barrier_in_a_loop_that_threads_leave_at_different_times_is_a_warning() -> None:
    body = (
        "mov.u32 %r1, %tid.x; L: setp.gt.u32 %p1, %r1, 99; @%p1 bra E; bar.sync 0;"
        "add.s32 %r1, %r1, 32; bra.uni L; E: ret;"
    )
    found = [v for v in lint(view_of(body)).violations if v.rule == "divergent-barrier"]
    assert [v.severity for v in found] == ["warning"]


def test_taint_goes_through_memory_addresses_and_stops_at_votes() -> None:
    head = "mov.u32 %r1, %tid.x; cvt.u64.u32 %rd1, %r1; ld.shared.u32 %r2, [%rd1];"
    tail = "@!%p1 bra E; bar.sync 0; E: bar.sync 0; ret;"
    tested = "setp.eq.u32 %p1, %r2, 0; "
    voted = "setp.eq.u32 %p2, %r2, 0; vote.sync.any.pred %p1, %p2, -1; "
    assert "divergent-barrier" in broken_rules(view_of(head + tested + tail))
    assert "divergent-barrier" not in broken_rules(view_of(head + voted + tail))


def test_findings_are_grouped_by_source_line_and_bounded() -> None:
    lines = "".join(f"\n.loc 1 {i // 2} 0\nld.f32 %f1, [%rd1];" for i in range(100))
    found = view_of(lines + " ret;").findings["generic-address"]
    assert len(found) == 20
    assert found[0].actual == 2
    assert sum(f.actual or 0 for f in found) == 100


@pytest.mark.parametrize(("target", "broken"), [("sm_80, debug", True), ("sm_80", False)])
def test_debug_build(target: str, broken: bool) -> None:
    header = HEADER.replace("sm_80", target)
    view = view_of(".loc 1 1 0\nret;", header)
    assert ("debug-build" in broken_rules(view)) == broken


def test_static_shared_memory_limit_is_exact() -> None:
    bytes_and_rule = {
        size: "static-shared-memory"
        in broken_rules(view_of(f".shared .b8 s[{size}]; mov.u32 %r1, s;"))
        for size in (49152, 49153)
    }
    assert bytes_and_rule == {49152: False, 49153: True}


def test_dynamic_shared_memory_is_not_static() -> None:
    text = ".extern .shared .align 16 .b8 s[];\n" + entry("mov.u32 %r1, s; ret;")
    (view,) = measure(Artifact("t.ptx", module(text))).kernels
    assert view.metrics.shared_bytes == 0
    assert "static-shared-memory" not in broken_rules(view)


@pytest.mark.parametrize(
    ("directives", "target", "broken"),
    [
        (".maxntid 1024, 1, 1\n.minnctapersm 2", "sm_80", False),
        (".maxntid 1024, 1, 1\n.minnctapersm 2", "sm_86", True),
        (".maxntid 256, 1, 1\n.minnctapersm 9", "sm_80", True),
        (".maxntid 32\n.minnctapersm 33", "sm_80", True),
        (".maxntid 2048", "sm_80", True),
        (".maxntid 1024", "sm_80", False),
    ],
)
def test_launch_bounds_that_cannot_be_met(directives: str, target: str, broken: bool) -> None:
    view = view_of("ret;", HEADER.replace("sm_80", target), directives=directives)
    assert ("unmet-launch-bounds" in broken_rules(view)) == broken


def test_launch_bounds_that_the_registers_do_not_meet() -> None:
    view = kernel_views("forced_spills")["relaxed_spills_kernel"]
    bounds = {blocks: replace(view.bounds, min_blocks=blocks) for blocks in (3, 4)}
    assert "unmet-launch-bounds" not in broken_rules(replace(view, bounds=bounds[3]))
    assert "unmet-launch-bounds" in broken_rules(replace(view, bounds=bounds[4]))


def test_what_ptxas_says_about_launch_bounds_is_repeated() -> None:
    view = replace(view_of("ret;"), unmet_bounds=".minnctapersm will be ignored")
    (found,) = [v for v in lint(view).violations if v.rule == "unmet-launch-bounds"]
    assert "will be ignored" in found.message


def test_expected_tensor_cores() -> None:
    policy = KernelPolicy(expect_tensor_cores=True)
    tensor = kernel_views("matmul_tensor")["matmul_tensor_kernel"]
    plain = kernel_views("matmul_tiled")["matmul_tiled_kernel"]
    assert "missing-tensor-cores" not in broken_rules(tensor, policy)
    assert "missing-tensor-cores" in broken_rules(plain, policy)
    assert "missing-tensor-cores" not in broken_rules(plain)


def test_expected_tensor_cores_in_machine_code() -> None:
    policy = KernelPolicy(expect_tensor_cores=True)
    view = replace(view_of("ret;"), has_ptx=False)
    packed = with_sass(view, {"HFMA2.MMA": 3, "FADD": 1})
    assert "missing-tensor-cores" in broken_rules(packed, policy)
    assert "missing-tensor-cores" not in broken_rules(
        with_sass(view, {"HMMA.16816.F32": 1}), policy
    )
    assert "missing-tensor-cores" in {u.rule for u in lint(view, policy).unchecked}


@for_each(
    ("target", "archs", "broken"),
    [
        ("sm_80", ("sm_80", "sm_90", "sm_120"), False),
        ("sm_90", ("sm_80",), True),
        ("sm_90a", ("sm_90",), False),
        ("sm_90a", ("sm_100",), True),
        ("sm_100f", ("sm_100", "sm_103"), False),
        ("sm_100f", ("sm_120",), True),
        ("sm_103f", ("sm_100",), True),
    ],
)
def test_portability_by_target(target: str, archs: tuple[str, ...], broken: bool) -> None:
    view = view_of("ret;", HEADER.replace("sm_80", target))
    assert ("portability" in broken_rules(view, KernelPolicy(archs=archs))) == broken


def test_portability_by_assembling() -> None:
    view = replace(view_of("ret;"), assembly={"sm_80": "", "sm_90": "unknown instruction"})
    found = lint(view, KernelPolicy(archs=("sm_80", "sm_90"))).violations
    assert [(v.rule, v.severity) for v in found] == [("portability", "error")]
    assert "unknown instruction" in found[0].message


def test_targets_of_one_architecture_are_information() -> None:
    found = lint(view_of("ret;", HEADER.replace("sm_80", "sm_90a"))).violations
    assert [(v.rule, v.severity) for v in found] == [("portability", "info")]
