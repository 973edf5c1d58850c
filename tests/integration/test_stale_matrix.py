"""Every way to depend on something, changed in every way, seen by every command: nothing stale.

Each way is seen by all of the commands, or by one of them, which take turns: see `whole`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mini_workspace import Mini
from stale_rows import ROWS, Row, make
from stored_snapshot import is_clean
from whole import rotated

from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.watch.files import FileWatch

FUZZED = 1
"""Cases of a fuzzing: where the op is wrong, it is wrong in all of them."""

pytestmark = [
    pytest.mark.ci,
    pytest.mark.timeout(900),
]  # some commands per row, on whatever machine


def verdict_of(mini: Mini, command: str, *options: str) -> tuple[str, Any]:
    """Return a command's verdict on the op, and the tasks, or number of cases, that it ran.

    The verdict is ``refused`` where the configuration names a file that is not there.
    """
    arguments = {
        "run": ("run", "--format", "json"),
        "ci": ("ci", "-o", "r.json"),
        "test": ("test", "-o", "r.json"),
        "fuzz": ("fuzz", "scale", "-n", str(FUZZED), "--format", "json"),
    }
    done = mini.command(*arguments[command], *options, code=None)
    if done.returncode == 2:
        assert "config-path-missing" in done.stderr
        return "refused", None
    if command == "fuzz":
        report = json.loads(done.stdout)
        return ("passed" if report["passed"] == FUZZED else "failed"), FUZZED - report["cached"]
    if command in ("ci", "test"):
        report = json.loads((mini.root / "r.json").read_text())
        (mini.root / "r.json").unlink()
        return report["results"][0]["verdict"], None
    report = json.loads(done.stdout)
    return report["results"][0]["verdict"], report["executed"]


@pytest.mark.parametrize(
    ("number", "row"), [*enumerate(ROWS)], ids=lambda v: getattr(v, "name", "")
)
def test_what_a_program_depends_on_is_seen(number: int, row: Row, tmp_path: Path) -> None:
    mini = make(row, tmp_path)
    commands = rotated([("run", "ci")[number % 4 // 2], "fuzz"], 1, number)
    assert verdict_of(mini, "run")[0] == "passed", "the row itself is right"
    # An interpreter of its own may leave bytecode behind: then the long way has to look once.
    assert is_up_to_date(mini) or verdict_of(mini, "run") == ("passed", [])
    assert is_up_to_date(mini), "and stays so while nothing changes"
    if "fuzz" in commands:
        assert verdict_of(mini, "fuzz")[0] == "passed"
    watch = watching(mini)
    assert watch.saved() == set()
    row.bad(mini)
    assert watch.saved() or row.in_environment
    assert not is_up_to_date(mini)
    for command in commands:
        assert verdict_of(mini, command)[0] == "failed"
    row.good(mini)
    if commands != ["fuzz"]:
        verdict, executed = verdict_of(mini, "run")
        assert verdict == "passed", "back again"
        assert not {name for name in executed if name.startswith(("op:", "reference:"))}
    if "fuzz" in commands:
        assert verdict_of(mini, "fuzz") == ("passed", 0), "all verdicts are known"


def is_up_to_date(mini: Mini) -> bool:
    """Ask the front, which imports nothing of the product, for whether all is up to date."""
    return is_clean(mini)


def watching(mini: Mini) -> FileWatch:
    """Return a watch on the files that ``watch`` follows once it has run."""
    workspace = Workspace(mini.root, environ=mini.environment())
    watch = FileWatch(workspace.root)
    watch.follow(workspace, workspace.graph.tasks)
    workspace.cache.close()
    return watch
