"""More planted bugs as PTX: registers, barrier objects, bulk copies, stack, fragments."""

from __future__ import annotations

INIT = (
    "mov.u32 %r20, s2; setp.eq.u32 %p6, %r2, 0; @%p6 mbarrier.init.shared.b64 [%r20], 64; "
    "bar.sync 0; "
)
"""A barrier object that waits for all 64 threads."""

SINGLE = INIT.replace("64; ", "1; ", 1)
ARRIVE = "mbarrier.arrive.shared.b64 %rd20, [%r20]; "
WAIT = "W1: mbarrier.test_wait.shared.b64 %p7, [%r20], %rd20; @%p7 bra W2; bra W1; W2: "
EXPECT = "@%p6 mbarrier.arrive.expect_tx.shared.b64 %rd20, [%r20], 256; "
COPY = (
    "@%p6 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r5], [%rd1], 256, "
    "[%r20]; "
)
PARITY = "W1: mbarrier.try_wait.parity.shared.b64 %p7, [%r20], 0; @%p7 bra W2; bra W1; W2: "
NEIGHBOUR = "xor.b32 %r9, %r4, 128; add.u32 %r9, %r9, %r5; ld.shared.u32 %r10, [%r9];"
FRAGMENT = "{%r8,%r9,%r10,%r11,%r12,%r13,%r14,%r15}"

MORE: dict[str, tuple[str, str, str]] = {
    "a register that nobody wrote is stored": (
        "init", "unwritten-register", "add.u32 %r9, %r21, 1; st.global.u32 [%rd5], %r9;",
    ),
    "a register that nobody wrote is added to a sum": (
        "init", "unwritten-register", "mov.u32 %r9, 0; L1: add.u32 %r21, %r21, %r9; "
        "add.u32 %r9, %r9, 1; setp.lt.u32 %p1, %r9, 3; @%p1 bra L1; st.global.u32 [%rd5], %r21;",
    ),
    "a register that nobody wrote decides": (
        "init", "unwritten-register", "setp.eq.u32 %p1, %r21, 3; @%p1 bra L1; L1:",
    ),
    "a register that only some threads wrote": (
        "init", "unwritten-register", "setp.gt.u32 %p1, %r2, 9; @%p1 mov.u32 %r21, 5; "
        "st.global.u32 [%rd5], %r21;",
    ),
    "a register that nobody wrote is an offset": (
        "init", "unwritten-register", "and.b64 %rd8, %rd21, 0; and.b32 %r8, %r21, %r21; "
        "cvt.u64.u32 %rd8, %r8; add.s64 %rd8, %rd8, %rd4; ld.global.u32 %r9, [%rd8];",
    ),
    "an atomic takes a register that nobody wrote": (
        "init", "unwritten-register", "red.global.add.u32 [%rd1], %r21;",
    ),
    "a table is indexed by a register that nobody wrote": (
        "init", "unwritten-register",
        "tab: .branchtargets L1, L2; brx.idx %r21, tab; L1: L2: ",
    ),
    "atomic on unwritten memory": ("init", "never-written", "red.global.add.u32 [%rd5], 1;"),
    "a byte of a word was never written": (
        "init", "never-written", "cvt.u16.u32 %h1, %r2; st.shared.u8 [%r6], %h1; "
        "ld.shared.u8 %h2, [%r6+1];",
    ),
    "a copy outside of any group": (
        "init", "never-written", "cp.async.ca.shared.global [%r6], [%rd4], 4; "
        "cp.async.wait_group 0; ld.shared.u32 %r9, [%r6];",
    ),
    "a copy reads what nobody wrote": (
        "init", "never-written", "cp.async.ca.shared.global [%r6], [%rd5], 4; "
        "cp.async.wait_all;",
    ),
    "a barrier object that nobody made": (
        "init", "never-written", "mov.u32 %r20, s2; mbarrier.arrive.shared.b64 _, [%r20];",
    ),
    "a barrier object passed without waiting": (
        "race", "read-after-write", INIT + "st.shared.u32 [%r6], %r2; " + ARRIVE + NEIGHBOUR,
    ),
    "a wait for the wrong phase": (
        "sync", "never-completed", INIT + "st.shared.u32 [%r6], %r2; " + ARRIVE
        + PARITY.replace(", 0;", ", 1;") + NEIGHBOUR,
    ),
    "too few threads arrive": (
        "sync", "never-completed", INIT + "setp.lt.u32 %p1, %r2, 60; mov.u64 %rd20, 0; @%p1 "
        + ARRIVE + PARITY,
    ),
    "too many threads arrive": (
        "sync", "too-many-arrivals", SINGLE + "mov.u32 %r8, 7; "
        "mbarrier.arrive.shared.b64 %rd20, [%r20], %r8; ",
    ),
    "bytes that nobody sends": ("sync", "never-completed", SINGLE + EXPECT + PARITY),
    "bytes that nobody awaits": (
        "init", "never-written", SINGLE + EXPECT.replace(".expect_tx", "").replace(", 256", "")
        + COPY + PARITY + "ld.shared.u32 %r9, [%r6];",
    ),
    "bulk copy read before it came": (
        "init", "never-written", SINGLE + EXPECT + COPY + "ld.shared.u32 %r9, [%r6];",
    ),
    "bulk copy past the end of its source": (
        "mem", "out-of-bounds", SINGLE + COPY.replace("[%rd1]", "[%rd1+16]"),
    ),
    "bulk copy past the end of its target": (
        "mem", "out-of-bounds", SINGLE + COPY.replace("[%r5]", "[%r5+16]"),
    ),
    "bulk copy at an odd address": (
        "mem", "misaligned", SINGLE + COPY.replace("[%r5]", "[%r5+4]").replace("256,", "128,"),
    ),
    "bulk copy of what nobody wrote": (
        "init", "never-written", SINGLE + "mov.u64 %rd9, %rd2; "
        + COPY.replace("[%rd1]", "[%rd9]"),
    ),
    "bulk copy back of what nobody wrote": (
        "init", "never-written", SINGLE
        + "@%p6 cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r5], 256; "
        "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;",
    ),
    "bulk copy back before the others wrote": (
        "race", "read-after-write", SINGLE + "st.shared.u32 [%r6], %r2; "
        "@%p6 cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r5], 256; "
        "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;",
    ),
    "more stack than there is": (
        "mem", "stack-overflow", "mov.u64 %rd8, 100000; alloca.u64 %rd9, %rd8, 16;",
    ),
    "past the end of the stack": (
        "mem", "out-of-bounds", "mov.u64 %rd8, 64; alloca.u64 %rd9, %rd8, 16; "
        "st.local.u32 [%rd9+8192], %r2;",
    ),
    "a fragment past the end": (
        "mem", "out-of-bounds", "mov.u32 %r21, 16; wmma.load.a.sync.aligned.row.m16n16k16."
        "global.f16 " + FRAGMENT + ", [%rd1], %r21;",
    ),
    "a fragment of what nobody wrote": (
        "init", "never-written", "mov.u32 %r21, 0; wmma.load.a.sync.aligned.row.m16n16k16."
        "global.f16 " + FRAGMENT + ", [%rd2], %r21;",
    ),
    "a product of half a warp": (
        "sync", "absent-lanes", "setp.lt.u32 %p1, %r7, 16; @%p1 bra L1; mov.u32 %r21, 0; "
        "wmma.load.a.sync.aligned.row.m16n16k16.global.f16 " + FRAGMENT + ", [%rd1], %r21; L1:",
    ),
    "a product of a warp group that is none": (
        "sync", "no-warp-group", "mov.u32 %r8, 0; mov.u32 %r9, 0; mov.u32 %r10, 0; "
        "mov.u32 %r11, 0; mov.u64 %rd8, 0; setp.eq.u32 %p1, %r2, %r2; "
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r8,%r9,%r10,%r11}, %rd8, %rd8, %p1, "
        "1, 1, 0, 0;",
    ),
    "a matrix past the end of shared memory": (
        "mem", "out-of-bounds", "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r9}, [%r5+250];"
        .replace("250", "256"),
    ),
    "a matrix of what nobody wrote": (
        "init", "never-written", "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r9}, [%r5];",
    ),
    "match by half a warp": (
        "sync", "absent-lanes", "setp.lt.u32 %p1, %r7, 16; @%p1 bra L1; "
        "match.any.sync.b32 %r9, %r2, -1; L1:",
    ),
    "redux by half a warp": (
        "sync", "absent-lanes", "setp.lt.u32 %p1, %r7, 16; @%p1 bra L1; "
        "redux.sync.add.u32 %r9, %r2, -1; L1:",
    ),
    "a warp barrier without the others": (
        "sync", "absent-lanes", "setp.lt.u32 %p1, %r7, 16; @%p1 bra L1; bar.warp.sync -1; L1:",
    ),
    "a barrier that counts wrongly": (
        "sync", "never-completed", "setp.lt.u32 %p1, %r2, 32; @%p1 bra L1; bar.sync 1, 96; L1:",
    ),
    "copies of one thread read by another": (
        "race", "read-after-write", "cp.async.ca.shared.global [%r6], [%rd4], 4; "
        "cp.async.wait_all; " + NEIGHBOUR,
    ),
}  # fmt: skip
"""By name: check, rule, body; as `PLANTED` of test_emulator_checks."""

HARMLESS_MORE = {
    "a register that nobody looks at": "add.u32 %r9, %r21, 1;",
    "a register that is chosen against": (
        "setp.lt.u32 %p1, %r2, 99; selp.b32 %r9, 5, %r21, %p1; st.global.u32 [%rd5], %r9;"
    ),
    "a register under the guard that wrote it": (
        "setp.gt.u32 %p1, %r2, 9; @%p1 mov.u32 %r21, 5; @%p1 st.global.u32 [%rd5], %r21;"
    ),
    "half of a register": (
        "cvt.u16.u32 %h1, %r2; mov.b32 %r9, {%h1, %h2}; and.b32 %r9, %r9, 0xffff; "
        "st.global.u32 [%rd5], %r9;"
    ),
    "a barrier object": INIT + "st.shared.u32 [%r6], %r2; " + ARRIVE + WAIT + NEIGHBOUR,
    "a bulk copy": SINGLE + EXPECT + COPY + PARITY + "ld.shared.u32 %r9, [%r6];",
    "stack": (
        "mov.u64 %rd8, 64; alloca.u64 %rd9, %rd8, 16; st.local.u32 [%rd9+60], %r2; "
        "ld.local.u32 %r9, [%rd9+60]; st.global.u32 [%rd5], %r9;"
    ),
}  # fmt: skip
