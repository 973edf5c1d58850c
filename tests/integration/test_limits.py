"""Limits of a process, each tried out in one of its own."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest

pytestmark = pytest.mark.ci

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")


def outcome(code: str) -> tuple[int, str]:
    """Exit code and output of a fresh interpreter."""
    prelude = "import os, sys, signal, resource\nfrom gpuemu_flow.workers import limits\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    return done.returncode, done.stdout.strip() or done.stderr.strip()


def test_no_core_file() -> None:
    code = "limits.no_core_dumps(); print(resource.getrlimit(resource.RLIMIT_CORE))"
    assert outcome(code) == (0, "(0, 0)")


@LINUX
def test_a_process_dies_with_its_parent() -> None:
    code = """
    read, write = os.pipe()
    if os.fork() == 0:
        parent = os.getpid()
        if os.fork() == 0:
            os.close(read)
            limits.die_with_parent(parent)
            os.write(write, b"armed")
            signal.pause()
        os.read(read, 5)
        os._exit(0)
    os.close(write)
    os.wait()
    print(os.read(read, 1))  # end of file: the grandchild held the only other end
    """
    assert outcome(code) == (0, "b''")


@LINUX
def test_a_parent_that_is_gone_already() -> None:
    code = """
    pid = os.fork()
    if pid == 0:
        limits.die_with_parent(os.getppid() + 1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    assert outcome(code) == (0, "1")


@LINUX
def test_orphans_are_adopted_and_listed() -> None:
    code = """
    assert limits.adopt_orphans()
    read, write = os.pipe()
    if os.fork() == 0:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        os.write(write, str(pid).encode())
        os._exit(0)
    os.wait()
    orphan = int(os.read(read, 20))
    print(limits.own_children() == [orphan])
    os.kill(orphan, 9)
    """
    assert outcome(code) == (0, "True")


def test_descriptors_are_closed_but_some() -> None:
    code = """
    kept = [os.open(os.devnull, os.O_RDONLY) for _ in range(5)]
    limits.close_all_but({0, 1, 2, kept[1], kept[3]})
    left = set(limits.open_descriptors())
    print(left >= {0, 1, 2, kept[1], kept[3]}, left & {kept[2], kept[4]})
    """
    assert outcome(code) == (0, "True set()")
