"""A command in a real pseudo-terminal, as tests type to it and read from it."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mini_workspace import Mini

OURS = (sys.executable, "-m", "gpuemu_flow")
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PIECES = re.compile(r"(\x1b\[[0-9;?]*[A-Za-z]|[\r\n])|([^\x1b\r\n]+)")
GIVE_UP = 600.0


class Terminal:
    """A command whose three streams are one terminal."""

    def __init__(
        self,
        mini: Mini,
        *arguments: str,
        columns: int = 120,
        program: tuple[str, ...] = OURS,
        **env: str,
    ) -> None:
        self._own, other = os.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        # COLUMNS and LINES, which pytest-xdist sets, would outrank the terminal's own size.
        others = ("NO_", "COLUMNS", "LINES")
        environment = {k: v for k, v in mini.environment().items() if not k.startswith(others)}
        self.process = subprocess.Popen(
            [*program, *arguments],
            cwd=mini.root,
            env={**environment, "TERM": "xterm-256color", **env},
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one thread
        )
        os.close(other)
        self.text = ""
        self._ended = False

    def _read(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        assert left > 0, f"nothing more came; so far:\n{self.text}"
        ready, _, _ = select.select([self._own], [], [], left)
        if ready:
            try:
                data = os.read(self._own, 1 << 16)
            except OSError:  # Linux's way to say that the other end is closed
                data = b""
            self._ended = not data
            self.text += data.decode("utf-8", "replace")

    def wait_for(self, sign: Callable[[str], bool]) -> None:
        """Read until `sign` is true of the text without escape codes."""
        deadline = time.monotonic() + GIVE_UP
        while not sign(self.plain):
            assert not self._ended, f"it ended without it:\n{self.text}"
            self._read(deadline)

    def wait_idle(self) -> None:
        """Wait until the process sleeps, as it does at a prompt when all keys are dealt with."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        deadline = time.monotonic() + GIVE_UP
        while stat.read_text().rpartition(") ")[2][0] != "S":
            assert time.monotonic() < deadline, "it goes on and on"

    def type(self, text: str) -> None:
        os.write(self._own, text.encode())

    def finish(self) -> int:
        """Read to the end; the exit code."""
        deadline = time.monotonic() + GIVE_UP
        while not self._ended:
            self._read(deadline)
        return self.process.wait(GIVE_UP)

    def hang_up(self) -> int:
        """Close the terminal under the process; return its exit code."""
        os.close(self._own)
        self._own = -1
        return self.process.wait(GIVE_UP)

    @property
    def plain(self) -> str:
        return _ESCAPE.sub("", self.text)

    @property
    def screen(self) -> str:
        """Return the text that is visible in the end; a line may be of any length."""
        lines, row, column = [""], 0, 0
        for control, text in _PIECES.findall(self.text):
            if text:
                line = lines[row].ljust(column)
                lines[row] = line[:column] + text + line[column + len(text) :]
                column += len(text)
            elif control == "\n":
                row += 1
                lines += [""] * (row - len(lines) + 1)
            elif control == "\r":
                column = 0
            elif control.endswith("A"):
                row = max(0, row - int(control[2:-1] or 1))
            elif control.endswith("K"):
                lines[row] = lines[row][:column] if control in ("\x1b[K", "\x1b[0K") else ""
            else:
                assert control.endswith(("m", "h", "l")), f"unknown control {control!r}"
        return "\n".join(lines)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self._own >= 0:
            os.close(self._own)


@contextmanager
def terminal(mini: Mini, *arguments: str, **options: object) -> Iterator[Terminal]:
    found = Terminal(mini, *arguments, **options)  # type: ignore[arg-type]
    try:
        yield found
    finally:
        found.close()
