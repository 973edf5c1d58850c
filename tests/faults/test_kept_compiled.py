"""The graph that `list` compiles after an edit serves until the next run, while it is right."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mini_workspace import Mini
from test_run_damage import cache_of, flip, verdicts

from gpuemu_flow.engine.workspace import COMPILED_NAME, Workspace
from gpuemu_flow.graph import snapshot
from gpuemu_flow.graph.overrides import Overrides

CAUSES = False
ANOTHER = """
[[ops]]
name = "another"
op = "scripts/scale.py:scale"
reference = "scripts/scale_ref.py:reference"
input_names = ["x"]
schema = { dims = { N = [3] }, inputs = { x = ["N"] }, output = ["N"] }
"""


def kept(mini: Mini) -> Path:
    return cache_of(mini) / COMPILED_NAME


def opened(mini: Mini, cases: int | None = None) -> Workspace:
    overrides = Overrides(cases=cases)
    return Workspace(mini.root, environ=mini.environment(), overrides=overrides)


def content(workspace: Workspace) -> dict[str, Any]:
    """All that a compiled workspace says."""
    found = workspace.snapshot
    return {
        "tasks": {n: json.loads(json.dumps(s.to_json())) for n, s in found.graph.tasks.items()},
        "settings": found.settings.to_json(),
        "basis": json.loads(json.dumps(found.basis.to_json())),
        "current": found.current,
        "observed": {name: found.observed.names([name]) for name in found.graph.tasks},
    }


def config(old: str, new: str) -> Callable[[Mini], None]:
    return lambda mini: mini.edit("gpuemu.toml", old, new)


def add_op(mini: Mini) -> None:
    path = mini.root / "gpuemu.toml"
    head, mark, rest = path.read_text().partition("[[ops]]")
    path.write_text(f"{head}{ANOTHER}{mark}{rest}")


def add_import(mini: Mini) -> None:
    mini.write("scripts/helper.py", "X = 1\n")
    path = mini.root / "scripts/scale.py"
    path.write_text(f"import helper\n{path.read_text()}")


CHANGES: dict[str, Callable[[Mini], None]] = {
    "a key": config("cases = 4\n", "cases = 7\n"),
    "an op": add_op,
    "an import": add_import,
    "a setting": config("[validation]\n", "[policies]\nwarn_threshold = 0.3\n[validation]\n"),
}


@pytest.mark.parametrize("command", ["list", "status", "explain", "graph"])
@pytest.mark.parametrize("name", CHANGES)
def test_it_is_what_compiling_again_would_give(checked_mini: Mini, name: str, command: str) -> None:
    checked_mini.command("run")  # in this folder, which tasks name
    CHANGES[name](checked_mini)
    first = checked_mini.command(command)
    assert kept(checked_mini).exists()
    read = opened(checked_mini)
    assert read.snapshot.mark, "it was not compiled again"
    away = kept(checked_mini).rename(checked_mini.root / "away")
    compiled = opened(checked_mini)
    assert not compiled.snapshot.mark
    stale = compiled.stale(set(compiled.graph.tasks))
    assert read.stale(set(read.graph.tasks)) == stale
    assert content(read) == content(compiled)
    away.rename(kept(checked_mini))
    assert checked_mini.command(command).stdout == first.stdout
    report = checked_mini.run()
    assert set(report["executed"]) <= stale
    assert not list(cache_of(checked_mini).glob("compiled*")), "a run leaves none behind"
    assert len(list(cache_of(checked_mini).glob("*.tasks"))) == 1


def test_a_run_after_it_finds_what_it_would_have_found(checked_mini: Mini, tmp_path: Path) -> None:
    checked_mini.command("run")
    twin = Mini(shutil.copytree(checked_mini.root, tmp_path / "twin"))
    twin.command("run")
    for mini in (checked_mini, twin):
        CHANGES["a key"](mini)
    checked_mini.command("list")
    one, other = checked_mini.run(), twin.run()
    assert one["executed"] == other["executed"] != []
    assert verdicts(one) == verdicts(other)
    assert checked_mini.command("run").stdout.startswith("up to date")


def again(mini: Mini) -> None:
    mini.edit("gpuemu.toml", "cases = 7\n", "cases = 8\n")


def other_variables(mini: Mini) -> None:
    mini.env["GPUEMU_ALLOW_OUTSIDE"] = "1"


def a_run(mini: Mini) -> None:
    saved = [(path, path.read_bytes()) for path in cache_of(mini).glob("compiled*")]
    mini.run("scale")
    for path, data in saved:
        path.write_bytes(data)


def another_run(mini: Mini) -> None:
    """Run with other settings, and come back: other tasks are current than it says."""
    saved = [(path, path.read_bytes()) for path in cache_of(mini).glob("compiled*")]
    mini.edit("gpuemu.toml", "cases = 7\n", "cases = 9\n")
    mini.run()
    mini.edit("gpuemu.toml", "cases = 9\n", "cases = 7\n")
    for path, data in saved:
        path.write_bytes(data)


def damage(mini: Mini) -> None:
    flip(kept(mini))


def lost_tasks(mini: Mini) -> None:
    next(cache_of(mini).glob("compiled-*.tasks")).unlink()


def lost_snapshot(mini: Mini) -> None:
    (cache_of(mini) / "graph.json").unlink()


@pytest.mark.parametrize(
    "change", [again, other_variables, a_run, another_run, damage, lost_tasks, lost_snapshot]
)
def test_it_is_not_believed_after(checked_mini: Mini, change: Callable[[Mini], None]) -> None:
    checked_mini.command("run")
    CHANGES["a key"](checked_mini)
    checked_mini.command("list")
    change(checked_mini)
    read = opened(checked_mini)
    old = snapshot.load(kept(checked_mini), checked_mini.root)
    assert not read.snapshot.mark or old is None or read.snapshot.mark != old.mark
    cases = {s.params.to_json().get("count") for s in read.graph.tasks.values()} - {None}
    assert cases == {8 if change is again else 7}
    assert set(checked_mini.run()["executed"]) <= set(read.graph.tasks)


def test_options_are_part_of_it(checked_mini: Mini) -> None:
    checked_mini.command("run")
    checked_mini.command("list", "--config", "validation.cases=5")
    assert kept(checked_mini).exists()
    assert opened(checked_mini).snapshot.mark == snapshot_mark(checked_mini, "graph.json")
    assert not opened(checked_mini, cases=4).snapshot.mark


def snapshot_mark(mini: Mini, name: str) -> str:
    found = snapshot.load(cache_of(mini) / name, mini.root)
    assert found is not None
    return found.mark


def test_a_renamed_op_keeps_its_results(checked_mini: Mini) -> None:
    checked_mini.command("run")
    checked_mini.edit("gpuemu.toml", 'name = "total"', 'name = "sums"')
    checked_mini.command("list")
    assert not kept(checked_mini).exists()
    assert checked_mini.run("sums")["executed"] == []


def test_nothing_is_made_where_nothing_was_run(mini: Mini) -> None:
    mini.command("list")
    assert not cache_of(mini).exists()
