"""Test that an unsupported instruction is refused before anything runs, with its line and
advice."""

from __future__ import annotations

import pytest
from for_each import for_each
from ptx_text import HEADER

from gpuemu_flow.emulator.errors import UnsupportedError
from gpuemu_flow.emulator.launch import load_kernel
from gpuemu_flow.emulator.session import cover_file

BODY = ".reg .b16 %h<9>; .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %rd<9>; .reg .pred %p<3>;\n"
MISSING = {
    "tex.1d.v4.f32.s32 {%f1,%f2,%f3,%f4}, [%rd1, {%r1}];": "textures",
    "cp.async.bulk.tensor.4d.shared::cta.global.im2col.mbarrier::complete_tx::bytes [%r1], "
    "[%rd1, {%r2, %r3, %r4, %r5}], [%r4], {%h1, %h2};": "tensor maps",
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes "
    "[%r1], [%rd1, {%r2, %r3, %r3, %r3, %r3}], [%r4];": "tensor maps",
    "cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
    "[%r1], [%rd1, {%r2, %r3}], [%r4];": "tensor maps",
    "cp.async.bulk.tensor.3d.shared::cta.global.mbarrier::complete_tx::bytes [%r1], "
    "[%rd1, {%r2, %r3}], [%r4];": "tensor maps",
    "tensormap.replace.tile.swizzle_atomicity.global.b1024.b32 [%rd1], 2;": "tensor maps",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.max.f16 [%rd1], [%r1], 16;": "tensor maps",
    "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.f16 [%r1], "
    "[%r2], 16, [%r3];": "tensor maps",
    "suld.b.1d.b32.trap {%r1}, [%rd1, {%r2}];": "surfaces",
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u16 [%r1], %h2, [%r3];": "sm_80",
    "multimem.ld_reduce.global.add.f32 %f1, [%rd1];": "several GPUs",
    "tcgen05.wait::ld.sync.aligned;": "sm_90",
    "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r2}, "
    "{%r3,%r4}, {%f1,%f2,%f3,%f4}, %r5, 4;": "sparse",
    "barrier.cluster.sync;": "barrier",
    "cvt.sat.u32.pred %r1, %p1;": "sm_80",
    "max.xorsign.abs.f32 %f1, %f2, %f3;": "sm_80",
    "shl.sat.b32 %r1, %r2, 3;": "sm_80",
    "@%p1 bar.sync 0;": "predicate",
    "wmma.load.a.sync.aligned.row.m16n16k4.f16 {%r1}, [%rd1];": "sm_80",
    "wgmma.mma_async.sync.aligned.m64n8k256.s32.b1.b1.and.popc {%r1,%r2,%r3,%r4}, %rd1, %rd2, "
    "%p1;": "sm_80",
    "mbarrier.pending_count.b64 %r1, %rd1;": "sm_80",
    "alloca.u64 %rd1, %rd2, 3;": "sm_80",
}


@for_each("text", MISSING)
def test_what_is_missing_is_named_with_line_and_fix(text: str) -> None:
    data = f"{HEADER}.visible .entry k()\n{{\n{BODY}{text}\nret;\n}}\n".encode()
    with pytest.raises(UnsupportedError) as caught:
        load_kernel(data, "k.ptx")
    (problem,) = caught.value.problems
    line = len(HEADER.splitlines()) + 4
    assert problem.line == line and problem.slug == "emulator-unsupported"
    opcode = next(w for w in text.split() if not w.startswith("@"))
    assert opcode.rstrip(";") in problem.message and MISSING[text] in problem.hint
    (found,) = cover_file(data, "k.ptx")
    assert not found.runs


def test_a_variable_that_cannot_be_read_matters_only_to_kernels_that_use_it() -> None:
    text = (
        HEADER + ".global .align 8 .u64 table[1] = {elsewhere};\n"
        ".visible .entry without() { ret; }\n"
        ".visible .entry with() { .reg .b64 %rd<2>; ld.global.u64 %rd1, [table]; ret; }\n"
    )
    without, using = cover_file(text.encode(), "k.ptx")
    assert without.runs and not using.runs
    assert "table" in using.problem


def test_clusters_of_several_blocks_can_run() -> None:
    for count in ("1, 1, 1", "2, 1, 1"):
        text = f"{HEADER}.visible .entry k()\n.reqnctapercluster {count}\n{{ ret; }}\n"
        (found,) = cover_file(text.encode(), "k.ptx")
        assert found.runs


@for_each(
    "text",
    [
        "red.global.add.v4.f32 [%rd1];",
        "atom.global.add.v2.f32 {%f1,%f2}, [%rd1];",
        "abs.f32 %q1, %f1;",
        "add.u64 %r1, %rd1, %rd2;",
        "cvt.rni.f32.u8 %f1, %h1;",
        "set.lt.b128.u32.f16x2 %r1, %r2, %r3;",
        "setp.lt.ftz.bf16 %p1, %h1, %h2;",
        "setp.lt.ftz.s32 %p1, %r1, %r2;",
    ],
)
def test_what_no_kernel_may_say_is_declined_before_anything_runs(text: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        load_kernel(f"{ODD_HEAD}{text}\nret;\n}}\n".encode(), "odd.ptx")
    (problem,) = caught.value.problems
    assert (problem.slug, problem.line) == ("emulator-unsupported", 8)
    assert problem.hint


def test_a_reducing_barrier_may_drop_its_result() -> None:
    text = f"{ODD_HEAD}bar.red.and.pred _, 0, %p1;\nret;\n}}\n"
    for backend in ("numpy", "c"):
        result = load_kernel(text.encode(), "odd.ptx").launch([1], [64], [], backend=backend)
        assert result.findings == ()


ODD_HEAD = """.version 8.5
.target sm_90
.address_size 64
.visible .entry k()
{
.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .b16 %h<9>; .reg .pred %p<9>;
.reg .b128 %q<9>; mov.u64 %rd1, 0; setp.eq.u64 %p1, %rd1, 0;
"""
