"""The host compiler that nvcc starts: from PATH, or named by a flag."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuemu_flow.lint.toolchain import host_compilers


def program(path: Path, text: str = "") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return str(path)


def test_the_first_on_path(tmp_path: Path) -> None:
    one, two = (program(tmp_path / name / "gcc", name) for name in ("one", "two"))
    path = {"PATH": f"{tmp_path / 'one'}:{tmp_path / 'two'}"}
    before = host_compilers([], tmp_path, path)
    assert list(before) == [one]
    Path(one).unlink()
    after = host_compilers([], tmp_path, path)
    assert list(after) == [two]
    assert set(before.values()).isdisjoint(after.values())


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (["-O3", "-ccbin", "bin/cxx"], ["bin/cxx"]),
        (["--compiler-bindir=bin"], ["bin/gcc", "bin/g++"]),
        (["-ccbin", "one", "-ccbin=bin/cxx"], ["bin/cxx"]),
        (["-ccbin"], ["path/gcc"]),
        (["-ccbin", "none"], []),
    ],
)
def test_one_that_a_flag_names(tmp_path: Path, flags: list[str], found: list[str]) -> None:
    for name in ("bin/gcc", "bin/g++", "bin/cxx", "path/gcc"):
        program(tmp_path / name)
    places = host_compilers(flags, tmp_path, {"PATH": str(tmp_path / "path")})
    assert list(places) == [str(tmp_path / name) for name in found]
