"""``gpuemu-flow emulate``: a compiled kernel by itself, as text and as JSON."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from warm import warm_command

from gpuemu_flow.emulator.native.compiler import find_compiler

needs_compiler = pytest.mark.skipif(
    find_compiler(os.environ) is None, reason="no C compiler on PATH"
)
PTX = Path(__file__).resolve().parent.parent / "emulator_kernels" / "elementwise.ptx"


def emulate(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return warm_command(("emulate", *words), folder, os.environ)


def test_a_kernel_by_itself(tmp_path: Path) -> None:
    x, y = np.arange(1000, dtype="f4"), np.full(1000, 0.5, "f4")
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    done = emulate(
        tmp_path, str(PTX), "--entry", "vecadd", "--grid", "4", "--block", "256",
        "--arg", "x=@x.npy", "--arg", "y=@y.npy", "--arg", "out=f32[1000]", "--arg", "n=1000",
        "--save", "out=out.npy",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "no findings" in done.stdout
    assert np.array_equal(np.load(tmp_path / "out.npy"), x + y)


@pytest.mark.parametrize(("entry", "watched"), [("rotate", True), ("bulk_double", False)])
def test_what_is_not_watched_is_said(tmp_path: Path, entry: str, *, watched: bool) -> None:
    np.save(tmp_path / "x.npy", np.arange(256, dtype="f4"))
    arguments = ["--arg", "x=@x.npy", *(["--arg", "y=f32[256]"] if watched else [])]
    block = "128" if watched else "256"
    file = str(PTX.with_name("barriers.ptx"))
    done = emulate(tmp_path, file, "--entry", entry, "--grid", "1", "--block", block, *arguments)
    last = done.stdout.splitlines()[-1]
    said = "no findings; not watched: what bulk copies read from global memory"
    assert last == ("no findings" if watched else said), done.stderr


@pytest.mark.parametrize("kind", ["f4", "i4"])
def test_a_file_in_the_other_byte_order_holds_the_same_numbers(tmp_path: Path, kind: str) -> None:
    x, y = np.arange(1000).astype(f">{kind}"), np.full(1000, 0.5, "f4")
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    done = emulate(
        tmp_path, str(PTX), "--entry", "vecadd", "--grid", "4", "--block", "256",
        "--arg", "x=@x.npy", "--arg", "y=@y.npy", "--arg", "out=f32[1000]", "--arg", "n=1000",
        "--save", "out=out.npy",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    native = np.ascontiguousarray(x, x.dtype.newbyteorder("=")).view("f4")
    assert np.array_equal(np.load(tmp_path / "out.npy"), native + y)


def test_findings_name_the_source_line_and_end_with_exit_code_1(tmp_path: Path) -> None:
    done = emulate(
        tmp_path, str(PTX), "--entry", "vecadd", "--grid", "4", "--block", "256",
        "--arg", "x=f32[1000]", "--arg", "y=f32[1000]", "--arg", "out=f32[1000]",
        "--arg", "n=1001", "--check", "all", "--format", "json",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)["findings"]
    assert {f["rule"] for f in found} == {"out-of-bounds"}
    assert {(f["line"], f["file"].rpartition("/")[2]) for f in found} == {(8, "elementwise.cu")}
    assert {tuple(f["thread"]) for f in found} == {(232, 0, 0)}
    assert any("out[1,000]" in f["message"] for f in found)


def test_coverage_needs_no_launch(tmp_path: Path) -> None:
    done = emulate(tmp_path, str(PTX), "--coverage")
    assert done.returncode == 0
    assert "17 of 17 kernels can be run" in done.stdout


def test_mistakes_have_slugs(tmp_path: Path) -> None:
    done = emulate(tmp_path, "absent.ptx")
    assert done.returncode == 3
    assert "emulator-no-file" in done.stderr
    done = emulate(tmp_path, str(PTX), "--entry", "vecad")
    assert done.returncode == 2
    assert "emulator-launch" in done.stderr and "vecadd" in done.stderr
    done = emulate(tmp_path, str(PTX), "--entry", "vecadd", "--arg", "x=f32[1]")
    assert "emulator-argument" in done.stderr and "Traceback" not in done.stderr


@needs_compiler
def test_the_compiled_back_end_says_who_ran_and_why_not(tmp_path: Path) -> None:
    words = [
        str(PTX), "--entry", "vecadd", "--grid", "4", "--block", "256", "--arg", "x=f32[1000]",
        "--arg", "y=f32[1000]", "--arg", "out=f32[1000]", "--arg", "n=1000", "--backend", "c",
    ]  # fmt: skip
    done = emulate(tmp_path, *words, "--check", "mem,init", "--format", "json")
    said = json.loads(done.stdout)
    assert (said["backend"], said["backend_note"]) == ("c", ""), done.stderr
    done = emulate(tmp_path, *words, "--check", "order")
    assert "by numpy" in done.stdout
    assert "not compiled: " in done.stdout


def test_an_empty_cluster_is_no_shape(tmp_path: Path) -> None:
    """As an empty grid is none: a variable of a script that is not set."""
    arguments = ("x=f32[1]", "y=f32[1]", "out=f32[1]", "n=1")
    words = [word for text in arguments for word in ("--arg", text)]
    done = emulate(tmp_path, str(PTX), "--entry", "vecadd", "--cluster", "", *words)
    assert done.returncode == 2
    assert "--cluster '' is no shape; write 8 or 8,4,1" in done.stderr


def test_an_empty_entry_is_no_name(tmp_path: Path) -> None:
    one = tmp_path / "one.ptx"
    one.write_text(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry only() { ret; }\n"
    )
    assert emulate(tmp_path, str(one)).returncode == 0
    done = emulate(tmp_path, str(one), "--entry", "")
    assert done.returncode == 2
    assert "--entry '' is no name" in done.stderr


@pytest.mark.parametrize(
    "array",
    [
        np.array(["one", "two"]),
        np.array([b"one", b"two"]),
        np.array([{"a": 1}, None], dtype=object),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f4")]),
        np.array(["2026-01-01"], dtype="datetime64[D]"),
    ],
    ids=["text", "bytes", "objects", "records", "dates"],
)
def test_a_file_without_numbers_is_no_buffer(
    tmp_path: Path, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]
) -> None:
    np.save(tmp_path / "x.npy", array)
    done = emulate(
        tmp_path, str(PTX), "--entry", "vecadd", "--grid", "1", "--block", "2",
        "--arg", "x=@x.npy", "--arg", "y=f32[2]", "--arg", "out=f32[2]", "--arg", "n=2",
    )  # fmt: skip
    assert done.returncode == 2, done.stdout
    assert "numbers" in done.stderr
    assert "pickle=" not in done.stderr, "numpy's advice is to run what the file says"


CONSTANT = """.version 8.0
.target sm_80
.address_size 64
.const .align 4 .f32 w[4];
.visible .entry _Z5scale4ArgsPf(.param .align 4 .b8 p[8], .param .u64 out)
{
  .reg .b32 %r<4>; .reg .f32 %f<4>; .reg .b64 %d<4>; .reg .pred %p;
  ld.param.u32 %r0, [p]; ld.param.f32 %f0, [p+4]; ld.param.u64 %d0, [out]; mov.u32 %r1, %tid.x;
  setp.ge.u32 %p, %r1, %r0; @%p bra END; mul.wide.u32 %d1, %r1, 4; add.s64 %d0, %d0, %d1;
  ld.const.f32 %f1, [w+4]; fma.rn.f32 %f1, %f1, %f0, 0f3F800000; st.global.f32 [%d0], %f1;
END: ret;
}
"""


def test_a_constant_that_nothing_sets_is_noted_and_can_be_set(tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text(CONSTANT)
    words = ["k.ptx", "--entry", "scale", "--block", "32", "--arg", "p={3, 0.5}"]
    words += ["--arg", "out=f32[3]"]
    done = emulate(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert "note: w is a constant that nothing sets" in done.stdout and "1 to 1" in done.stdout
    done = emulate(tmp_path, *words, "--symbol", "w=f32[4]:ones", "--format", "json")
    said = json.loads(done.stdout)
    assert said["unset_constants"] == [] and said["outputs"]["out"]["least"] == 1.5
    done = emulate(tmp_path, *words, "--symbol", "w=f32[5]")
    assert done.returncode == 2 and "w has 16 bytes, its content 20" in done.stderr


GRID = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 x)
{
  .reg .b32 %r<9>; .reg .b64 %d<5>; .reg .pred %p<3>;
  ld.param.u64 %d0, [x]; mov.u32 %r0, %envreg1; mov.u32 %r1, %envreg2;
  mov.b64 %d1, {%r1, %r0}; setp.eq.s64 %p0, %d1, 0; @%p0 trap;
  mov.u32 %r2, %ctaid.x; mul.wide.u32 %d2, %r2, 4; add.s64 %d2, %d0, %d2;
  add.u32 %r3, %r2, 1; st.global.u32 [%d2], %r3; membar.gl;
  atom.global.add.u32 %r4, [%d1+4], 1;
W: ld.volatile.global.u32 %r5, [%d1+4]; setp.ne.u32 %p1, %r5, 4; @%p1 bra W; membar.gl;
  ld.global.u32 %r6, [%d0+12]; bar.sync 0; st.global.u32 [%d2+64], %r6;
  ret;
}
"""


def test_blocks_may_wait_for_all_blocks(tmp_path: Path) -> None:
    """As ``grid.sync()`` does, with the memory that a cooperative launch gives it."""
    (tmp_path / "k.ptx").write_text(GRID)
    words = ["k.ptx", "--grid", "4", "--block", "1", "--arg", "x=u32[20]:zeros"]
    done = emulate(tmp_path, *words, "--save", "x=x.npy")
    assert done.returncode == 0, done.stdout + done.stderr
    assert np.load(tmp_path / "x.npy")[16:].tolist() == [4] * 4


CALLER = """.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 r) scaled(.param .b32 x);
.visible .entry k(.param .u64 x)
{
  .reg .b32 %r<3>; .reg .b64 %d<3>;
  ld.param.u64 %d0, [x]; ld.global.u32 %r0, [%d0];
  { .param .b32 r; .param .b32 p; st.param.b32 [p], %r0; call (r), scaled, (p);
    ld.param.b32 %r1, [r]; }
  st.global.u32 [%d0], %r1; ret;
}
"""
CALLED = """.version 8.0
.target sm_80
.address_size 64
.visible .func (.param .b32 r) scaled(.param .b32 x)
{
  .reg .b32 %r<3>; ld.param.b32 %r0, [x]; mul.lo.u32 %r0, %r0, 3; st.param.b32 [r], %r0; ret;
}
"""


def test_several_files_are_linked(tmp_path: Path) -> None:
    (tmp_path / "a.ptx").write_text(CALLER)
    (tmp_path / "b.ptx").write_text(CALLED)
    (tmp_path / "ab.ptx").write_text(CALLER + CALLED)
    for files in (["a.ptx", "b.ptx"], ["b.ptx", "a.ptx"], ["ab.ptx"]):
        done = emulate(tmp_path, *files, "--arg", "x=u32[1]:ones")
        assert done.returncode == 0, done.stderr
        assert "3 to 3" in done.stdout
    done = emulate(tmp_path, "a.ptx", "--arg", "x=u32[1]:ones")
    assert done.returncode != 0 and "give the PTX that defines it, too" in done.stderr


def test_exec_says_why_a_word_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    for word, mend in {
        "nothing": "write ./NAME",
        "./nothing": "there is no such file",
        "./train.py": "`exec python ./train.py`",
    }.items():
        done = warm_command(("exec", word), tmp_path, os.environ)
        assert done.returncode == 3 and done.stdout == ""
        assert done.stderr.startswith(f"exec-no-program: {word} is no program; "), done.stderr
        assert mend in done.stderr
