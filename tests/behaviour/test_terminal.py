"""Test the output for a person at a real pseudo-terminal, and for programs."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path

import pytest
from mini_workspace import Mini
from terminal import GIVE_UP, terminal

SEEDED = False

_CURSOR_HIDDEN, _CURSOR_SHOWN = "\x1b[?25l", "\x1b[?25h"


@pytest.fixture
def waiting(mini: Mini) -> Mini:
    """A workspace whose op stops after some calls until the file ``go`` appears."""
    mini.unfence()
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
        assert re.search(r"\d/5 tasks  \d+\.\d s  (?!0\.0 )[\d.]+ cases/s", screen.plain)
        assert not re.search(r"^ +generate", screen.screen, re.MULTILINE), "its end is shown, too"
        (waiting.root / "go").touch()
        assert screen.finish() == 0
        assert screen.text.count(_CURSOR_HIDDEN) == screen.text.count(_CURSOR_SHOWN) == 1
        assert "cases/s" not in screen.screen
        assert re.search(r"^scale +float32 +passed +4 of 4", screen.screen, re.MULTILINE)


@pytest.mark.ci
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


@pytest.fixture
def fuzzing(mini: Mini) -> Mini:
    """A workspace whose op is wrong above 6 elements, and stops after 300 calls."""
    mini.unfence()
    mini.write(
        "scripts/scale.py",
        """
        import os, time

        def scale(x):
            with open("calls", "a") as calls:
                calls.write("x")
            while os.path.getsize("calls") > 300 and not os.path.exists("go"):
                time.sleep(0.01)
            return (x * (3 if len(x) < 7 else 4)).astype(x.dtype)
        """,
    )
    return mini


_FUZZED = re.compile(
    r"scale  ([1-9]\d*)/400 cases  \d+ cases/s  \d+\.\d s  [1-9]\d* failures  "
    r"worst margin [1-9]\d*%  [1-9]\d* combinations of shape, layout and values"
)


@pytest.mark.ci
def test_fuzz_shows_its_speed_failures_margin_and_coverage(fuzzing: Mini) -> None:
    with terminal(fuzzing, "fuzz", "scale", "-n", "400", "-j", "1", columns=160) as screen:
        screen.wait_for(lambda text: _FUZZED.search(text) is not None)
        (fuzzing.root / "go").touch()
        assert screen.finish() == 1
        assert screen.text.count(_CURSOR_HIDDEN) == screen.text.count(_CURSOR_SHOWN) == 1
        assert "combinations" not in screen.screen
        assert re.search(r"^scale: 400 cases in .*, seed 42: \d+ passed", screen.screen, re.M)
        assert "failed ToleranceExceeded in" in screen.screen
        assert re.search(r"^ +cause: \S", screen.screen, re.M)


def test_interrupting_fuzz_leaves_the_terminal_in_order(fuzzing: Mini) -> None:
    with terminal(fuzzing, "fuzz", "scale", "-n", "400", "-j", "1", columns=160) as screen:
        screen.wait_for(lambda text: _FUZZED.search(text) is not None)
        screen.type("\x03")
        assert screen.finish() == 130
        assert _CURSOR_SHOWN in screen.text
        assert "what was judged is kept: run again to go on" in screen.screen
        assert "failed ToleranceExceeded in" in screen.screen
        assert "Traceback" not in screen.text


@pytest.mark.parametrize("command", ["reproduce", "minimize"])
def test_interrupting_other_commands_ends_them_quietly(mini: Mini, command: str) -> None:
    mini.unfence()
    mini.write(
        "scripts/scale.py",
        """
        import os, time

        def scale(x):
            if os.path.exists("armed"):
                open("waiting", "w").close()
                time.sleep(1000)
            return x * 4
        """,
    )
    found = mini.command("fuzz", "scale", "-n", "1", "--format", "json", code=1)
    failure = json.loads(found.stdout)["failures"][0]
    (mini.root / "armed").touch()
    with terminal(mini, command, failure["id"]) as screen:
        waiting = threading.Thread(target=_until, args=(mini.root / "waiting",), daemon=True)
        waiting.start()
        waiting.join(GIVE_UP)
        screen.type("\x03")
        assert screen.finish() == 130
        assert "Traceback" not in screen.text
        assert screen.screen.strip().endswith("interrupted")


def _until(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


@pytest.mark.ci
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
@pytest.mark.ci
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


@pytest.mark.ci
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
