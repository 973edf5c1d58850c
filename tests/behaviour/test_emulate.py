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
