"""A command that watches a workspace: a real process; every wait is for a line that it prints."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mini_workspace import Mini

READY = "Ctrl-C ends it"


@dataclass
class Watching:
    """A running ``watch``."""

    process: subprocess.Popen[str]

    def until(self, sign: str) -> list[str]:
        """The lines up to the one that holds `sign`; pytest's own limit ends a wait in vain."""
        lines: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            lines.append(line.rstrip("\n"))
            if sign in line:
                return lines
        raise AssertionError("\n".join(["it ended without it:", *lines, self.errors()]))

    def until_there(self, name: str, mini: Mini) -> None:
        """Wait until a program of the run has made a file."""
        while not (mini.root / name).exists():
            assert self.process.poll() is None, self.errors()
            time.sleep(0.01)

    def turn(self) -> str:
        """Return the lines printed about the next save."""
        return "\n".join([*self.until(" saved: "), *self.until(READY)])

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(600)

    def errors(self) -> str:
        """Standard error of a process that has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read()


@contextmanager
def watching(mini: Mini, *arguments: str, command: str = "watch") -> Iterator[Watching]:
    """A ``watch`` of a workspace, or another command that watches it."""
    found = Watching(mini.popen(command, *arguments))
    try:
        yield found
    finally:
        found.process.kill()
        found.process.communicate()
