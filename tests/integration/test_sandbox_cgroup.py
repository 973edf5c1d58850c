"""Control groups of workers, on those that this system lets the tests make.

Where version 2 of the interface has no controllers, its groups kill and nothing limits; version 1
has a file of the same name for the number of processes, which the kernel enforces there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuemu_flow.runners.sandbox import cgroup
from gpuemu_flow.runners.sandbox.cgroup import ControlGroup

pytestmark = pytest.mark.ci

FORKS = """
import os, sys
sys.stdin.read(1)
made = 0
try:
    while made < 20:
        if os.fork() == 0:
            os.read(0, 1)
            os._exit(0)
        made += 1
except BlockingIOError:
    pass
print(made, flush=True)
os.read(0, 1)
"""
Make = Callable[[str], Path]


@pytest.fixture
def make() -> Make:
    """A function that names a group to be made under a hierarchy, or skips."""

    def named(hierarchy: str) -> Path:
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, place, kind, options, *_ = line.split()
            fits = kind == hierarchy or (kind == "cgroup" and hierarchy in options.split(","))
            if fits and os.access(f"{place}/cgroup.procs", os.W_OK):
                return Path(place, f"gpuemu-test-{os.getpid()}")
        pytest.skip(f"no {hierarchy} groups can be made here")

    return named


def started(group: ControlGroup) -> subprocess.Popen[bytes]:
    """A process of the group that forks once it is told to, and says how often it could."""
    words = [sys.executable, "-c", FORKS]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    group.add(process.pid)
    return process


def test_what_is_left_in_a_group_is_killed_and_the_group_removed(make: Make) -> None:
    folder = make("cgroup2")
    group = ControlGroup(folder, {})
    with started(group) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"x")
        process.stdin.flush()
        assert process.stdout.readline() == b"20\n"
        assert len((folder / "cgroup.procs").read_text().split()) == 21
        group.end()
        assert process.wait() == -9
    assert not folder.exists()


def test_the_number_of_processes_is_limited(make: Make) -> None:
    folder = make("pids")
    group = ControlGroup(folder, {"pids.max": 5})
    with started(group) as process:
        said, _ = process.communicate(b"xx" * 20)
        assert said == b"4\n"
    group.end()
    assert not folder.exists()


def test_a_group_that_cannot_be_limited_is_not_left_behind(tmp_path: Path) -> None:
    """A folder that is none of the kernel's has no files of limits."""
    with pytest.raises(FileNotFoundError):
        ControlGroup(tmp_path / "group", {"pids.max": 5})
    assert not (tmp_path / "group").exists()


def test_groups_of_processes_that_ended_are_removed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    ended, living = (tmp_path / f"gpuemu-{pid}-0" for pid in (process.pid, os.getppid()))
    for folder in (ended, living):
        folder.mkdir()
    cgroup._clear(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [living.name]
