"""Machine instructions: their families, and where their figures go."""

from __future__ import annotations

from for_each import for_each
from msgspec import convert, to_builtins
from msgspec.structs import replace
from ptx_text import kernel_views, view_of, with_sass

from gpuemu_flow.lint.diff import KernelDiff, diff_kernels
from gpuemu_flow.lint.kernel import (
    FAMILIES,
    KernelMetrics,
    KernelPolicy,
    KernelView,
    count_sass_families,
    sass_family,
)
from gpuemu_flow.lint.measure import Artifact, Linter, measure
from gpuemu_flow.lint.toolchain import MachineCode


@for_each(
    ("opcode", "family"),
    [
        ("FADD", "f32"),
        ("FFMA.FTZ", "f32"),
        ("MUFU.RSQ", "f32"),
        ("DFMA", "f64"),
        ("HFMA2.MMA", "f16"),
        ("HMMA.16816.F32", "tensor"),
        ("HGMMA.64x64x16.F32", "tensor"),
        ("UTCHMMA", "tensor"),
        ("IMAD.WIDE.U32", "int"),
        ("IMAD.MOV.U32", "cvt/mov"),
        ("UIADD3", "int"),
        ("LDG.E", "ld.global.x1"),
        ("LDG.E.64.CONSTANT", "ld.global.x2"),
        ("LDG.E.128", "ld.global.x4"),
        ("STG.E.128", "st.global.x4"),
        ("LDS.U.128", "shared"),
        ("LDL.LU", "local"),
        ("LD.E", "generic"),
        ("LDC", "const"),
        ("ULDC.64", "const"),
        ("LDGSTS.E.BYPASS.128", "async copy"),
        ("REDG.E.ADD", "atomics"),
        ("BAR.SYNC.DEFER_BLOCKING", "barriers"),
        ("BRA.U", "branches"),
        ("CALL.REL.NOINC", "calls"),
        ("S2UR", "cvt/mov"),
        ("PLOP3.LUT", "predicate"),
        ("SHFL.BFLY", "warp"),
        ("TEX.LL", "texture"),
        ("OF_A_LATER_CHIP.X", "other"),
    ],
)
def test_family_of_a_machine_opcode(opcode: str, family: str) -> None:
    assert sass_family(opcode) == family
    assert family in FAMILIES


def test_families_add_up() -> None:
    opcodes = {"FADD": 3, "FMUL": 2, "LDG.E.128": 1, "NEW": 4}
    assert count_sass_families(opcodes) == {"f32": 5, "ld.global.x4": 1, "other": 4}


def test_the_listing_goes_to_its_kernel_with_its_source() -> None:
    listed = MachineCode("nvdisasm 13.0.88", {"k": {"FADD": 2}, "other": {"EXIT": 1}})
    text = b".version 8.0\n.target sm_80\n.entry k(){ ret; }\n.entry unlisted(){ ret; }\n"
    known, unlisted = measure(Artifact("t.ptx", text, sass=listed)).kernels
    assert (known.metrics.sass_tool, known.metrics.sass_instructions) == ("nvdisasm 13.0.88", 2)
    assert (unlisted.metrics.sass_tool, unlisted.metrics.sass_instructions) == ("", None)
    assert convert(to_builtins(known), KernelView) == known
    shown = [to_builtins(Linter(KernelPolicy()).lint(v).metrics.sass) for v in (known, unlisted)]
    assert shown == [
        {"source": "nvdisasm 13.0.88", "instructions": 2, "families": {"f32": 2}},
        None,
    ]


def metrics(tool: str = "nvdisasm 13.0.88", **opcodes: int) -> KernelMetrics:
    plain = kernel_views("softmax")["softmax_kernel"].metrics
    return replace(plain, sass_tool=tool, sass_opcodes=opcodes or None)


def only(old: KernelMetrics, new: KernelMetrics, *forbidden: str) -> KernelDiff:
    (diff,) = diff_kernels([old], [new], forbidden=forbidden)
    return diff


def test_a_diff_compares_listings_of_one_disassembler_only() -> None:
    (change,) = only(metrics(FADD=2), metrics(FADD=5)).changes
    assert (change.metric, change.old, change.new) == ("sass_instructions", 2, 5)
    assert only(metrics(FADD=2), metrics("nvdisasm 12.9.1", FADD=5)).changes == ()
    assert only(metrics(FADD=2), metrics("")).changes == ()


def test_a_forbidden_machine_instruction_that_is_new_is_a_regression() -> None:
    assert only(metrics(FADD=1), metrics(FADD=1, STL=3), "STL").is_regression
    assert only(metrics(FADD=1, STL=3), metrics(FADD=1), "STL").is_improvement
    assert not only(metrics(STL=1), metrics(STL=3), "STL").is_regression
    assert not only(metrics(""), metrics(STL=3), "STL").is_regression  # nothing to compare with


def test_forbidden_ptx_is_not_looked_for_where_there_is_no_ptx() -> None:
    bare = replace(metrics(FADD=1), instructions=None, opcodes={}, families={}, calls={})
    assert not only(bare, metrics(FADD=1), "f32").is_regression


def test_spills_are_among_the_local_accesses_of_the_listing() -> None:
    view = with_sass(view_of("ret;"), {"STL.64": 2, "LDL": 3, "EXIT": 1})
    assert count_sass_families(view.metrics.sass_opcodes or {})["local"] == 5
