"""From artifacts to kernel views: the best source wins, sources are named, views survive JSON."""

from __future__ import annotations

import msgspec
import pytest
from for_each import for_each
from ptx_text import ARCHITECTURES, HEADER, KERNELS, entry, kernel_views, module, view_of

from gpuemu_flow.lint.kernel import FAMILIES, KernelView, family_of_text
from gpuemu_flow.lint.measure import Artifact, KnownLaunch, measure


def ptx_of(name: str, arch: str = "sm_80") -> bytes:
    return (KERNELS / arch / f"{name}.ptx").read_bytes()


def test_ptx_alone_gives_an_estimate_and_says_so() -> None:
    (view,) = measure(Artifact("softmax.ptx", ptx_of("softmax"))).kernels
    metrics = view.metrics
    assert (metrics.metric_source, metrics.is_exact) == ("estimate", False)
    assert (metrics.spill_instructions, metrics.spill_bytes, metrics.stack_bytes) == (None,) * 3
    assert metrics.shared_bytes == 128
    assert metrics.registers is not None


def test_the_cubin_is_preferred_and_its_figures_are_not_mixed() -> None:
    cubin = (KERNELS / "sm_80" / "softmax.cubin").read_bytes()
    artifact = Artifact("softmax.ptx", ptx_of("softmax"), cubin)
    (view,) = measure(artifact).kernels
    metrics = view.metrics
    assert (metrics.metric_source, metrics.tool_version) == ("cubin", "13.0.88")
    assert (metrics.registers, metrics.spill_instructions, metrics.stack_bytes) == (15, 0, 0)


def test_a_cubin_alone_gives_its_entries() -> None:
    cubin = (KERNELS / "sm_90" / "several_kernels.cubin").read_bytes()
    measured = measure(Artifact("several.cubin", cubin=cubin))
    assert [v.name for v in measured.kernels if v.has_ptx] == []
    assert {v.name: v.arch for v in measured.kernels} == dict.fromkeys(
        ("scale_kernel", "smooth_step_kernel", "transpose_index_kernel"), "sm_90"
    )


def test_a_corrupt_cubin_leaves_the_estimate_and_a_problem() -> None:
    measured = measure(Artifact("softmax.ptx", ptx_of("softmax"), b"\x7fELFgarbage"))
    assert [p.slug for p in measured.problems] == ["cubin-corrupt"]
    assert [v.metrics.metric_source for v in measured.kernels] == ["estimate"]


def test_a_damaged_kernel_does_not_hide_the_others() -> None:
    text = entry("?? ; ret;", "a") + entry("add.s32 %r1, %r1, 1; ret;", "b")
    measured = measure(Artifact("t.ptx", module(text)))
    assert [v.name for v in measured.kernels] == ["a", "b"]
    assert [(p.slug, p.file) for p in measured.problems] == [("ptx-syntax", "t.ptx")]


def test_a_file_without_kernels_is_a_problem() -> None:
    assert [p.slug for p in measure(Artifact("t.ptx", module(".func f(){ ret; }"))).problems] == [
        "artifact-no-kernels"
    ]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_views_survive_json(arch: str) -> None:
    names = [path.stem for path in sorted((KERNELS / arch).glob("*.ptx"))]
    assert len(names) >= 12
    for name in names:
        for view in kernel_views(name, arch).values():
            assert msgspec.json.decode(msgspec.json.encode(view), type=KernelView) == view


def test_declared_registers_are_shown_as_declared() -> None:
    view = view_of("ret;")
    assert view.metrics.declared_registers == 16 + 32 + 64 + 64 + 32 + 32
    assert view.metrics.registers == 8


def test_families_add_up_to_the_instructions() -> None:
    for name in ("softmax", "matmul_tensor", "layernorm", "histogram"):
        for view in kernel_views(name).values():
            assert sum(view.metrics.families.values()) == view.metrics.instructions
            assert set(view.metrics.families) <= set(FAMILIES)


@for_each(
    ("opcode", "family"),
    [
        ("fma.rn.f32", "f32"),
        ("add.f64", "f64"),
        ("fma.rn.bf16x2", "f16"),
        ("mad.lo.s32", "int"),
        ("and.b32", "int"),
        ("and.pred", "predicate"),
        ("setp.lt.f32", "f32"),
        ("ld.global.nc.v4.f32", "ld.global.x4"),
        ("st.global.u8", "st.global.x1"),
        ("ld.shared::cta.v2.u32", "shared"),
        ("ld.param.u64", "param"),
        ("st.local.u32", "local"),
        ("ld.u32", "generic"),
        ("atom.shared.add.u32", "atomics"),
        ("red.global.add.f32", "atomics"),
        ("bar.sync", "barriers"),
        ("bra.uni", "branches"),
        ("ret", "branches"),
        ("cvt.rn.f32.f64", "cvt/mov"),
        ("mov.b32", "cvt/mov"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "tensor"),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32", "tensor"),
        ("wmma.load.a.sync.aligned.row.m16n16k16.shared.f16", "shared"),
        ("tcgen05.mma.cta_group::1.kind::f16", "tensor"),
        ("tcgen05.commit.cta_group::1.b64", "other"),
        ("cp.async.ca.shared.global", "async copy"),
        ("shfl.sync.down.b32", "warp"),
        ("call.uni", "calls"),
        ("tex.1d.v4.f32.s32", "texture"),
    ],
)
def test_family_of_an_opcode(opcode: str, family: str) -> None:
    assert family_of_text(opcode) == family


def test_called_device_functions_belong_to_the_kernel_once() -> None:
    helper = ".func h(.param .b32 a){ .reg .f32 %f<4>; div.rn.f32 %f1, %f2, %f3; ret; }\n"
    calls = "{ .param .b32 p; call h, (p); } { .param .b32 p; call h, (p); } ret;"
    measured = measure(Artifact("t.ptx", module(helper + entry(calls))))
    (view,) = measured.kernels
    assert view.metrics.instructions == 3 + 2
    assert view.metrics.calls == {"h": 2}
    assert [f.message for f in view.findings["exact-division"]] == [
        "1 correctly rounded operation (div.rn.f32) (in device function h)"
    ]


def test_recursion_is_seen_through_several_functions() -> None:
    functions = (
        ".func a(){ call b; ret; } .func b(){ call a; ret; } "
        ".func c(){ call d; ret; } .func d(){ ret; }\n"
    )
    measured = measure(
        Artifact(
            "t.ptx",
            module(functions + entry("call a; ret;", "r") + entry("call c; call d; ret;", "s")),
        )
    )
    assert {v.name: v.recursive for v in measured.kernels} == {"r": True, "s": False}


def test_calls_go_through_aliases() -> None:
    text = ".func real(){ .reg .f32 %f<3>; div.rn.f32 %f1, %f2, %f2; ret; } .alias other, real;\n"
    (view,) = measure(Artifact("t.ptx", module(text + entry("call other; ret;")))).kernels
    assert view.metrics.instructions == 4
    assert "exact-division" in view.findings


def test_shared_memory_of_the_module_counts_where_it_is_used() -> None:
    text = ".shared .b32 big[100];\n.extern .shared .b8 dyn[];\n"
    text += entry("mov.u32 %r1, big; mov.u32 %r2, dyn; ret;", "uses")
    text += entry(".shared .b64 own[4]; mov.u32 %r1, own; ret;", "other")
    views = measure(Artifact("t.ptx", module(text))).kernels
    assert {v.name: v.metrics.shared_bytes for v in views} == {"uses": 400, "other": 32}


def test_occupancy_uses_the_launch_then_the_bounds_then_an_assumption() -> None:
    (bound,) = measure(Artifact("t.ptx", module(entry("ret;", directives=".maxntid 64")))).kernels
    assert bound.metrics.occupancy is not None
    assert (bound.metrics.occupancy.threads, bound.metrics.occupancy.assumed_threads) == (64, False)
    free = view_of("ret;").metrics.occupancy
    assert free is not None
    assert (free.threads, free.assumed_threads) == (256, True)
    launches = {
        "k": KnownLaunch(threads=512, dynamic_shared_bytes=65536),
        "other": KnownLaunch(threads=32),
    }
    (launched,) = measure(Artifact("t.ptx", module(entry("ret;"))), launches).kernels
    assert launched.metrics.occupancy is not None
    assert (launched.metrics.occupancy.threads, launched.metrics.occupancy.limited_by) == (
        512,
        ("shared",),
    )


def test_an_unknown_architecture_has_no_occupancy() -> None:
    assert view_of("ret;", HEADER.replace("sm_80", "sm_61")).metrics.occupancy is None


def test_places_name_the_source_line_where_there_is_one() -> None:
    view = kernel_views("printf_left_in")["printf_left_in_kernel"]
    (finding,) = view.findings["debug-call"]
    assert finding.place.source_file == "scripts/kernels/printf_left_in.cu"
    assert finding.place.source_line == 9
    assert view.place.source_line == 5
