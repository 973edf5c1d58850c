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
        + COPY + PARITY + "@%p6 ld.shared.u32 %r9, [%r6];",
    ),
    "bulk copy read before it came": (
        "init", "never-written", SINGLE + EXPECT + COPY + "@%p6 ld.shared.u32 %r9, [%r6];",
    ),
    "bulk copy read by others before it came": (
        "race", "read-after-write", "st.shared.u32 [%r6], 7; " + SINGLE + EXPECT + COPY
        + "ld.shared.u32 %r9, [%r6];",
    ),
    "bulk copy over what others still read": (
        "race", "write-after-read", "st.shared.u32 [%r6], 7; " + SINGLE + EXPECT
        + "ld.shared.u32 %r9, [%r6]; " + COPY + PARITY,
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
    "lanes write their numbers to one global place": (
        "race", "same-instruction", "st.global.u32 [%rd2], %r2;",
    ),
    "two lanes of many differ": (
        "race", "same-instruction", "setp.eq.u32 %p1, %r2, 40; selp.u32 %r9, 1, 0, %p1; "
        "st.global.u32 [%rd2], %r9;",
    ),
    "a lane keeps what another changes": (
        "race", "same-instruction", "st.shared.u32 [%r5], 0; bar.sync 0; "
        "setp.lt.u32 %p1, %r2, 2; @%p1 st.shared.u32 [%r5], %r2;",
    ),
    "vectors of neighbours differ in one element": (
        "race", "same-instruction", "and.b64 %rd8, %rd3, -8; add.s64 %rd8, %rd8, %rd2; "
        "st.global.v2.u32 [%rd8], {%r3, %r2};",
    ),
    "a lane stores twice, the next one what it left": (
        "race", "same-instruction", "setp.lt.u32 %p1, %r2, 2; add.u32 %r9, %r2, 5; "
        "@%p1 st.global.u32 [%rd2], %r9; @%p1 st.global.u32 [%rd2], 6;",
    ),
    "volatile stores of a warp": (
        "race", "same-instruction", "st.volatile.global.u32 [%rd2], %r2;",
    ),
    "volatile stores of a warp to shared memory": (
        "race", "same-instruction", "st.volatile.shared.u32 [%r5], %r2;",
    ),
    "by a generic address": ("race", "same-instruction", "st.u32 [%rd2], %r2;"),
    "warps write their numbers to one global place": (
        "race", "write-after-write", "shr.u32 %r9, %r2, 5; st.global.u32 [%rd2], %r9;",
    ),
    "a warp keeps what another changes": (
        "race", "write-after-write", "st.shared.u32 [%r5], 0; bar.sync 0; "
        "setp.lt.u32 %p1, %r2, 32; @%p1 st.shared.u32 [%r5], 0; @!%p1 st.shared.u32 [%r5], 9;",
    ),
}  # fmt: skip
"""By name: check, rule, body; as `PLANTED` of test_emulator_checks."""

_FIELDS = (
    ("global_address", "", "%rd1"), ("rank", "", "1"), ("box_dim", "0,", "16"),
    ("box_dim", "1,", "4"), ("global_dim", "0,", "16"), ("global_dim", "1,", "4"),
    ("global_stride", "0,", "64"), ("element_stride", "0,", "1"), ("element_stride", "1,", "1"),
    ("elemtype", "", "7"),
)  # fmt: skip


def tensor_map(**changes: str) -> str:
    """PTX that makes a map of x as 4 rows of 16 floats in y, and an object for its copies."""
    lines = ["mov.u32 %r20, s2; add.u32 %r21, %r20, %r4; setp.lt.u32 %p5, %r2, 32;"]
    lines += ["setp.eq.u32 %p6, %r2, 0; @%p5 st.shared.u32 [%r21], 0; bar.sync 0;"]
    lines += ["add.u32 %r22, %r20, 128; @%p6 mbarrier.init.shared.b64 [%r22], 1;"]
    for field, number, value in _FIELDS:
        given = changes.get(field + number[:1], value)
        if given:
            wide = "b64" if field in ("global_address", "global_stride") else "b32"
            lines += [
                f"{'mov.u64 %rd10,' if wide == 'b64' else 'mov.u32 %r23,'} {given};"
                if field not in ("elemtype", "rank")
                else "",
                f"@%p6 tensormap.replace.tile.{field}.shared::cta.b1024.{wide} [%r20], {number} "
                + (given if field in ("elemtype", "rank") else "%rd10" if wide == "b64" else "%r23")
                + ";",
            ]
    lines += [
        "bar.sync 0; @%p5 tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release."
        "gpu.sync.aligned [%rd2], [%r20], 128; fence.proxy.tensormap::generic.acquire.gpu [%rd2], "
        "128; bar.sync 0;",
    ]
    return " ".join(lines) + " "


AWAIT_BOX = "@%p6 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r22], 256; "
BOX = (
    "mov.u32 %r24, 0; mov.u32 %r25, 0; @%p6 cp.async.bulk.tensor.2d.shared::cta.global.tile."
    "mbarrier::complete_tx::bytes [%r5], [%rd2, {%r24, %r25}], [%r22]; "
)
BOX_CAME = PARITY.replace("%r20", "%r22")
BOX_BACK = (
    "@%p6 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd2, {%r24, %r25}], [%r5]; "
    "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; "
)

MORE |= {
    "a box by a map of another rank": ("mem", "tensor-map", tensor_map(rank="0") + BOX),
    "a box of no elements": ("mem", "tensor-map", tensor_map(box_dim1="0") + BOX),
    "a box of more elements than there may be": (
        "mem", "tensor-map", tensor_map(box_dim1="257") + BOX,
    ),
    "a box with a stride of 60 bytes": (
        "mem", "tensor-map", tensor_map(global_stride0="60") + BOX,
    ),
    "a box of a tensor at an odd address": (
        "mem", "tensor-map", "add.s64 %rd1, %rd1, 4; " + tensor_map() + BOX,
    ),
    "a box with rows of 4 bytes": ("mem", "tensor-map", tensor_map(box_dim0="1") + BOX),
    "a box of a tensor larger than its buffer": (
        "mem", "out-of-bounds", tensor_map(global_dim1="5", box_dim0="8", box_dim1="5") + BOX,
    ),
    "a box larger than its place": (
        "mem", "out-of-bounds", tensor_map(box_dim1="8", global_dim1="8") + BOX,
    ),
    "a box to an odd place": (
        "mem", "misaligned", tensor_map(box_dim1="1") + BOX.replace("[%r5]", "[%r5+16]"),
    ),
    "a map at an odd address": (
        "mem", "misaligned", tensor_map() + BOX.replace("[%rd2", "[%rd2+16"),
    ),
    "a map that nobody made": ("init", "never-written", tensor_map() + BOX.replace(
        "[%rd2", "[%rd2+128")),
    "a map in shared memory": (
        "mem", "out-of-bounds", tensor_map() + "cvt.u64.u32 %rd9, %r20; cvta.shared.u64 %rd9, "
        "%rd9; " + BOX.replace("[%rd2", "[%rd9"),
    ),
    "a box read by its thread before it came": (
        "init", "never-written", tensor_map() + AWAIT_BOX + BOX + "@%p6 ld.shared.u32 %r9, [%r6];",
    ),
    "a box over what others still read": (
        "race", "write-after-read", "st.shared.u32 [%r6], 7; " + tensor_map() + AWAIT_BOX
        + "ld.shared.u32 %r9, [%r6]; " + BOX + BOX_CAME,
    ),
    "bytes of a box that nobody awaits": (
        "sync", "never-completed", tensor_map()
        + AWAIT_BOX.replace("256", "512") + BOX + BOX_CAME,
    ),
    "a box back of what nobody wrote": (
        "init", "never-written", tensor_map() + "mov.u32 %r24, 0; mov.u32 %r25, 0; " + BOX_BACK,
    ),
    "a box back before the others wrote": (
        "race", "read-after-write", tensor_map() + "mov.u32 %r24, 0; mov.u32 %r25, 0; "
        "st.shared.u32 [%r6], %r2; " + BOX_BACK,
    ),
}  # fmt: skip

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
    "a box": tensor_map() + AWAIT_BOX + BOX + BOX_CAME + "ld.shared.u32 %r9, [%r6]; "
    "fence.proxy.async; bar.sync 0; " + BOX_BACK,
    "a bulk copy": SINGLE + EXPECT + COPY + PARITY + "ld.shared.u32 %r9, [%r6];",
    "all lanes write one value to one place": (
        "st.global.u32 [%rd2], 7; st.volatile.global.u32 [%rd2+4], 7; st.shared.u32 [%r5], 7; "
        "st.volatile.shared.u32 [%r5+4], 7; bar.sync 0; st.shared.u32 [%r5], 7;"
    ),
    "each warp writes its value to its place": (
        "shr.u32 %r9, %r2, 5; mul.wide.u32 %rd8, %r9, 4; add.s64 %rd8, %rd8, %rd2; "
        "st.global.u32 [%rd8], %r9; st.global.u32 [%rd8], %r9;"
    ),
    "lanes store to their own places twice": (
        "st.global.u32 [%rd5], 0; st.global.u32 [%rd5], %r2; st.volatile.global.u32 [%rd5], %r3;"
    ),
    "volatile stores of two warps": (
        "shr.u32 %r9, %r2, 5; st.volatile.global.u32 [%rd2], %r9; "
        "setp.eq.u32 %p1, %r7, 0; @%p1 st.volatile.shared.u32 [%r5], %r9;"
    ),
    "lanes exchange one place": "atom.global.exch.b32 %r9, [%rd1], %r2;",
    "stack": (
        "mov.u64 %rd8, 64; alloca.u64 %rd9, %rd8, 16; st.local.u32 [%rd9+60], %r2; "
        "ld.local.u32 %r9, [%rd9+60]; st.global.u32 [%rd5], %r9;"
    ),
}  # fmt: skip
