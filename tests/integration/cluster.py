"""A scheduler of dask and its workers, as processes of their own that talk over TCP."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

LONG = 300.0


class Scheduler:
    """A scheduler, and the workers that were started for it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.workers: list[subprocess.Popen[bytes]] = []
        self._stack = stack
        file = folder / "scheduler.json"
        server = self._start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
                    "--scheduler-file", str(file), "--no-jupyter")  # fmt: skip
        self.process = psutil.Process(server.pid)
        deadline = time.monotonic() + LONG
        self.address = ""
        while not self.address:
            assert time.monotonic() < deadline
            text = file.read_text() if file.exists() else ""
            _, _, rest = text.partition('"address": "')
            self.address = rest.partition('"')[0]
            time.sleep(0.02)

    def add_worker(self, *options: str, **env: str) -> psutil.Process:
        """Start a worker with one thread, and return its process."""
        number = len(self.workers)
        process = self._start("worker", self.address, "--nthreads", "1", "--no-nanny",
                              "--no-dashboard", "--name", f"w{number}", "--local-directory",
                              str(self.folder), *options, **env)  # fmt: skip
        self.workers.append(process)
        return psutil.Process(process.pid)

    def end_workers(self) -> None:
        """End all workers, and wait until the scheduler could have noticed."""
        for process in self.workers:
            _end(process)
        self.workers.clear()

    def _start(self, what: str, *arguments: str, **env: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{what}{len(self.workers)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.dask_{what}", *arguments],
                env={**os.environ, "GPUEMU_TRUST": "1", **env},
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        self._stack.callback(_end, process)
        return process


def _end(process: subprocess.Popen[bytes]) -> None:
    for below in below_of(psutil.Process(process.pid)) if process.poll() is None else ():
        try:
            below.kill()
        except psutil.NoSuchProcess:
            continue
    process.kill()
    process.wait()


@contextmanager
def started(folder: Path) -> Iterator[Scheduler]:
    """Run a scheduler; end it and its workers at the end of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        yield Scheduler(folder, stack)


def below_of(process: psutil.Process) -> list[psutil.Process]:
    """All processes that a process has started, and those that these have started."""
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def wait_until_gone(processes: list[psutil.Process]) -> list[psutil.Process]:
    """The processes that still run after a long time; none where all have ended."""
    return list(psutil.wait_procs(processes, timeout=LONG)[1])
