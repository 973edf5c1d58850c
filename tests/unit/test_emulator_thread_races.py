"""Threads of one block that meet in global memory: found without a barrier, accepted with one."""

from __future__ import annotations

import numpy as np
import pytest
from both_backends import needs_compiler
from emulated_kernels import as_argument
from for_each import for_each
from test_emulator_volatile import launch

from gpuemu_flow.emulator.findings import plain_function, readable_function
from gpuemu_flow.emulator.launch import LaunchResult, load_kernel

OWN = "mul.wide.u32 %rd8, %r1, 4; add.s64 %rd8, %rd1, %rd8; add.u32 %r12, %r1, 1; "
PUT = "st.global.u32 [%rd8], %r12; "
GET = "ld.global.u32 %r20, [%rd9]; "
KEEP = "st.global.u32 [%rd5], %r20; "


def other(lanes: int) -> str:
    """Find the cell of the thread that many lanes away."""
    return f"{OWN}xor.b32 %r9, %r1, {lanes}; mul.wide.u32 %rd9, %r9, 4; add.s64 %rd9, %rd1, %rd9; "


WRONG = {
    "a neighbour's value": ("read-after-write", other(1) + PUT + GET + KEEP),
    "another warp's value": ("read-after-write", other(32) + PUT + GET + KEEP),
    "another warp's value behind a fence": (
        "read-after-write", other(32) + PUT + "membar.gl; " + GET + KEEP,
    ),
    "another warp's value behind a warp's barrier": (
        "read-after-write", other(32) + PUT + "bar.warp.sync -1; " + GET + KEEP,
    ),
    "a value that its thread replaces": ("write-after-read", other(32) + GET + PUT + KEEP),
    "two values for one place": (
        "write-after-write", other(32) + PUT + "st.global.u32 [%rd9], %r1;",
    ),
    "a sum that others still add to": (
        "read-after-write", "red.global.add.u32 [%rd1], 1; ld.global.u32 %r20, [%rd1]; " + KEEP,
    ),
    "a volatile value": (
        "volatile-read-after-write",
        (other(32) + PUT + GET).replace("global", "volatile.global") + KEEP,
    ),
}  # fmt: skip

FLAG = (
    "@!%p2 bra READ; {put}{fence}bar.warp.sync -1; @%p1 st.volatile.global.u32 [%rd3], 1; bra END; "
    "READ: W: ld.volatile.global.u32 %r11, [%rd3]; setp.eq.u32 %p4, %r11, 0; @%p4 bra W; "
    + GET + KEEP + "END: "
)  # fmt: skip
RIGHT = {
    "a barrier": other(32) + PUT + "bar.sync 0; " + GET + KEEP,
    "a warp's barrier": other(1) + PUT + "bar.warp.sync -1; " + GET + KEEP,
    "its own value": OWN + PUT + "ld.global.u32 %r20, [%rd8]; " + PUT + KEEP,
    "one value from all": "st.global.u32 [%rd3], 7; st.global.u32 [%rd3], 7;",
    "a flag behind a fence": other(32) + FLAG.format(put=PUT, fence="membar.gl; "),
    "atomics and a barrier": (
        "red.global.add.u32 [%rd1], 1; bar.sync 0; ld.global.u32 %r20, [%rd1]; " + KEEP
    ),
    "the warp that adds last": (
        other(32) + PUT + "membar.gl; bar.warp.sync -1; and.b32 %r8, %r1, 31; "
        "setp.ne.u32 %p4, %r8, 0; @%p4 bra END; atom.global.add.u32 %r10, [%rd3], 1; "
        "setp.ne.u32 %p5, %r10, 1; @%p5 bra END; " + GET + KEEP + "END: "
    ),
}
BACKENDS = ["numpy", pytest.param("c", marks=needs_compiler)]


@for_each("backend", BACKENDS)
@for_each("grid", [1, 3])
@for_each("name", WRONG)
def test_a_missing_barrier_is_found(name: str, grid: int, backend: str) -> None:
    rule, body = WRONG[name]
    assert rule in {f.rule for f in launch(body, grid, backend).findings}


@for_each("backend", BACKENDS)
@for_each("name", RIGHT)
def test_ordered_threads_are_accepted(name: str, backend: str) -> None:
    result = launch(RIGHT[name], backend=backend)
    assert [str(f) for f in result.findings] == []


def test_a_flag_without_a_fence_orders_nothing() -> None:
    body = other(32) + FLAG.format(put=PUT, fence="")
    assert {f.rule for f in launch(body).findings} == {"read-after-write"}


def test_a_long_interval_is_examined_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuemu_flow.emulator.races.MOST_LANES", 1000)
    again = "mov.u32 %r8, 0; L: add.u32 %r12, %r12, 1; " + PUT + "add.u32 %r8, %r8, 1; "
    loop = again + "setp.lt.u32 %p6, %r8, 40; @%p6 bra L; "
    assert launch(other(32) + loop + "bar.sync 0; " + GET + KEEP).findings == ()
    assert {f.rule for f in launch(other(32) + loop + GET + KEEP).findings} == {"read-after-write"}
    late = loop.replace(PUT, PUT + "ld.global.u32 %r13, [%rd8]; ")
    late += "st.global.u32 [%rd9], %r1; "
    assert "write-after-write" in {f.rule for f in launch(other(32) + late).findings}


REPLICAS = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64{triton} x)
{{
  .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<3>;
  ld.param.u64 %d0, [x]; mov.u32 %r0, %tid.x; and.b32 %r1, %r0, 31;
  mul.wide.u32 %d1, %r1, 4; add.s64 %d1, %d0, %d1; setp.lt.u32 %p0, %r0, 32;
  ld.global.u32 %r2, [%d1]; add.u32 %r2, %r2, 1; @%p0 st.global.u32 [%d1], %r2; {more}
  ret;
}}
"""


def replicated(triton: bool, more: str = "") -> LaunchResult:
    """Launch 64 threads, of which the second half only reads what the first half replaces."""
    text = REPLICAS.format(triton=" .ptr .global .align 1" * triton, more=more)
    return load_kernel(text.encode(), "k.ptx").launch([1], [64], [as_argument(np.ones(64, "u4"))])


def test_lanes_that_only_copy_others_may_read_late() -> None:
    assert {f.rule for f in replicated(False).findings} == {"write-after-read"}
    assert replicated(True).findings == ()
    shifted = "ld.global.u32 %r3, [%d1+4]; st.global.u32 [%d1+128], %r3;"
    assert "read-after-write" in {f.rule for f in replicated(True, shifted).findings}


BLOCKS = (
    "setp.ne.u32 %p4, %r1, 0; @%p4 bra END; {add}{fence}atom.global.add.u32 %r9, [%rd3], 1; "
    "setp.ne.u32 %p5, %r9, 3; @%p5 bra END; ld.global.u32 %r20, [%rd1]; " + KEEP + "END: "
)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "add", ["red.global.add.u32 [%rd1], 1; ", "atom.global.add.u32 %r8, [%rd1], 1; ",
            "atom.global.max.u32 %r8, [%rd1], %r2; "],
)  # fmt: skip
def test_atomics_of_other_blocks_need_a_fence(add: str, backend: str) -> None:
    wrong = launch(BLOCKS.format(add=add, fence=""), 4, backend)
    assert {f.rule for f in wrong.findings} == {"between-blocks-read-after-write"}
    assert launch(BLOCKS.format(add=add, fence="membar.gl; "), 4, backend).findings == ()


SYNC = "bar.sync 0; "
ALL_STORE = other(32) + PUT + "{store}{sync}" + GET + "{late}" + KEEP


@for_each("backend", BACKENDS)
@for_each(
    ("store", "sync", "late", "rules"),
    [
        ("", SYNC, "", ()),
        (PUT, SYNC, "", ()),
        ("", SYNC, SYNC + PUT + SYNC + GET, ()),
        ("", "", "", ("read-after-write", "between-blocks-read-after-write")),
        # A block stores another value before, or another block does after.
        ("st.global.u32 [%rd8], %r2; " + PUT, SYNC, "", ("between-blocks-write-after-write",)),
        ("", SYNC, "@%p3 st.global.u32 [%rd8], 99; ", ("between-blocks-write-after-write",)),
        # Only the first block stores.
        ("@%p3 st.global.u32 [%rd3], 7; ", SYNC, "ld.global.u32 %r20, [%rd3]; ",
         ("between-blocks-read-after-write",)),
    ],
)  # fmt: skip
def test_a_block_reads_what_all_blocks_store(
    store: str, sync: str, late: str, rules: tuple[str, ...], backend: str
) -> None:
    result = launch(ALL_STORE.format(store=store, sync=sync, late=late), 3, backend)
    assert set(rules) <= {f.rule for f in result.findings}
    assert rules or result.findings == ()


@for_each(
    ("symbol", "readable", "plain"),
    [
        ("_Z4axpy6ParamsPKfPf", "axpy", "axpy"),
        ("_ZN2ns5scaleIfLi4EEEvPKT_PS1_i", "ns::scale<float, 4>", "scale"),
        ("_Z1kI6__halfLb1EEvv", "k<__half, true>", "k"),
        ("_ZN12_GLOBAL__N_11kEv", "(anonymous namespace)::k", "k"),
        ("_Z1kI1AIfLi3EES1_Evv", "k<A<float, 3>, A<float, 3>>", "k"),
        ("_Z1kIN2ns1AEPKfEvv", "k<ns::A, float const*>", "k"),
        ("_ZN2nsL1wE", "ns::w", "w"),
        ("_Z1kIXadL_Z1fvEEEvv", "k", "k"),
        ("_ZN2ns1kIXadL_Z1fvEEEEvv", "ns::k", "k"),
        ("_Z9", "_Z9", "_Z9"),
        ("plain", "plain", "plain"),
    ],
)
def test_symbols_are_read_as_cpp_writes_them(symbol: str, readable: str, plain: str) -> None:
    assert (readable_function(symbol), plain_function(symbol)) == (readable, plain)
