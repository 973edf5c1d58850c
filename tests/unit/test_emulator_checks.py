"""Planted bugs: each check finds its own, at the right line, and only that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from both_backends import needs_compiler
from emulated_kernels import as_argument, out
from for_each import for_each
from planted_bugs import HARMLESS_MORE, MORE

from gpuemu_flow.emulator.launch import LaunchResult, load_kernel
from gpuemu_flow.emulator.session import find_order_dependence

HEAD = """.version 7.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y, .param .u32 n)
{
  .reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<30>; .reg .f32 %f<9>; .reg .b64 %rd<30>;
  .shared .align 16 .b8 s[256];
  .shared .align 16 .b8 s2[256];
  .local .align 16 .b8 loc[16];
  ld.param.u64 %rd1, [x];
  ld.param.u64 %rd2, [y];
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %tid.x;
  mov.u32 %r3, %ctaid.x;
  mul.wide.u32 %rd3, %r2, 4;
  add.s64 %rd4, %rd1, %rd3;
  add.s64 %rd5, %rd2, %rd3;
  shl.b32 %r4, %r2, 2;
  mov.u32 %r5, s;
  add.u32 %r6, %r5, %r4;
  and.b32 %r7, %r2, 31;
"""


def launch(
    body: str, grid: int = 1, block: int = 64, n: int = 0, backend: str = "numpy"
) -> LaunchResult:
    """Run a body with 64 floats in x and 64 unwritten in y."""
    kernel = load_kernel((HEAD + body + "\n ret;\n}\n").encode(), "planted.ptx")
    x = np.arange(64, dtype="f4")
    return kernel.launch(
        [grid], [block], [as_argument(x), as_argument(out(64)), as_argument(np.int32(n))],
        budget=50_000_000, backend=backend,
    )  # fmt: skip


PLANTED: dict[str, tuple[str, str, str]] = {
    # name: (check, rule, body)
    "read past the end": ("mem", "out-of-bounds", "ld.global.f32 %f1, [%rd4+4];"),
    "read before the start": ("mem", "out-of-bounds", "ld.global.f32 %f1, [%rd4+-4];"),
    "write past the end": ("mem", "out-of-bounds", "st.global.f32 [%rd5+256], 0f00000000;"),
    "vector read past the end": (
        "mem", "out-of-bounds", "and.b64 %rd6, %rd4, -16; ld.global.v4.f32 {%f1,%f2,%f3,%f4}, "
        "[%rd6+16];",
    ),
    "null pointer": ("mem", "out-of-bounds", "mov.u64 %rd6, 0; ld.global.u32 %r9, [%rd6];"),
    "a host pointer": (
        "mem", "out-of-bounds", "mov.u64 %rd6, 0x7ffc12345678; ld.global.u32 %r9, [%rd6];",
    ),
    "the top of the address space": (
        "mem", "out-of-bounds", "mov.u64 %rd6, 0xfffffffffffffffc; st.global.u32 [%rd6], %r2;",
    ),
    "misaligned read": ("mem", "misaligned", "ld.global.f32 %f1, [%rd1+2];"),
    "misaligned vector": ("mem", "misaligned", "ld.global.v2.f32 {%f1,%f2}, [%rd1+4];"),
    "misaligned shared": (
        "mem", "misaligned", "st.shared.u32 [%r5], 1; bar.sync 0; st.shared.u16 [%r5+1], 1;",
    ),
    "shared past the end": ("mem", "out-of-bounds", "st.shared.u32 [%r6+256], %r2;"),
    "shared far away": ("mem", "out-of-bounds", "st.shared.u32 [%r6+1000000], %r2;"),
    "shared negative": ("mem", "out-of-bounds", "st.shared.u32 [%r6+-4], %r2;"),
    "local past the end": (
        "mem", "out-of-bounds", "mov.u64 %rd6, loc; st.local.u32 [%rd6+16], %r2;",
    ),
    "generic into the gap between spaces": (
        "mem", "out-of-bounds", "cvta.shared.u64 %rd7, 100000; st.u32 [%rd7], %r2;",
    ),
    "atomic past the end": ("mem", "out-of-bounds", "red.global.add.u32 [%rd4+256], 1;"),
    "atomic returns past the end": (
        "mem", "out-of-bounds", "atom.global.add.u32 %r9, [%rd4+256], 1;",
    ),
    "write to a parameter": (
        "mem", "read-only", "mov.b64 %rd6, x; st.global.u32 [%rd6], %r2;",
    ),
    "branch table": (
        "mem", "branch-index", "tab: .branchtargets L1, L2; add.u32 %r9, %r2, 1; "
        "brx.idx %r9, tab; L1: L2: ",
    ),
    "unwritten global": ("init", "never-written", "ld.global.f32 %f1, [%rd5];"),
    "unwritten shared": ("init", "never-written", "ld.shared.f32 %f1, [%r6];"),
    "unwritten local": (
        "init", "never-written", "mov.u64 %rd6, loc; ld.local.u32 %r9, [%rd6+4];",
    ),
    "half-written vector": (
        "init", "never-written", "st.shared.u32 [%r6], %r2; bar.sync 0; mov.u32 %r8, s2; "
        "ld.shared.v2.u32 {%r9,%r10}, [%r8];",
    ),
    "copy never waited for": (
        "init", "never-written", "cp.async.ca.shared.global [%r6], [%rd4], 4; "
        "cp.async.commit_group; ld.shared.u32 %r9, [%r6];",
    ),
    "copy waited for too little": (
        "init", "never-written", "cp.async.ca.shared.global [%r6], [%rd4], 4; "
        "cp.async.commit_group; cp.async.wait_group 1; ld.shared.u32 %r9, [%r6];",
    ),
    "read after write": (
        "race", "read-after-write", "st.shared.u32 [%r6], %r2; xor.b32 %r9, %r4, 4; "
        "add.u32 %r9, %r9, %r5; ld.shared.u32 %r10, [%r9];",
    ),
    "read after write across warps": (
        "race", "read-after-write", "st.shared.u32 [%r6], %r2; bar.warp.sync -1; "
        "xor.b32 %r9, %r4, 128; add.u32 %r9, %r9, %r5; ld.shared.u32 %r10, [%r9];",
    ),
    "write after read": (
        "race", "write-after-read", "st.shared.u32 [%r6], %r2; bar.sync 0; "
        "xor.b32 %r9, %r4, 128; add.u32 %r9, %r9, %r5; ld.shared.u32 %r10, [%r9]; "
        "st.shared.u32 [%r6], 77;",
    ),
    "write after write": (
        "race", "write-after-write", "st.shared.u32 [%r6], 500; xor.b32 %r9, %r4, 128; "
        "add.u32 %r9, %r9, %r5; st.shared.u32 [%r9], %r2;",
    ),
    "all write one place": ("race", "same-instruction", "st.shared.u32 [%r5], %r2;"),
    "atomic and a plain read": (
        "race", "read-after-write", "setp.eq.u32 %p1, %r2, 0; @%p1 st.shared.u32 [%r5], 0; "
        "bar.sync 0; red.shared.add.u32 [%r5], 1; ld.shared.u32 %r9, [%r5];",
    ),
    "byte-wise": (
        "race", "read-after-write", "add.u32 %r9, %r5, %r2; cvt.u16.u32 %h1, %r2; "
        "st.shared.u8 [%r9], %h1; xor.b32 %r10, %r2, 1; add.u32 %r10, %r10, %r5; "
        "ld.shared.u8 %h2, [%r10];",
    ),
    "never-completed barrier": (
        "sync", "never-completed", "setp.lt.u32 %p1, %r2, 32; @%p1 bra L9; bar.sync 0, 64; L9:",
    ),
    "different barriers": (
        "sync", "different-barriers", "setp.lt.u32 %p1, %r2, 10; @%p1 bra L1; bar.sync 0; bra L2; "
        "L1: bar.sync 0; L2:",
    ),
    "shuffle under a branch": (
        "sync", "absent-lanes", "setp.lt.u32 %p1, %r7, 16; @%p1 bra L1; "
        "shfl.sync.down.b32 %r9, %r2, 1, 31, -1; L1:",
    ),
    "vote under a branch": (
        "sync", "absent-lanes", "setp.lt.u32 %p1, %r7, 16; @%p1 bra L1; "
        "vote.sync.ballot.b32 %r9, %p1, -1; L1:",
    ),
    "a member mask that lies": (
        "sync", "not-a-member", "shfl.sync.down.b32 %r9, %r2, 1, 31, 0xffff;",
    ),
    "a source lane that left": (
        "sync", "absent-source", "setp.lt.u32 %p1, %r7, 16; @%p1 bra L1; "
        "shfl.sync.up.b32 %r9, %r2, 8, 0, 0xffff0000; L1:",
    ),
    "trap": ("trap", "trap", "setp.eq.u32 %p1, %r2, 5; @%p1 trap;"),
}  # fmt: skip


PLANTED.update(MORE)


@for_each("name", PLANTED)
def test_a_planted_bug_is_found_and_nothing_else(name: str) -> None:
    check, rule, body = PLANTED[name]
    found = launch(body).findings
    assert {(f.check, f.rule) for f in found} == {(check, rule)}, [str(f) for f in found]
    lines = (HEAD + body).splitlines()
    assert all(f.place.ptx_line == len(lines) for f in found)


HARMLESS = {
    "same value": "st.shared.u32 [%r5], 7; bar.sync 0; ld.shared.u32 %r9, [%r5];",
    "warp barrier": "st.shared.u32 [%r6], %r2; bar.warp.sync -1; xor.b32 %r9, %r4, 4; "
    "add.u32 %r9, %r9, %r5; ld.shared.u32 %r10, [%r9];",
    "atomics": "setp.eq.u32 %p1, %r2, 0; @%p1 st.shared.u32 [%r5], 0; bar.sync 0; "
    "red.shared.add.u32 [%r5], 1; bar.sync 0; ld.shared.u32 %r9, [%r5];",
    "bytes of one word": "add.u32 %r9, %r5, %r2; cvt.u16.u32 %h1, %r2; st.shared.u8 [%r9], %h1; "
    "ld.shared.u8 %h2, [%r9];",
    "the last element": "ld.global.f32 %f1, [%rd1+252];",
    "a guarded read": "setp.gt.u32 %p1, %r2, 99; @%p1 ld.global.f32 %f1, [%rd4+4096];",
    "copy waited for": "cp.async.ca.shared.global [%r6], [%rd4], 4; cp.async.commit_group; "
    "cp.async.wait_group 0; ld.shared.u32 %r9, [%r6];",
    "threads that left": "setp.lt.u32 %p1, %r2, 20; @%p1 exit; bar.sync 0;",
    "a shuffle among half": "setp.lt.u32 %p1, %r7, 16; @%p1 bra L1; "
    "shfl.sync.bfly.b32 %r9, %r2, 8, 31, 0xffff0000; L1:",
    "one thread writes for all": "setp.eq.u32 %p1, %r2, 0; @%p1 st.shared.u32 [%r5], 7; "
    "bar.sync 0; ld.shared.u32 %r9, [%r5];",
}


HARMLESS.update(HARMLESS_MORE)


@for_each("name", HARMLESS)
def test_what_is_right_is_not_reported(name: str) -> None:
    assert [str(f) for f in launch(HARMLESS[name]).findings] == []


def test_blocks_that_race_on_global_memory_are_found() -> None:
    body = "cvt.rn.f32.u32 %f1, %r3; st.global.f32 [%rd5], %f1;"
    found = launch(body, grid=3).findings
    assert {(f.check, f.rule) for f in found} == {("race", "between-blocks-write-after-write")}
    body = "ld.global.f32 %f1, [%rd4]; add.f32 %f1, %f1, 0f3f800000; st.global.f32 [%rd4], %f1;"
    found = launch(body, grid=3).findings
    assert {f.check for f in found} == {"race"}


def test_a_finding_names_variable_thread_and_count() -> None:
    (found,) = launch(PLANTED["read after write"][2]).findings
    assert found.count == 64
    assert "reads s[1]" in found.message and "written by thread 1 (block 0)" in found.message
    (found,) = launch(PLANTED["read past the end"][2]).findings
    assert found.count == 1 and found.thread == (63, 0, 0) and "x[64]" in found.message


def test_a_loop_without_end_ends_at_the_budget() -> None:
    from gpuemu_flow.emulator.errors import BudgetError

    with pytest.raises(BudgetError) as caught:
        launch("L1: bra L1;", block=1)
    assert caught.value.slug == "emulator-budget"


def test_checks_that_are_off_find_nothing_and_nothing_is_read_outside() -> None:
    kernel = load_kernel(
        (HEAD + "ld.global.u32 %r9, [%rd4+4096000]; st.global.u32 [%rd5+123456], %r9; ret;\n}")
        .encode(), "planted.ptx",
    )  # fmt: skip
    buffers = [as_argument(np.zeros(64, "f4")), as_argument(out(64)), as_argument(np.int32(0))]
    result = kernel.launch([1], [64], buffers, checks=())
    assert result.findings == ()


@pytest.mark.parametrize(
    ("body", "depends"),
    [
        ("st.global.u32 [%rd5], %r3;", True),
        ("add.u32 %r8, %r3, 1; atom.global.exch.b32 %r9, [%rd2], %r8;", True),
        ("red.global.add.u32 [%rd1], %r3;", False),
        ("mul.wide.u32 %rd8, %r3, 4; add.s64 %rd8, %rd2, %rd8; st.global.u32 [%rd8], %r3;", False),
    ],
)
def test_what_depends_on_the_order_of_blocks(body: str, depends: bool) -> None:
    kernel = load_kernel((HEAD + body + "\n ret;\n}\n").encode(), "planted.ptx")
    buffers = [as_argument(np.zeros(64, "u4")), as_argument(np.zeros(64, "u4"))]
    given = [*buffers, as_argument(np.int32(0))]
    result = kernel.launch([3], [64], given, checks=())
    found = find_order_dependence(kernel, [3], [64], given, result, shared=0, budget=1_000_000)
    assert [f.check for f in found] == (["order"] if depends else [])


@for_each(
    ("body", "depends"),
    [
        # Threads of two warps write their index to one place: the last one stays.
        ("setp.gt.u32 %p1, %r2, 31; @%p1 st.global.u32 [%rd2], %r2;", True),
        ("add.u32 %r8, %r2, 1; atom.global.exch.b32 %r9, [%rd2], %r8;", True),
        ("atom.global.add.u32 %r9, [%rd2], 1; mul.wide.u32 %rd8, %r2, 4; "
         "add.s64 %rd8, %rd1, %rd8; st.global.u32 [%rd8], %r9;", True),
        ("red.global.add.u32 [%rd1], %r2;", False),
        ("shfl.sync.bfly.b32 %r8, %r2, 1, 31, -1; mul.wide.u32 %rd8, %r2, 4; "
         "add.s64 %rd8, %rd2, %rd8; st.global.u32 [%rd8], %r8;", False),
    ],
)  # fmt: skip
@for_each("threads", [96, 80])
def test_what_depends_on_the_order_of_warps(body: str, depends: bool, threads: int) -> None:
    kernel = load_kernel((HEAD + body + "\n ret;\n}\n").encode(), "planted.ptx")
    buffers = [as_argument(np.zeros(96, "u4")), as_argument(np.zeros(96, "u4"))]
    given = [*buffers, as_argument(np.int32(0))]
    result = kernel.launch([1], [threads], given, checks=())
    found = find_order_dependence(kernel, [1], [threads], given, result, shared=0, budget=1_000_000)
    assert {f.rule for f in found} == ({"warp-order"} if depends else set())


@pytest.mark.parametrize("backend", ["numpy", pytest.param("c", marks=needs_compiler)])
@pytest.mark.parametrize(
    "moved", ["mov.u32 %r8, n; cvt.u64.u32 %rd8, %r8;", "mov.u64 %rd8, n;"]
)  # fmt: skip
def test_a_parameter_is_read_by_its_address(
    moved: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its address in the space of parameters fits 32 bits; compilers make use of that."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    body = f"{moved} cvta.param.u64 %rd9, %rd8; ld.u32 %r9, [%rd9]; st.global.u32 [%rd2], %r9;"
    kernel = load_kernel((HEAD + body + "\n ret;\n}\n").encode(), "planted.ptx")
    buffers = [as_argument(np.zeros(4, "u4")), as_argument(np.zeros(4, "u4"))]
    given = [*buffers, as_argument(np.int32(1234))]
    result = kernel.launch([1], [32], given, checks=("mem",), backend=backend)
    assert result.backend == backend
    assert result.findings == ()
    assert result.buffers[1] is not None and result.buffers[1][0] == 1234


@pytest.mark.ci
def test_a_warp_in_the_middle_gets_its_turn() -> None:
    """Two warps spin on barrier objects, before and behind the one that they wait for."""
    spin = "mbarrier.try_wait.parity.shared.b64 %p7, [%r20], 0; @!%p7 bra"
    body = (
        "mov.u32 %r20, s2; setp.eq.u32 %p6, %r2, 0; @%p6 mbarrier.init.shared.b64 [%r20], 32; "
        "bar.sync 0; setp.lt.u32 %p1, %r2, 32; setp.gt.u32 %p2, %r2, 63; @%p2 bra LAST; "
        f"@!%p1 bra MIDDLE; FIRST: {spin} FIRST; bra END; "
        "MIDDLE: mov.u32 %r9, 0; L: add.u32 %r9, %r9, 1; shfl.sync.bfly.b32 %r10, %r9, 1, 31, -1; "
        "setp.lt.u32 %p3, %r9, 50; @%p3 bra L; mbarrier.arrive.shared.b64 %rd20, [%r20]; bra END; "
        f"LAST: {spin} LAST; END: "
    )
    for backend in ("numpy", "c"):
        assert launch(body, block=96, backend=backend).findings == ()


REUSED = (
    "shr.u32 %r8, %r2, 5; setp.eq.u32 %p0, %r8, 0; setp.eq.u32 %p1, %r8, 1; "
    "setp.eq.u32 %p2, %r8, 2; setp.eq.u32 %p3, %r8, 4; "
    "@!%p3 bra N; bar.sync 3, 64; bra END; N: @%p0 bra W0; @%p1 bra W1; @%p2 bra W2; "
    "bar.sync 2, 64; bar.sync 1, 64; {read} bar.sync 3, 64; bra END; "
    "W0: setp.eq.u32 %p5, %r7, 0; @%p5 st.shared.u32 [%r5], 5; bar.arrive 1, 64; bra END; "
    "W1: bar.sync 1, 64; ld.shared.u32 %r10, [%r5]; bra END; "
    "W2: mov.u32 %r11, 0; L: add.u32 %r11, %r11, 1; setp.lt.u32 %p4, %r11, 99; @%p4 bra L; "
    "bar.sync 2, 64; bar.arrive 1, 64; END:"
)
"""Warps 0 and 1, and then 2 and 3, meet at barrier 1, while warp 4 waits at another one."""


@pytest.mark.parametrize("backend", ["numpy", pytest.param("c", marks=needs_compiler)])
def test_a_barrier_forgets_who_arrived_once_it_is_passed(backend: str) -> None:
    read = "ld.shared.u32 %r10, [%r5];"
    found = launch(REUSED.format(read=read), block=160, backend=backend).findings
    assert [(f.check, f.rule) for f in found] == [("race", "read-after-write")]
    assert not launch(REUSED.format(read=""), block=160, backend=backend).findings


COMPUTED = (
    "shr.u32 %r8, %r2, 5; setp.eq.u32 %p0, %r8, 0; setp.eq.u32 %p1, %r8, 2; "
    "and.b32 %r12, %r8, 0; add.u32 %r12, %r12, {number}; @%p0 bra W0; @%p1 bra W2; "
    "bar.sync 1, 64; ld.shared.u32 %r10, [%r5]; bra END; "
    "W0: setp.eq.u32 %p5, %r7, 0; @%p5 st.shared.u32 [%r5], 5; bar.arrive %r12, 64; bra END; "
    "W2: bar.arrive 1, 64; END:"
)
"""Warp 0 writes and arrives at a barrier of a computed number; warp 1 waits at barrier 1."""


@pytest.mark.parametrize("backend", ["numpy", pytest.param("c", marks=needs_compiler)])
def test_a_barrier_whose_number_is_computed_orders_who_arrives_there(backend: str) -> None:
    assert not launch(COMPUTED.format(number=1), block=64, backend=backend).findings
    found = launch(COMPUTED.format(number=2), block=96, backend=backend).findings
    assert [(f.check, f.rule) for f in found] == [("race", "read-after-write")]


BY = "mul.wide.s32 %rd6, %r9, 4; add.s64 %rd6, %rd1, %rd6; ld.global.f32 %f1, [%rd6];"
NARROW = {
    "product": ("mul.lo.s32 %r8, %r1, %r1; add.s32 %r9, %r8, %r2;" + BY, True),
    "product and sum": ("mad.lo.s32 %r9, %r1, %r1, %r2;" + BY, True),
    "unsigned": ("mul.lo.u32 %r9, %r1, %r1; shl.b32 %r9, %r9, 1;" + BY, True),
    "chosen": (
        "mul.lo.s32 %r8, %r1, %r1; setp.gt.s32 %p1, %r1, 0; selp.b32 %r9, %r8, %r2, %p1;" + BY,
        True,
    ),
    "hashed": ("mul.lo.s32 %r8, %r1, %r1; rem.u32 %r9, %r8, 64;" + BY, False),
    "masked": ("mul.lo.s32 %r8, %r1, %r1; and.b32 %r9, %r8, 63;" + BY, False),
    "widened": (
        "mul.wide.s32 %rd6, %r1, %r1; cvt.u32.u64 %r9, %rd6; mov.u32 %r9, %r2;" + BY, False,
    ),
    "guarded": (
        "mad.lo.s32 %r9, %r1, %r1, %r2; setp.gt.s32 %p1, %r1, 99; mul.wide.s32 %rd6, %r9, 4;"
        " add.s64 %rd6, %rd1, %rd6; @!%p1 ld.global.f32 %f1, [%rd6];", False,
    ),
    "no address": ("mad.lo.s32 %r9, %r1, %r1, %r2; st.global.u32 [%rd5], %r9;", False),
    "overwritten": ("mul.lo.s32 %r9, %r1, %r1; mov.u32 %r9, %r2;" + BY, False),
}  # fmt: skip


@pytest.mark.parametrize("backend", ["numpy", pytest.param("c", marks=needs_compiler)])
@pytest.mark.parametrize("name", NARROW)
def test_an_address_from_a_product_that_wrapped_is_found(name: str, backend: str) -> None:
    """2**26 times itself is 0 in 32 bits, a place like any other."""
    body, found = NARROW[name]
    wide = launch(body, n=1 << 26, backend=backend).findings
    assert [(f.check, f.rule) for f in wide] == [("mem", "narrow-offset")] * found
    assert not launch(body, n=0, backend=backend).findings


@needs_compiler
@for_each("backend", ["numpy", "c"])
def test_lanes_with_their_own_masks_vote_and_reduce_among_themselves(backend: str) -> None:
    # As groups of cooperative_groups do: lanes of one `tid % 3` have one mask, in one instruction
    found = launch(
        "rem.u32 %r8, %r2, 3; match.any.sync.b32 %r9, %r8, -1;"
        "setp.gt.u32 %p1, %r7, 20; selp.u32 %r21, 1, 0, %p1;"
        "redux.sync.add.u32 %r10, %r2, %r9; redux.sync.max.u32 %r11, %r2, %r9;"
        "vote.sync.ballot.b32 %r12, %p1, %r9; vote.sync.any.pred %p2, %p1, %r9;"
        "vote.sync.all.pred %p3, %p1, %r9; selp.u32 %r13, 1, 0, %p2; selp.u32 %r14, 1, 0, %p3;"
        "match.any.sync.b32 %r15, %r21, %r9; match.all.sync.b32 %r16|%p4, %r8, %r9;"
        "mad.lo.u32 %r17, %r10, 31, %r11; mad.lo.u32 %r17, %r17, 31, %r12;"
        "mad.lo.u32 %r17, %r17, 31, %r13; mad.lo.u32 %r17, %r17, 31, %r14;"
        "mad.lo.u32 %r17, %r17, 31, %r15; mad.lo.u32 %r17, %r17, 31, %r16;"
        "st.global.u32 [%rd5], %r17;",
        backend=backend,
    )
    wanted = []
    for thread in range(64):
        ours = [t for t in range(thread & 32, (thread & 32) + 32) if t % 3 == thread % 3]
        late = [t for t in ours if t % 32 > 20]
        alike = late if thread % 32 > 20 else [t for t in ours if t not in late]
        bits = [sum(1 << t % 32 for t in some) for some in (late, alike, ours)]
        total = 0
        for part in (sum(ours), max(ours), bits[0], bool(late), late == ours, *bits[1:]):
            total = (total * 31 + part) & 0xFFFFFFFF
        wanted.append(total)
    assert found.buffers[1].view("u4").tolist() == wanted
    assert not found.findings


def test_what_a_compiler_moved_is_found_where_its_value_is_used() -> None:
    text = (
        HEAD.replace(".address_size 64", '.address_size 64\n.file 1 "a.cu"')
        + ".loc 1 7 1\n st.shared.u32 [%r6], %r2;\n .loc 1 0 1\n ld.shared.u32 %r8, [%r5+8];\n"
        + ".loc 1 8 1\n add.u32 %r9, %r1, 1;\n .loc 1 9 1\n add.u32 %r9, %r9, %r8;\n"
        + "st.global.u32 [%rd5], %r9;\n ret;\n}\n"
    )
    given = [as_argument(np.zeros(64, "f4")), as_argument(out(64)), as_argument(np.int32(0))]
    (found,) = load_kernel(text.encode(), "moved.ptx").launch([1], [64], given).findings
    assert str(found).startswith("racecheck: a.cu:9 ld.shared reads s[2]"), found


@needs_compiler
@for_each("backend", ["numpy", "c"])
@for_each("use", ["", "mov.u32 %r8, %r8;", "shfl.sync.down.b32 %r8|%p2, %r8, 16, 31, -1;"])
def test_a_value_that_some_threads_lack_is_found_where_it_is_stored(use: str, backend: str) -> None:
    some = "setp.ge.u32 %p1, %r2, 50; @%p1 bra ON; mov.u32 %r8, 5; ON: "
    found = launch(some + use + " st.global.u32 [%rd5], %r8;", backend=backend).findings
    # of the lanes 18 to 31 of the second warp, and those that they give their value to
    assert [(f.rule, f.count) for f in found] == [
        ("unwritten-register", 28 if "shfl" in use else 14)
    ]
