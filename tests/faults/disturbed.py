"""Workspaces whose processes are killed, and what must hold afterwards."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from mini_workspace import Mini
from runner_workspace import wait_until
from warm import load_all, start_command
from warm_popen import ForkedProcess

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of linux/prctl.h
FIGURES = ("op", "dtype", "verdict", "cases", "passed", "max_abs", "max_ulp", "tolerance_used")

CONFIG = """
[project]
name = "disturbed"
[validation]
dtypes = ["float32"]
cases = 4
cause_budget = 0
[sandbox]
mode = "off"

[[rules]]
name = "table"
command = ["{python}", "-S", "make.py"]
inputs = ["src/*.txt"]
outputs = ["build/factor.txt"]

[[ops]]
name = "it"
op = "ops/it.py:it"
reference = "ops/it_ref.py:it"
needs = ["table"]
input_names = ["x"]
schema = {{ dims = {{ N = [3, 8] }}, inputs = {{ x = ["N"] }}, output = ["N"] }}
"""
MAKE = """
import os, time
from pathlib import Path

open("PIDS/rule-%d" % os.getpid(), "w").close()
lines = [line for path in sorted(Path("src").glob("*.txt")) for line in path.open()]
with open("build/factor.txt", "w") as made:
    for line in lines:
        made.write(line)
        made.flush()
        time.sleep(0.02)
open("PIDS/made-%d" % os.getpid(), "w").close()
"""
OP = """
import os, time
from pathlib import Path

open("PIDS/op-%d" % os.getpid(), "w").close()
LINES = (Path(__file__).parent.parent / "build" / "factor.txt").read_text().split()
FACTOR = sum(map(int, LINES))

def it(x):
    time.sleep(0.01)
    return (x * FACTOR).astype(x.dtype)
"""
REFERENCE = """
import os, time

open("PIDS/reference-%d" % os.getpid(), "w").close()

def it(x):
    time.sleep(0.01)
    return (x + x + x).astype(x.dtype)
"""


class Disturbed:
    """A workspace with a rule and an op, whose programs tell their process ids.

    Attributes
    ----------
    mini : Mini
    pids : Path
        Folder outside of the workspace with an empty file ``KIND-PID`` of each program that began.
    """

    def __init__(self, folder: Path) -> None:
        self.mini = Mini(folder / "workspace")
        self.pids = folder / "pids"
        self.temporary = folder / "temporary"
        for made in (self.pids, self.temporary):
            made.mkdir(parents=True)
        self.mini.env["TMPDIR"] = str(self.temporary)
        self.mini.write("gpuemu.toml", CONFIG.format(python=sys.executable))
        for name, text in (("make.py", MAKE), ("ops/it.py", OP), ("ops/it_ref.py", REFERENCE)):
            self.mini.write(name, text.replace("PIDS", str(self.pids)))
        self.mini.write("src/a.txt", "1\n2\n")

    @property
    def cache(self) -> Path:
        return self.mini.root / ".gpuemu-cache"

    @contextlib.contextmanager
    def started(self, *arguments: str) -> Iterator[Started]:
        """Start a command; at the end of the block it and all below it are gone, or it fails."""
        log = self.pids.parent / "said"
        with log.open("wb") as said:
            fd = said.fileno()
            process = start_command(arguments, self.mini.root, self.mini.environment(), fd, fd)
        try:
            yield Started(process, log)
        finally:
            process.kill()
            process.wait()

    def forget_programs(self) -> None:
        for path in self.pids.iterdir():
            path.unlink()

    def program(self, kind: str) -> int:
        """Return the process id of a program of this kind that began; 0 if none has yet."""
        found = [path.name for path in self.pids.glob(f"{kind}-*")]
        return int(found[-1].partition("-")[2]) if found else 0

    def check_after(self, undisturbed: list[tuple[Any, ...]]) -> None:
        """Check that a plain run gives the undisturbed results, and the one after has no work."""
        report = self.mini.run()
        assert figures(report) == undisturbed
        assert report["problems"] == []
        assert (self.mini.root / "build" / "factor.txt").read_text() == "1\n2\n"
        assert not list((self.cache / "staging").iterdir())
        assert not [p.name for p in (self.mini.root / "build").iterdir() if p.name[0] == "."]
        assert self.mini.run()["executed"] == []

    def check_end(self) -> None:
        """Check that nothing was set aside, or is left after a run in which programs work."""
        assert not list((self.cache / "quarantine").glob("*"))
        self.mini.command("run", "--force", code=None)
        assert not list(self.temporary.iterdir())


class Started:
    """A command that runs."""

    def __init__(self, process: ForkedProcess | subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def lasts(self, seconds: float) -> bool:
        """Let it go on for some time; tell whether it has not ended by then."""
        try:
            self.process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return True
        return False

    def kill_all(self) -> None:
        kill_all(self.process.pid)


def figures(report: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [tuple(result[name] for name in FIGURES) for result in report["results"]]


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[1])


def kill(pid: int) -> bool:
    """Kill a process with SIGKILL; tell whether there was one."""
    assert pid > 0, "which would be a whole group"
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def kill_all(pid: int) -> None:
    """Kill a process and all below it at once, as a container that ends."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            kill(one.pid)


class Leftovers:
    """Everything below this process besides what was there before, orphans included."""

    def __init__(self) -> None:
        load_all()
        self._own = psutil.Process()
        self._before = {(p.pid, p.create_time()) for p in self._own.children(recursive=True)}

    def found(self) -> list[str]:
        return [f"{p.pid} {' '.join(p.cmdline())[-120:]}" for p in self._alive()]

    def _alive(self) -> list[psutil.Process]:
        alive = []
        for process in self._own.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
                if (process.pid, process.create_time()) in self._before:
                    continue
                if process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(process)
                elif process.ppid() == self._own.pid:
                    os.waitpid(process.pid, os.WNOHANG)
        return alive

    def check(self) -> None:
        """Wait until nothing is left; what ends only after ten minutes is left behind."""
        if not wait_until(lambda: not self._alive()):
            found = self.found()
            for process in self._alive():
                process.kill()
            raise AssertionError(f"left behind: {found}")


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Become the parent of every process below this one whose own parent ends."""
    libc = ctypes.CDLL(None)
    libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_SUBREAPER, 0, 0, 0, 0)


def result_of(started: Started) -> dict[str, Any]:
    """Return the report of a command that ended, or fail with what it said."""
    text = started.said
    assert "Traceback" not in text, text
    return dict(json.loads(text[text.index("{") : text.rindex("}") + 1]))
