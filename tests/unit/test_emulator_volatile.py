"""Volatile and relaxed accesses that nothing orders: found in data, accepted in flags."""

from __future__ import annotations

import numpy as np
import pytest
from both_backends import needs_compiler
from emulated_kernels import Case, as_argument, out
from flag_kernels import contended, flags
from for_each import for_each

from gpuemu_flow.emulator.launch import LaunchResult, load_kernel

HEAD = """.version 7.0
.target {target}
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y, .param .u64 flags)
{{
  .reg .pred %p<9>; .reg .b32 %r<30>; .reg .b64 %rd<30>;
  .shared .align 16 .b8 s[1024];
  .shared .align 16 .b8 f[64];
  ld.param.u64 %rd1, [x];
  ld.param.u64 %rd2, [y];
  ld.param.u64 %rd3, [flags];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %ctaid.x;
  shl.b32 %r3, %r1, 2;
  mov.u32 %r4, s;
  add.u32 %r5, %r4, %r3;
  mov.u32 %r6, f;
  mad.lo.u32 %r7, %r2, 64, %r1;
  mul.wide.u32 %rd4, %r7, 4;
  add.s64 %rd5, %rd2, %rd4;
  mul.wide.u32 %rd6, %r2, 4;
  add.s64 %rd7, %rd1, %rd6;
  setp.eq.u32 %p1, %r1, 0;
  setp.lt.u32 %p2, %r1, 32;
  setp.eq.u32 %p3, %r2, 0;
  mov.u32 %r20, 0;
"""
BACKENDS = ["numpy", pytest.param("c", marks=needs_compiler)]
STORE = "st.global.u32 [%rd5], %r20; "
OTHER = "xor.b32 %r9, %r3, 128; add.u32 %r9, %r9, %r4; "
ZERO = "@%p1 st.shared.u32 [%r6], 0; bar.sync 0; "
POLL = "W: ld.volatile.shared.u32 %r11, [%r6]; setp.eq.u32 %p4, %r11, 0; @%p4 bra W; "
PRODUCE = "@!%p2 bra READER; st.shared.u32 [%r5], %r1; "
CONSUME = "bra END; READER: " + POLL + OTHER + "ld.shared.u32 %r20, [%r9]; END: " + STORE


def launch(body: str, grid: int = 1, backend: str = "numpy", target: str = "sm_80") -> LaunchResult:
    """Run a body by 64 threads; x and flags hold zeros, y nothing yet."""
    text = HEAD.format(target=target) + body + "\n ret;\n}\n"
    given = [np.zeros(64, "u4"), out(64 * grid, "u4"), np.zeros(16, "u4")]
    return load_kernel(text.encode(), "volatile.ptx").launch(
        [grid], [64], [as_argument(a) for a in given], budget=50_000_000, backend=backend
    )


def tree(kind: str) -> str:
    """Sum 64 values in shared memory, with a loop and without a barrier."""
    return (
        f"st.{kind}.u32 [%r5], %r1; mov.u32 %r8, 32; L: setp.ge.u32 %p4, %r1, %r8; @%p4 bra N; "
        "shl.b32 %r9, %r8, 2; add.u32 %r9, %r9, %r5; "
        f"ld.{kind}.u32 %r10, [%r9]; ld.{kind}.u32 %r11, [%r5]; add.u32 %r11, %r11, %r10; "
        f"st.{kind}.u32 [%r5], %r11; N: shr.u32 %r8, %r8, 1; setp.gt.u32 %p5, %r8, 0; "
        f"@%p5 bra L; ld.{kind}.u32 %r20, [%r4]; " + STORE
    )


WRONG = {
    "another warp's value": (
        "volatile-read-after-write",
        "st.volatile.shared.u32 [%r5], %r1; " + OTHER + "ld.volatile.shared.u32 %r20, [%r9]; "
        + STORE,
    ),
    "another lane's value": (
        "volatile-read-after-write",
        "st.volatile.shared.u32 [%r5], %r1; xor.b32 %r9, %r5, 4; "
        "ld.volatile.shared.u32 %r20, [%r9]; " + STORE,
    ),
    "relaxed accesses": (
        "volatile-read-after-write",
        "st.relaxed.cta.shared.u32 [%r5], %r1; " + OTHER
        + "ld.relaxed.cta.shared.u32 %r20, [%r9]; " + STORE,
    ),
    "a value before another thread replaces it": (
        "volatile-write-after-read",
        "st.shared.u32 [%r5], %r1; bar.sync 0; " + OTHER + "ld.volatile.shared.u32 %r20, [%r9]; "
        + STORE + "st.volatile.shared.u32 [%r5], 77;",
    ),
    "a sum by a loop": ("volatile-read-after-write", tree("volatile.shared")),
    "a sum that others still add to": (
        "volatile-read-after-write",
        ZERO + "red.shared.add.u32 [%r6], 1; ld.volatile.shared.u32 %r20, [%r6]; " + STORE,
    ),
    "a fence is no barrier": (
        "volatile-read-after-write",
        "st.volatile.shared.u32 [%r5], %r1; membar.cta; " + OTHER
        + "ld.volatile.shared.u32 %r20, [%r9]; " + STORE,
    ),
    "a flag that is looked at once": (
        "volatile-read-after-write",
        ZERO + "@%p1 st.volatile.shared.u32 [%r6], 1; ld.volatile.shared.u32 %r9, [%r6]; "
        "setp.eq.u32 %p4, %r9, 0; @%p4 bra END; mov.u32 %r20, 5; " + STORE + "END: ",
    ),
    "a flag handed on without a fence": (
        "read-after-write", ZERO + PRODUCE + "st.volatile.shared.u32 [%r6], 1; " + CONSUME,
    ),
    "data written after the fence's barrier": (
        "read-after-write",
        ZERO + "@!%p2 bra READER; membar.cta; bar.warp.sync -1; st.shared.u32 [%r5], %r1; "
        "st.volatile.shared.u32 [%r6], 1; " + CONSUME,
    ),
    "a plain store, its own atomic, and others' atomics": (
        "read-after-write",
        "@%p1 st.shared.u32 [%r6], 7; @%p1 red.shared.add.u32 [%r6], 1; "
        "@!%p2 red.shared.add.u32 [%r6], 1;",
    ),
    "a plain store, a warp's barrier, its own atomic, and others' atomics": (
        "read-after-write",
        "@%p1 st.shared.u32 [%r6], 7; bar.warp.sync -1; @%p2 red.shared.add.u32 [%r6], 1; "
        "@!%p2 red.shared.add.u32 [%r6], 1;",
    ),
    "a plain load, its own atomic, and others' atomics": (
        "write-after-read",
        ZERO + "@%p1 ld.shared.u32 %r20, [%r6]; @%p1 red.shared.add.u32 [%r6], 1; "
        "@!%p2 red.shared.add.u32 [%r6], 1; " + STORE,
    ),
    "a plain store and all atomics": (
        "read-after-write", "@%p1 st.shared.u32 [%r6], 7; red.shared.add.u32 [%r6], 1;",
    ),
}  # fmt: skip
"""By name: the rule, and the body."""

RIGHT = {
    "a barrier": (
        "st.volatile.shared.u32 [%r5], %r1; bar.sync 0; " + OTHER
        + "ld.volatile.shared.u32 %r20, [%r9]; " + STORE
    ),
    "its own value": (
        "st.volatile.shared.u32 [%r5], %r1; ld.volatile.shared.u32 %r20, [%r5]; " + STORE
    ),
    "a flag behind a fence": (
        ZERO + PRODUCE + "membar.cta; bar.warp.sync -1; st.volatile.shared.u32 [%r6], 1; " + CONSUME
    ),
    "a flag with release": (
        ZERO + PRODUCE + "st.release.cta.shared.u32 [%r6], 1; "
        + CONSUME.replace("volatile", "acquire.cta")
    ),
    "a flag set back by its reader": (
        ZERO + "@!%p1 bra REST; st.volatile.shared.u32 [%r6], 1; "
        "V: ld.volatile.shared.u32 %r11, [%r6]; setp.ne.u32 %p4, %r11, 0; @%p4 bra V; bra END; "
        "REST: setp.ne.u32 %p5, %r1, 32; @%p5 bra END; " + POLL
        + "st.volatile.shared.u32 [%r6], 0; END: "
    ),
    "a flag that one thread polls for its block": (
        ZERO + "@!%p1 st.volatile.shared.u32 [%r6], 1; L: @!%p1 bra ON; "
        "ld.volatile.shared.u32 %r11, [%r6]; st.shared.u32 [%r6+8], %r11; ON: bar.sync 0; "
        "ld.shared.u32 %r12, [%r6+8]; bar.sync 0; setp.eq.u32 %p5, %r12, 0; @%p5 bra L;"
    ),
    "the last warp adds": (
        ZERO + "st.shared.u32 [%r5], %r1; membar.cta; bar.warp.sync -1; and.b32 %r8, %r1, 31; "
        "setp.ne.u32 %p4, %r8, 0; @%p4 bra END; atom.shared.add.u32 %r9, [%r6], 1; "
        "setp.ne.u32 %p5, %r9, 1; @%p5 bra END; ld.shared.u32 %r10, [%r4+4]; "
        "ld.shared.u32 %r20, [%r4+132]; add.u32 %r20, %r20, %r10; " + STORE + "END: "
    ),
    "a test that saves an atomic": (
        ZERO + "ld.volatile.shared.u32 %r9, [%r6]; setp.ge.u32 %p4, %r9, %r1; @%p4 bra END; "
        "atom.shared.max.u32 %r10, [%r6], %r1; END: "
    ),
    "a test that saves a store": (
        ZERO + "ld.volatile.shared.u32 %r9, [%r6]; setp.ne.u32 %p4, %r9, 0; @%p4 bra END; "
        "st.volatile.shared.u32 [%r6], 1; END: "
    ),
    "a first guess for cas": (
        ZERO + "ld.volatile.shared.u32 %r9, [%r6]; L: add.u32 %r10, %r9, %r1; mov.u32 %r11, %r9; "
        "atom.shared.cas.b32 %r9, [%r6], %r11, %r10; setp.ne.u32 %p4, %r9, %r11; @%p4 bra L;"
    ),
    "a plain first guess for cas": (
        ZERO + "ld.shared.u32 %r9, [%r6]; L: add.u32 %r10, %r9, %r1; mov.u32 %r11, %r9; "
        "atom.shared.cas.b32 %r9, [%r6], %r11, %r10; setp.ne.u32 %p4, %r9, %r11; @%p4 bra L;"
    ),
    "a plain first guess for a largest value": (
        ZERO + "ld.shared.u32 %r9, [%r6]; L: setp.ge.u32 %p5, %r9, %r1; @%p5 bra END; "
        "mov.u32 %r11, %r9; atom.shared.cas.b32 %r9, [%r6], %r11, %r1; "
        "setp.ne.u32 %p4, %r9, %r11; @%p4 bra L; END: "
    ),
    "a plain first guess for cas of 64 bits": (
        "cvt.u64.u32 %rd8, %r1; ld.global.u64 %rd9, [%rd3]; "
        "L: add.s64 %rd10, %rd9, %rd8; mov.u64 %rd11, %rd9; "
        "atom.global.cas.b64 %rd9, [%rd3], %rd11, %rd10; setp.ne.u64 %p4, %rd9, %rd11; @%p4 bra L;"
    ),
    "a store, a barrier, and atomics": (
        "@%p1 st.shared.u32 [%r6], 7; bar.sync 0; red.shared.add.u32 [%r6], 1; bar.sync 0; "
        "ld.shared.u32 %r20, [%r6]; " + STORE
    ),
    "a store, a warp's barrier, and the warp's atomics": (
        "@%p1 st.shared.u32 [%r6], 7; bar.warp.sync -1; @%p2 red.shared.add.u32 [%r6], 1;"
    ),
}  # fmt: skip

COUNT = "atom.global.add.u32 %r9, [%rd3], 1; setp.ne.u32 %p5, %r9, 3; @%p5 bra END; "
SUM = (
    "mov.u32 %r8, 0; mov.u64 %rd8, %rd1; L: ld.volatile.global.u32 %r10, [%rd8]; "
    "add.u32 %r20, %r20, %r10; add.s64 %rd8, %rd8, 4; add.u32 %r8, %r8, 1; "
    "setp.lt.u32 %p6, %r8, 4; @%p6 bra L; " + STORE + "END: "
)
NOT_FIRST = "setp.ne.u32 %p4, %r1, 0; @%p4 bra END; "
CHAIN = (
    NOT_FIRST + "{store} @%p3 bra ON; W: ld.{load}.global.u32 %r10, [%rd7+-4]; "
    "setp.eq.u32 %p5, %r10, 0; @%p5 bra W; add.u32 %r11, %r10, 1; bra OUT; ON: mov.u32 %r11, 1; "
    "OUT: st.{keep}.global.u32 [%rd7], %r11; mov.u32 %r20, %r11; " + STORE + "END: "
)
LAST = (
    NOT_FIRST + "add.u32 %r12, %r2, 1; st.volatile.global.u32 [%rd7], %r12; membar.gl; "
    + COUNT + SUM.replace("END: ", "{reset}END: ")
)  # fmt: skip
RELAX = (
    NOT_FIRST + "ld.global.u32 %r10, [%rd7]; add.u32 %r10, %r10, %r2; add.u32 %r11, %r2, 1; "
    "and.b32 %r11, %r11, 3; mul.wide.u32 %rd8, %r11, 4; add.s64 %rd9, %rd1, %rd8; "
    "red.global.max.u32 [%rd9], %r10; END: "
)
LOOK = (
    NOT_FIRST + "mul.wide.u32 %rd9, %r2, 4; add.s64 %rd10, %rd2, %rd9; "
    "ld.global.u32 %r10, [%rd3]; setp.ne.u32 %p4, %r10, 0; @%p4 bra END; "
)
CLAIM = "atom.global.cas.b32 %r11, [%rd3], 0, 1; setp.ne.u32 %p5, %r11, 0; @%p5 bra END; "
TAKE = "st.global.u32 [%rd10], 5; END: "
BETWEEN_BLOCKS = {
    "the last block without a fence": (
        "volatile-between-blocks-read-after-write",
        NOT_FIRST + "add.u32 %r12, %r2, 1; st.volatile.global.u32 [%rd7], %r12; " + COUNT + SUM,
    ),
    "the last block behind a fence": (
        "",
        NOT_FIRST + "add.u32 %r12, %r2, 1; st.volatile.global.u32 [%rd7], %r12; membar.gl; "
        + COUNT + SUM,
    ),
    "the last block sets its counter back": (
        "", LAST.format(reset="st.global.u32 [%rd3], 0; "),
    ),
    "the last block sets its counter back by an atomic": (
        "", LAST.format(reset="atom.global.exch.b32 %r9, [%rd3], 0; "),
    ),
    "a counter that goes back by itself": (
        "", LAST.format(reset="").replace("add.u32 %r9, [%rd3], 1", "inc.u32 %r9, [%rd3], 3"),
    ),
    "the last block sets counter and partial sums back": (
        "", LAST.format(reset="st.volatile.global.u32 [%rd3], 0; st.global.u32 [%rd1], 0; "),
    ),
    "the first block sets the counter back": (
        "between-blocks-write-after-read",
        LAST.format(reset="").replace(
            "setp.ne.u32 %p5", "@%p3 st.global.u32 [%rd3], 0; setp.ne.u32 %p5"
        ),
    ),
    "a plain first guess for cas of all blocks": (
        "",
        NOT_FIRST + "ld.global.u32 %r9, [%rd3]; L: add.u32 %r10, %r9, 1; mov.u32 %r11, %r9; "
        "atom.global.cas.b32 %r9, [%rd3], %r11, %r10; setp.ne.u32 %p5, %r9, %r11; @%p5 bra L; "
        "END: ",
    ),
    "one block that waits for nobody": (
        "volatile-between-blocks-read-after-write",
        NOT_FIRST + "add.u32 %r12, %r2, 1; st.volatile.global.u32 [%rd7], %r12; "
        "setp.ne.u32 %p5, %r2, 3; @%p5 bra END; " + SUM,
    ),
    "each block waits for the one before": (
        "", CHAIN.format(store="", load="volatile", keep="volatile"),
    ),
    "by acquire and release": (
        "", CHAIN.format(store="", load="acquire.gpu", keep="release.gpu"),
    ),
    "data released with the flag": (
        "",
        NOT_FIRST + "@!%p3 bra REST; st.global.u32 [%rd1+16], 5; "
        "st.release.gpu.global.u32 [%rd3], 1; bra END; "
        "REST: ld.acquire.gpu.global.u32 %r10, [%rd3]; setp.eq.u32 %p5, %r10, 0; @%p5 bra REST; "
        "ld.global.u32 %r20, [%rd1+16]; " + STORE + "END: ",
    ),
    "data released with an atomic": (
        "",
        NOT_FIRST + "@!%p3 bra REST; st.global.u32 [%rd1+16], 5; "
        "atom.release.gpu.global.exch.b32 %r9, [%rd3], 1; bra END; "
        "REST: ld.acquire.gpu.global.u32 %r10, [%rd3]; setp.eq.u32 %p5, %r10, 0; @%p5 bra REST; "
        "ld.global.u32 %r20, [%rd1+16]; " + STORE + "END: ",
    ),
    "data beside a flag that releases nothing": (
        "between-blocks-read-after-write",
        NOT_FIRST + "@!%p3 bra REST; st.global.u32 [%rd1+16], 5; "
        "st.relaxed.gpu.global.u32 [%rd3], 1; bra END; "
        "REST: ld.acquire.gpu.global.u32 %r10, [%rd3]; setp.eq.u32 %p5, %r10, 0; @%p5 bra REST; "
        "ld.global.u32 %r20, [%rd1+16]; " + STORE + "END: ",
    ),
    "a block sets to zero what all add to, itself first": (
        "between-blocks-read-after-write",
        NOT_FIRST + "@%p3 st.global.u32 [%rd3], 3; @%p3 red.global.add.u32 [%rd3], 1; "
        "@!%p3 red.global.add.u32 [%rd3], 1; END: ",
    ),
    "paths are shortened until none is": ("", RELAX),
    "a plain look before an atomic that claims": ("", LOOK + CLAIM + TAKE),
    "a volatile look before a claim": ("", LOOK.replace("ld.", "ld.volatile.") + CLAIM + TAKE),
    "a maximum that is read as data": (
        "between-blocks-read-after-write",
        NOT_FIRST + "red.global.max.u32 [%rd1], %r2; ld.global.u32 %r20, [%rd1]; " + STORE
        + "END: ",
    ),
    "a maximum of what falls": (
        "between-blocks-write-after-read",
        RELAX.replace("add.u32 %r10, %r10, %r2", "sub.u32 %r10, 9, %r10"),
    ),
    "a maximum of what is multiplied by less than 0": (
        "between-blocks-write-after-read",
        RELAX.replace("add.u32 %r10, %r10, %r2", "mad.lo.s32 %r10, %r10, -3, 7"),
    ),
    "a maximum that a value elsewhere decides about": (
        "between-blocks-write-after-read",
        RELAX.replace("add.u32 %r10, %r10, %r2", "setp.gt.u32 %p4, %r10, 5; @%p4 bra END")
        .replace("%rd9], %r10", "%rd9], %r2"),
    ),
    "a claim without a look at who came first": (
        "between-blocks-write-after-read",
        LOOK + CLAIM.partition("setp")[0] + TAKE,
    ),
    "a maximum at a place that is read": (
        "between-blocks-write-after-read",
        RELAX.replace("%rd8, %r11, 4", "%rd8, %r10, 4").replace("%r10, %r10, %r2", "%r10, %r10, 0"),
    ),
    "a maximum beside a minimum": (
        "between-blocks-write-after-read",
        RELAX.replace("END: ", "red.global.min.u32 [%rd7], %r20; END: "),
    ),
    "a look that decides about data, too": (
        "between-blocks-write-after-read",
        LOOK.replace("END", "NONE", 1) + CLAIM + TAKE
        + "setp.ne.u32 %p6, %r10, 0; @%p6 bra NONE; st.global.u32 [%rd5], 5; NONE: ",
    ),
}  # fmt: skip
"""By name: the rule or '' for right kernels, and the body for 4 blocks."""


@for_each("backend", BACKENDS)
@for_each("name", WRONG)
def test_a_value_that_depends_on_timing_is_found(name: str, backend: str) -> None:
    rule, body = WRONG[name]
    found = launch(body, backend=backend).findings
    assert rule in {f.rule for f in found}, found
    assert {f.check for f in found} == {"race"}
    volatile = [f for f in found if f.rule.startswith("volatile-")]
    assert all("orders nothing" in f.message for f in volatile)


@for_each("backend", BACKENDS)
@for_each("name", RIGHT)
def test_what_is_ordered_or_retried_is_no_finding(name: str, backend: str) -> None:
    assert launch(RIGHT[name], backend=backend).findings == ()


@for_each("backend", BACKENDS)
@for_each("name", BETWEEN_BLOCKS)
def test_between_blocks(name: str, backend: str) -> None:
    rule, body = BETWEEN_BLOCKS[name]
    found = launch(body, grid=4, backend=backend).findings
    assert (rule in {f.rule for f in found}) if rule else found == (), found


@pytest.mark.ci
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, id=c.entry)
        for make in (flags, contended)
        for c in make(np.random.default_rng(1), 300)
    ],
)
def test_published_ways_to_wait_are_right_and_clean(case: Case, backend: str) -> None:
    backwards = {"warps_reversed": True} if backend == "numpy" else {}
    for options in ({}, backwards):
        result = case.launch(backend=backend, **options)
        case.check(result)
        assert [str(f) for f in result.findings] == []


@pytest.mark.parametrize(("target", "count"), [("sm_60", 0), ("sm_70", 64)])
def test_lanes_of_old_gpus_go_in_step(target: str, count: int) -> None:
    """Before sm_70, volatile accesses of one warp needed no barrier."""
    found = launch(WRONG["another lane's value"][1], target=target).findings
    assert sum(f.count for f in found) == count
    assert launch(WRONG["another warp's value"][1], target=target).findings


def test_plain_accesses_say_nothing_of_volatile() -> None:
    body = WRONG["another warp's value"][1].replace(".volatile", "")
    (found,) = launch(body).findings
    assert found.rule == "read-after-write" and "volatile" not in found.message
