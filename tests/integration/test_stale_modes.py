"""The right to execute a program is an input of every op that starts it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from mini_workspace import Mini
from stale_rows import PROTOCOL, PYTHON, Row, make, permits, scale_by
from test_stale_matrix import is_up_to_date, verdict_of

pytestmark = [
    pytest.mark.ci,
    pytest.mark.timeout(900),
]  # some commands per test, on whatever machine

STARTED = "import subprocess, os"
ANSWER = {
    "tool": f"#!/bin/sh\nexec {PYTHON} inner.py\n",
    "inner.py": "from protocol import answer\nanswer(3)\n",
    "protocol.py": PROTOCOL,
}
"""Python would look at the mode of its own script."""
HELPER = "#!/bin/sh\necho 3\n"
WAYS = {
    "the op itself": ('["./tool"]', ANSWER),
    "started": (
        '"op.py:scale"',
        {"op.py": scale_by("F", STARTED, "F = subprocess.check_output(['./tool'])"),
         "tool": HELPER},
    ),
    "spawned": (
        '"op.py:scale"',
        {"op.py": scale_by("F", STARTED,
                           "F = os.waitpid(os.posix_spawn('./tool', ['x'], {}), 0)[1] or 3"),
         "tool": HELPER},
    ),
    "of another program": (
        '["./outer"]',
        {"outer": "#!/bin/sh\nexec ./tool\n", **ANSWER},
    ),
}  # fmt: skip


@pytest.mark.parametrize("interpreter", [False, True], ids=["ours", "python_path"])
@pytest.mark.parametrize("way", WAYS)
def test_a_program_that_cannot_be_executed_any_more(
    way: str, interpreter: bool, tmp_path: Path
) -> None:
    op, files = WAYS[way]
    allow, refuse = permits("tool", 0o755), permits("tool", 0o644)
    outer = ("outer",) if "outer" in files else ()
    mini = make(Row(way, files, allow, refuse, op=op, executables=outer), tmp_path)
    if interpreter:
        table = f"[execution]\npython_path = {json.dumps(sys.executable)}\n"
        mini.edit("gpuemu.toml", "[validation]", f"{table}[validation]")
    assert verdict_of(mini, "run")[0] == "passed"
    assert verdict_of(mini, "run") == ("passed", [])
    refuse(mini)
    assert not is_up_to_date(mini)
    said = _verdict(mini)
    assert said == _verdict(mini, "--force") != "passed"
    allow(mini)
    assert verdict_of(mini, "run")[0] == "passed"


def _verdict(mini: Mini, *options: str) -> str:
    done = mini.command("run", "--format", "json", *options, code=None)
    if done.returncode == 2:
        return "refused"
    return str(json.loads(done.stdout)["results"][0]["verdict"])
