"""Ctrl-C while causes are looked for: the verdicts, which are complete, are shown."""

from __future__ import annotations

import json
import signal

import pytest
from mini_workspace import Mini


@pytest.mark.parametrize("command", ["run", "ci"])
def test_the_verdicts_are_shown(mini: Mini, command: str) -> None:
    mini.keep_only("scale")
    mini.edit("scripts/scale.py", "* 3", "* 2")
    process = mini.popen(command, "--format", "json")
    assert process.stdout is not None and process.stderr is not None
    before = []
    for line in process.stderr:
        before.append(line)
        if "looking for the cause" in line:
            process.send_signal(signal.SIGINT)
            break
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130, (before, out, err)
    report = json.loads(out)
    assert [(r["op"], r["verdict"]) for r in report["results"]] == [("scale", "failed")]
    (told,) = [p for p in report["problems"] if p["slug"] == "causes-cut-short"]
    assert "the search for causes was interrupted" in told["message"]
    again = mini.run(code=1)
    assert (again["executed"], again["interrupted"]) == ([], False)
    assert not [p for p in again["problems"] if p["slug"] == "causes-cut-short"]
