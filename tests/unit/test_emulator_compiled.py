"""The compiled back end: bit-equal with numpy, and numpy wherever it cannot run."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest
from both_backends import assert_equal, needs_compiler
from emulated_kernels import Case, all_cases, as_argument, out
from test_emulator_checks import HARMLESS, PLANTED
from test_emulator_checks import launch as planted
from whole import sample

from gpuemu_flow.emulator.launch import Kernel, load_kernel
from gpuemu_flow.model.errors import FlowError

VALUES = ("mem", "init", "race", "sync")

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 x)\n{\n"
HEAD += ".reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<4>; .reg .f32 %f<4>;\n"
HEAD += "ld.param.u64 %d0, [x]; mov.u32 %r0, %tid.x; mul.wide.u32 %d1, %r0, 4;\n"
HEAD += "add.s64 %d1, %d0, %d1;\n"


def kernel(body: str) -> Kernel:
    """A kernel over one buffer: its address in %d0, that of the thread's element in %d1."""
    return load_kernel((HEAD + body + "\nret;\n}\n").encode(), "k.ptx")


@pytest.fixture(autouse=True)
def cache_of_our_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch):
    """Keep libraries apart from the user's, shared by the tests of this run."""
    folder = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "gpuemu-flow" / "kernels"


NUMPY_ONLY = {
    "mma_f64": "lacks mma", "wmma_f64": "lacks wmma",
    "rotate": "lacks %globaltimer", "copied": "lacks %globaltimer",
    "last_block_sum": "wait for each other", "float_max_cas": "wait for each other",
    "spin_lock": "wait for each other", "last_adds": "wait for each other",
    "cluster_max": "clusters of blocks",
}  # fmt: skip
"""Kernels that C gives way for, and what it says."""


@pytest.mark.ci
@needs_compiler
@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.entry) for c in sample([*all_cases(1, 333)], 3)]
)
def test_a_kernel_gives_the_same_bits_compiled(case: Case) -> None:
    first = case.launch(checks=VALUES, backend="numpy")
    second = case.launch(checks=VALUES, backend="c")
    assert_equal(first, second)
    case.check(second)
    assert second.findings == ()
    assert NUMPY_ONLY.get(case.entry, "") in second.note
    assert second.backend == ("numpy" if case.entry in NUMPY_ONLY else "c"), second.note


STUMBLES = [
    ("st.global.u32 [%d1+4096], %r0;", "out-of-bounds"),
    ("ld.global.u32 %r1, [%d1+-4]; st.global.u32 [%d1], %r1;", "out-of-bounds"),
    ("st.global.u32 [%d1+2], %r0;", "misaligned"),
    ("mov.u64 %d2, 4096; st.global.u32 [%d2], %r0;", "out-of-bounds"),
    ("ld.shared.u32 %r1, [64]; st.global.u32 [%d1], %r1;", "out-of-bounds"),
    (".local .b32 a[4]; ld.local.u32 %r1, [a]; st.global.u32 [%d1], %r1;", "never-written"),
    (".local .b32 a[4]; st.local.u32 [a+16], %r0;", "out-of-bounds"),
    (".shared .b32 a[4]; ld.shared.u32 %r1, [a]; st.global.u32 [%d1], %r1;", "never-written"),
    ("setp.eq.u32 %p0, %r0, 3; @%p0 trap;", "trap"),
    ("setp.eq.u32 %p0, %r0, 3; @%p0 bra B; trap;\nB:", "trap"),
]


@needs_compiler
@pytest.mark.parametrize(("body", "rule"), sample(STUMBLES, 4, lambda row: row[1]))
def test_what_c_stumbles_over_numpy_describes(body: str, rule: str) -> None:
    x = np.arange(32, dtype="u4")
    found = [
        kernel(body).launch([1], [32], [as_argument(x)], checks=VALUES, backend=backend)
        for backend in ("numpy", "c")
    ]
    assert [str(f) for f in found[0].findings] == [str(f) for f in found[1].findings]
    assert rule in {f.rule for f in found[1].findings}
    assert found[1].backend == "numpy" and "numpy describes" in found[1].note
    assert_equal(*found)


@needs_compiler
def test_an_empty_buffer_is_read_by_nobody() -> None:
    made = kernel("ld.global.u32 %r1, [%d1]; st.global.u32 [%d1], %r1;")
    result = made.launch([1], [32], [out(32, "u4")], checks=VALUES, backend="c")
    assert {f.rule for f in result.findings} == {"never-written"}
    result = made.launch([1], [32], [out(32, "u4")], checks=("mem",), backend="c")
    assert result.findings == () and result.backend == "c"


@needs_compiler
def test_a_loop_without_end_spends_its_budget() -> None:
    with pytest.raises(FlowError) as caught:
        kernel("L: bra L;").launch([2], [64], [out(4)], checks=(), budget=10**7, backend="c")
    assert caught.value.slug == "emulator-budget"


@needs_compiler
def test_checks_that_launch_again_stay_with_numpy() -> None:
    made = kernel("st.global.u32 [%d1], %r0;")
    assert made.launch([1], [32], [out(32, "u4")], backend="c").backend == "c"
    result = made.launch([1], [32], [out(32, "u4")], checks=("mem", "order"), backend="c")
    assert result.backend == "numpy" and "order is checked by numpy" in result.note


SHARED = ".shared .align 4 .b32 s[64]; mov.u32 %r2, s; shl.b32 %r3, %r0, 2; add.u32 %r4, %r2, %r3; "
AGREED = {
    "blocks that write their own": ("mov.u32 %r5, %ctaid.x; mad.lo.u32 %r5, %r5, 64, %r0; "
                                    "mul.wide.u32 %d2, %r5, 4; add.s64 %d2, %d0, %d2; "
                                    "st.global.u32 [%d2], %r5;", "c"),
    "blocks that write one place": ("mov.u32 %r5, %ctaid.x; st.global.u32 [%d1], %r5;", "numpy"),
    "blocks that count together": ("red.global.add.u32 [%d0], 1;", "c"),
    "a sum that is read too": ("red.global.add.u32 [%d0], 1; ld.global.u32 %r5, [%d0]; "
                               "setp.eq.u32 %p0, %r5, 999; @%p0 trap;", "numpy"),
    "a barrier": (SHARED + "st.shared.u32 [%r4], %r0; bar.sync 0; xor.b32 %r5, %r3, 128; "
                  "add.u32 %r5, %r5, %r2; ld.shared.u32 %r6, [%r5];", "c"),
    "no barrier": (SHARED + "st.shared.u32 [%r4], %r0; xor.b32 %r5, %r3, 128; "
                   "add.u32 %r5, %r5, %r2; ld.shared.u32 %r6, [%r5];", "numpy"),
    "a write after reads of a warp": (
        SHARED + "st.shared.u32 [%r4], %r0; bar.sync 0; ld.shared.u32 %r5, [%r2]; "
        "setp.eq.u32 %p0, %r0, 3; @%p0 st.shared.u32 [%r2], 7;", "numpy"),
    "a write after reads of a warp and its barrier": (
        SHARED + "st.shared.u32 [%r4], %r0; bar.sync 0; setp.gt.u32 %p1, %r0, 31; @%p1 bra E; "
        "ld.shared.u32 %r5, [%r2]; bar.warp.sync -1; setp.eq.u32 %p0, %r0, 3; "
        "@%p0 st.shared.u32 [%r2], 7; E:", "c"),
    "half a block at a barrier of its own": (
        SHARED + "st.shared.u32 [%r4], %r0; setp.gt.u32 %p1, %r0, 31; @%p1 bra E; bar.sync 1, 32; "
        "xor.b32 %r5, %r3, 64; add.u32 %r5, %r5, %r2; ld.shared.u32 %r6, [%r5]; E:", "c"),
    "what one warp tells the other": (
        SHARED + "setp.gt.u32 %p1, %r0, 31; @%p1 bra E; st.shared.u32 [%r4], %r0; "
        "bar.arrive 1, 64; bra F; E: bar.sync 1, 64; ld.shared.u32 %r6, [%r4+-128]; F:", "c"),
    "what one warp did not tell the other": (
        SHARED + "setp.gt.u32 %p1, %r0, 31; @%p1 bra E; bar.arrive 1, 64; "
        "st.shared.u32 [%r4], %r0; bra F; E: bar.sync 1, 64; mov.u32 %r6, 0; "
        "L: add.u32 %r6, %r6, 1; setp.lt.u32 %p0, %r6, 99; @%p0 bra L; "
        "ld.shared.u32 %r6, [%r4+-128]; F:", "numpy"),
    "the same by all, then read": (
        SHARED + "st.shared.u32 [%r2], 7; bar.sync 0; ld.shared.u32 %r6, [%r2];", "c"),
}  # fmt: skip
"""Bodies for two blocks of 64 threads, and who ran them to the end: numpy where something is found
or may be."""


@needs_compiler
@pytest.mark.parametrize("name", sample([*AGREED], 3, lambda name: AGREED[name][1]))
def test_races_are_seen_by_both(name: str) -> None:
    body, by = AGREED[name]
    made = kernel(body)
    found = []
    for backend in ("numpy", "c"):
        x = np.zeros(256, "u4")
        found.append(made.launch([2], [64], [as_argument(x)], backend=backend))
    assert [str(f) for f in found[0].findings] == [str(f) for f in found[1].findings]
    assert found[1].backend == by
    assert bool(found[0].findings) == (by == "numpy"), [str(f) for f in found[0].findings]
    assert_equal(*found)


@pytest.mark.ci
@needs_compiler
@pytest.mark.parametrize("name", sample([*PLANTED], 4))
def test_a_planted_bug_is_found_by_both(name: str) -> None:
    results = [planted(PLANTED[name][2], backend=backend) for backend in ("numpy", "c")]
    assert [str(f) for f in results[0].findings] == [str(f) for f in results[1].findings]
    assert results[1].findings and results[1].backend == "numpy"


@needs_compiler
@pytest.mark.parametrize("name", sample([*HARMLESS], 5))
def test_what_is_harmless_runs_to_its_end_as_c(name: str) -> None:
    result = planted(HARMLESS[name], backend="c")
    assert result.findings == ()
    assert result.backend == "c" or "lacks" in result.note


def test_without_a_compiler_numpy_runs_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEMU_CC", "")
    made = kernel("st.global.u32 [%d1], %r0;")
    result = made.launch([1], [32], [out(32, "u4")], checks=VALUES, backend="c")
    assert result.backend == "numpy" and "no C compiler" in result.note
    assert (result.buffers[0] == np.arange(32)).all()


@needs_compiler
def test_a_compiler_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "cc"
    fake.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "no such thing" >&2; exit 1\n')
    fake.chmod(0o755)
    monkeypatch.setenv("GPUEMU_CC", str(fake))
    made = kernel("st.global.u32 [%d1], %r0;")
    result = made.launch([1], [32], [out(32, "u4")], checks=VALUES, backend="c")
    assert result.backend == "numpy" and "failed: no such thing" in result.note


@needs_compiler
def test_a_small_launch_is_not_worth_a_compiler() -> None:
    made = kernel("st.global.u32 [%d1], %r0;")
    assert made.launch([1], [32], [out(32, "u4")], checks=VALUES).backend == "numpy"


BIG = """mov.u32 %r1, %ctaid.x; mul.wide.u32 %d2, %r1, 4096; add.s64 %d1, %d1, %d2; mov.u32 %r1, 0;
L: add.u32 %r1, %r1, 1; setp.lt.u32 %p0, %r1, 3; @%p0 bra L;
{last}"""


@needs_compiler
@pytest.mark.parametrize(
    ("last", "by"),
    [
        ("st.global.u32 [%d1], %r1;", "c"),
        ("red.global.add.u32 [%d1], %r1;", "c"),
        ("red.global.add.f32 [%d1], 0f3F800000;", "numpy"),
        ("atom.global.add.u32 %r2, [%d1], %r1;", "numpy"),
        ("ld.volatile.global.u32 %r2, [%d1];", "numpy"),
    ],
)
def test_a_large_launch_with_all_checks_is_compiled_where_no_bit_can_differ(
    last: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuemu_flow.emulator.native.backend.LARGE", 100_000)
    made = kernel(BIG.format(last=last))
    x = np.zeros(4096, "u4")
    result = made.launch([4], [1024], [as_argument(x)])
    assert result.backend == by and result.findings == ()
    assert_equal(result, made.launch([4], [1024], [as_argument(x)], checks=(), backend="numpy"))


@needs_compiler
def test_libraries_are_private_and_checked_before_they_are_loaded(cache_of_our_own: Path) -> None:
    body = "st.global.u32 [%d1], 77;"

    def launch() -> str:
        made = kernel(body)
        result = made.launch([1], [32], [out(32, "u4")], checks=VALUES, backend="c")
        assert (result.buffers[0] == 77).all()
        return result.backend

    before = set(cache_of_our_own.glob("*")) if cache_of_our_own.exists() else set()
    assert launch() == "c"
    (made,) = set(cache_of_our_own.glob("*.so")) - before
    assert stat.S_IMODE(cache_of_our_own.stat().st_mode) == 0o700
    assert stat.S_IMODE(made.stat().st_mode) & 0o077 == 0
    data = made.read_bytes()
    made.unlink()  # a library that is loaded stays as it is
    made.write_bytes(data[:-40] + bytes(40))
    assert launch() == "c"
    assert made.read_bytes()[-32:] == data[-32:], "the damaged library was used as it was"
    elsewhere = made.with_name("elsewhere")
    made.rename(elsewhere)
    made.symlink_to(elsewhere)
    assert launch() == "c"
    assert not made.is_symlink()
    elsewhere.unlink()


@needs_compiler
def test_where_nothing_can_be_kept_kernels_run_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    made = kernel("st.global.u32 [%d1], 78;")
    result = made.launch([1], [32], [out(32, "u4")], checks=VALUES, backend="c")
    assert result.backend == "c" and (result.buffers[0] == 78).all()


@needs_compiler
def test_blocks_in_another_order() -> None:
    case = next(c for c in all_cases(3, 333) if c.entry == "vecadd")
    count = int(np.prod(case.grid))
    result = case.launch(checks=VALUES, backend="c", order=list(range(count))[::-1])
    assert result.backend == "c"
    case.check(result)


@needs_compiler
def test_no_text_of_a_file_stands_in_c() -> None:
    from gpuemu_flow.emulator.native.generate import generate

    hostile = HEAD.replace("entry k", "entry system_boom").replace(
        "%p<4>", "%p<4>; .reg .b32 %evil"
    )
    hostile += (
        "mov.u32 %evil, 7; bra evil_label;\nevil_label: st.global.u32 [%d1], %evil;\nret;\n}\n"
    )
    source = generate(load_kernel(hostile.encode(), "k.ptx").program)
    assert "evil" not in source and "boom" not in source
