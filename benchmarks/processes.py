"""Time whole processes for the benchmarks: wall and CPU, with all children that were waited for."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_SCHEDULED = 2  # CPUCLOCK_SCHED of the kernel: time on a processor, in nanoseconds


@dataclass(frozen=True)
class Cost:
    """Seconds that a process took; `system_s` is the part of `cpu_s` in the operating system."""

    wall_s: float
    cpu_s: float
    system_s: float


class CommandFailedError(Exception):
    """A command of the benchmark ended with another code than 0."""


def plain_environment() -> dict[str, str]:
    """This process's environment without what changes how Python starts."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def timed(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Cost:
    """Run a command, its output thrown away.

    Raises
    ------
    CommandFailedError
        It did not end with 0.
    """
    begin = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise CommandFailedError(f"{' '.join(command)} in {folder}: {process.returncode}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_stime)


def output_of(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Run a command and return what it prints on both of its streams.

    Raises
    ------
    CommandFailedError
        It did not end with 0.
    """
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        tail = done.stdout[-2000:]
        raise CommandFailedError(f"{' '.join(command)} in {folder}: {done.returncode}\n{tail}")
    return done.stdout


def tree_cpu_s(root: int) -> float:
    """CPU seconds that a living process and its living descendants have used so far (Linux).

    From each process's CPU clock, whose number is made of the process's as clock_getcpuclockid(3)
    does; the times in ``/proc/PID/stat`` are in hundredths of a second.
    """
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = entry.joinpath("stat").read_text()
            except OSError:
                continue
            # The name in parentheses may hold anything, blanks and parentheses included.
            parent = int(text.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    total = 0.0
    pending = [root]
    while pending:
        process = pending.pop()
        pending += children.get(process, [])
        try:
            total += time.clock_gettime(~process << 3 | _SCHEDULED)
        except OSError:
            continue
    return total
