"""What a person at a terminal sees, in a real pseudo-terminal, and what programs get instead."""

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

import pytest
from mini_workspace import Mini

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PIECES = re.compile(r"(\x1b\[[0-9;?]*[A-Za-z]|[\r\n])|([^\x1b\r\n]+)")
_CURSOR_HIDDEN, _CURSOR_SHOWN = "\x1b[?25l", "\x1b[?25h"
GIVE_UP = 90.0


class Terminal:
    """A command whose three streams are one terminal."""

    def __init__(self, mini: Mini, *arguments: str, columns: int = 120, **env: str) -> None:
        self._own, other = os.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        environment = {k: v for k, v in mini.environment().items() if not k.startswith("NO_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpuemu_flow", *arguments],
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

    def type(self, text: str) -> None:
        os.write(self._own, text.encode())

    def finish(self) -> int:
        """Read to the end; the exit code."""
        deadline = time.monotonic() + GIVE_UP
        while not self._ended:
            self._read(deadline)
        return self.process.wait(GIVE_UP)

    @property
    def plain(self) -> str:
        return _ESCAPE.sub("", self.text)

    @property
    def screen(self) -> str:
        """What a person sees in the end; lines are taken to be as long as they need."""
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
        os.close(self._own)


@contextmanager
def terminal(mini: Mini, *arguments: str, **options: object) -> Iterator[Terminal]:
    found = Terminal(mini, *arguments, **options)  # type: ignore[arg-type]
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def waiting(mini: Mini) -> Mini:
    """A workspace whose op stops after some calls until the file ``go`` appears."""
    mini.write(
        "scripts/scale.py",
        """
        import os, time

        def scale(x):
            with open("calls", "a") as calls:
                calls.write("x")
            while os.path.getsize("calls") > 6 and not os.path.exists("go"):
                time.sleep(0.01)
            return (x * 3).astype(x.dtype)
        """,
    )
    return mini


def test_the_display_shows_what_runs_and_how_far_it_is(waiting: Mini) -> None:
    with terminal(waiting, "run", "scale") as screen:
        screen.wait_for(lambda text: re.search(r"op +scale:float32 +[1-9]/4", text) is not None)
        assert re.search(r"\d/5 tasks  \d+\.\d s  [1-9]\d* cases/s", screen.plain)
        (waiting.root / "go").touch()
        assert screen.finish() == 0
        assert screen.text.count(_CURSOR_HIDDEN) == screen.text.count(_CURSOR_SHOWN) == 1
        assert "cases/s" not in screen.screen
        assert re.search(r"^scale +float32 +passed +4/4", screen.screen, re.MULTILINE)


def test_interrupting_leaves_the_terminal_in_order(waiting: Mini) -> None:
    with terminal(waiting, "run", "scale") as screen:
        screen.wait_for(lambda text: re.search(r"op +scale:float32 +[1-9]/4", text) is not None)
        screen.type("\x03")
        assert screen.finish() == 130
        assert _CURSOR_SHOWN in screen.text
        assert "interrupted: what was finished is kept" in screen.screen
        assert "cases/s" not in screen.screen
        assert "Traceback" not in screen.text
    (waiting.root / "go").touch()
    assert waiting.run()["results"][0]["verdict"] == "passed"


def test_verdicts_are_coloured(mini: Mini) -> None:
    mini.edit("scripts/scale.py", "* 3", "* 2")
    with terminal(mini, "run", "scale", "relu") as screen:
        assert screen.finish() == 1
        assert "\x1b[32mpassed\x1b[0m" in screen.text
        assert "\x1b[31;1mfailed\x1b[0m" in screen.text
    with terminal(mini, "explain", "relu") as screen:
        assert screen.finish() == 0
        assert "\x1b[" in screen.text


@pytest.mark.parametrize("variable", ["NO_COLOR", "GPUEMU_NO_COLOR"])
def test_who_refuses_colours_gets_plain_lines(mini: Mini, variable: str) -> None:
    mini.edit("scripts/scale.py", "* 3", "* 2")
    for arguments, code in (
        (("run", "scale"), 1),
        (("explain", "scale"), 0),
        (("list", "--status"), 0),
        (("status",), 0),
        (("run", "nothing"), 2),
    ):
        with terminal(mini, *arguments, **{variable: "1"}) as screen:
            assert screen.finish() == code
            assert "\x1b" not in screen.text, arguments
            assert screen.text.strip()


def test_an_empty_variable_refuses_nothing(mini: Mini) -> None:
    """As no-color.org has it: present and not empty."""
    with terminal(mini, "run", "relu", NO_COLOR="", GPUEMU_NO_COLOR="") as screen:
        assert screen.finish() == 0
        assert "\x1b[32mpassed" in screen.text


def test_a_dumb_terminal_gets_plain_lines(mini: Mini) -> None:
    with terminal(mini, "run", "relu", TERM="dumb") as screen:
        assert screen.finish() == 0
        assert "\x1b" not in screen.text


def test_no_terminal_gets_plain_lines(mini: Mini) -> None:
    mini.env = {"TERM": "xterm-256color", "FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"}
    mini.edit("scripts/scale.py", "* 3", "* 2")
    for arguments, code in ((("run",), 1), (("run", "relu"), 0), (("status",), 0)):
        done = mini.command(*arguments, code=code)
        assert "\x1b" not in done.stdout + done.stderr
        assert "cases/s" not in done.stdout + done.stderr


def test_json_stays_json_on_a_terminal(mini: Mini) -> None:
    with terminal(mini, "run", "relu", "--format", "json") as screen:
        assert screen.finish() == 0
        assert "\x1b" not in screen.text
        assert screen.text.lstrip().startswith("{") and screen.text.rstrip().endswith("}")


def test_what_a_script_prints_cannot_steer_the_terminal(mini: Mini) -> None:
    mini.write(
        "scripts/scale.py",
        r"""
        import sys

        def scale(x):
            sys.stderr.write("\x1b[2J\x1b]0;owned\x07\rred\x1b[31m\n")
            raise ValueError("\x1b[2Jcleared")
        """,
    )
    with terminal(mini, "run", "scale", NO_COLOR="1") as screen:
        assert screen.finish() == 3
        assert "cleared" in screen.text
        assert not set(screen.text) & {"\x1b", "\x07"}
        assert not re.search(r"\r(?!\n)", screen.text)


def test_a_narrow_terminal_loses_nothing(mini: Mini) -> None:
    with terminal(mini, "run", "relu", columns=30) as screen:
        assert screen.finish() == 0
        assert "passed" in screen.screen
