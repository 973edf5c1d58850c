"""Durations are those of the work: what is restored took that long when it was done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from built_workspace import make_built
from mini_workspace import Mini
from shared_workspace import clone, make_original

pytestmark = pytest.mark.ci

SLOW = """

import time


def burn(seconds):
    begin = time.process_time()
    while time.process_time() - begin < seconds:
        pass
"""


def durations(mini: Mini) -> dict[str, float]:
    told = json.loads(mini.command("run", "--summary", "--format", "json").stdout)
    found = {task["task"]: task["duration_s"] for task in told["tasks"]}
    return {name: seconds for name, seconds in found.items() if seconds is not None}


def test_what_is_restored_keeps_the_duration_of_its_work(checked_mini: Mini) -> None:
    checked_mini.edit("scripts/scale.py", "* 3)", "* 3.0000002)")
    edited = checked_mini.run(code=None)
    assert "op:scale:float32" in edited["executed"]
    before = durations(checked_mini)
    checked_mini.edit("scripts/scale.py", "* 3.0000002)", "* 3)")
    back = checked_mini.run()
    assert not {"op:scale:float32", "compare:scale:float32"} & set(back["executed"])
    assert durations(checked_mini) == before


def test_a_few_new_cases_add_to_the_duration(checked_mini: Mini) -> None:
    name = "op:scale:float32"
    first = durations(checked_mini)[name]
    checked_mini.run("scale", "--cases", "5")
    assert durations(checked_mini)[name] > first, "four cases were restored, and one was run"


def test_a_clone_knows_what_the_original_took(tmp_path: Path) -> None:
    original = make_original(tmp_path / "original", f"file://{tmp_path / 'share'}")
    helper = next(original.root.rglob("helper.py"))
    slow = helper.read_text().replace("    return", "    burn(0.1)\n    return")
    helper.write_text(slow + SLOW)
    original.run("--format", "json")
    other = clone(original, tmp_path / "clone")
    assert not [name for name in other.run()["executed"] if name.startswith("op:")]
    assert durations(other)["op:scale:float32"] >= 0.3, "three cases of a tenth of a second each"


def test_a_rule_that_is_put_back_keeps_its_duration(tmp_path: Path) -> None:
    built = make_built(tmp_path / "built")
    path = built.root / "make.py"
    path.write_text(path.read_text() + SLOW + "\n\nburn(0.2)\n")
    built.run()
    before = durations(built)["build:table"]
    assert before >= 0.2
    (built.root / "build" / "factor.txt").unlink()
    built.run()
    assert durations(built)["build:table"] == before
    built.command("clean", "build:table")
    (built.root / "build" / "factor.txt").unlink()
    assert "build:table" not in built.run()["executed"]
    assert durations(built)["build:table"] == before, "the store knows it, too"
