"""Test that a result becomes stale when it must and only then, one situation at a time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from mini_workspace import Mini
from stale_rows import Row, make, module, rewrite, scale_by
from stored_snapshot import is_clean

from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.store.discovered import Discovered

CAUSES = False

pytestmark = pytest.mark.timeout(900)  # some commands per test, on whatever machine


def test_a_reference_of_equal_outputs_is_compared_anew_under_auto(tmp_path: Path) -> None:
    row = Row("auto", {"op.py": scale_by("3")}, lambda _: None, lambda _: None)
    mini = make(row, tmp_path)
    mini.edit("gpuemu.toml", 'tolerance = "table"', 'tolerance = "auto"')
    mini.run()
    mini.write("ref.py", "def reference(x):\n    return x + x + x\n")
    assert "compare:scale:float32" in mini.run()["executed"]


STASHING = """
import os, time
open({begun!r}, "w").close()
while not os.path.exists({go!r}):
    time.sleep(0.01)
import fac

def scale(x):
    return (x * x.dtype.type(fac.F)).astype(x.dtype)
"""


@pytest.mark.parametrize("path", ["fac.py", "lib/deep.py"])
@pytest.mark.ci
def test_a_source_that_is_put_away_and_back_while_it_is_imported(path: str, tmp_path: Path) -> None:
    """`git stash`, an import, `git stash pop`: what ran is not what lies there afterwards."""
    row = Row("stash", {}, lambda _: None, lambda _: None)
    mini = make(row, tmp_path)
    mini.unfence()
    begun, go = tmp_path / "begun", tmp_path / "go"
    mini.write("op.py", STASHING.format(begun=str(begun), go=str(go)))
    mini.write("fac.py", module(4))
    if path != "fac.py":
        mini.write("fac.py", "import sys; sys.path.append('lib'); from deep import F\n")
    mini.write(path, module(4))
    process = mini.popen("run", "--format", "json")
    while not begun.exists():
        assert process.poll() is None, process.communicate()
    rewrite(mini, path, module(3))  # as it is while the program imports it
    go.touch()
    after_import(mini)
    rewrite(mini, path, module(4))
    process.communicate(timeout=600)
    assert mini.run(code=None)["results"][0]["verdict"] == "failed", "4 times is wrong"


def after_import(mini: Mini) -> None:
    """Wait until a worker has read the source, or has ended."""
    manifest = mini.root / ".gpuemu-cache/tasks/op/scale@float32.json"
    while not manifest.exists():
        time.sleep(0.01)


def test_what_could_not_be_seen_is_a_warning_in_the_report(tmp_path: Path) -> None:
    row = Row("untracked", {"op.py": scale_by("3")}, lambda _: None, lambda _: None)
    mini = make(row, tmp_path)
    mini.run()
    workspace = Workspace(mini.root, environ=mini.environment())
    observed = workspace.snapshot.observed
    names, parts = observed.sets[observed.task_sets["op:scale:float32"]]
    blind = names | Discovered(untracked=frozenset({"it starts a program that nothing follows"}))
    observed.record("op:scale:float32", blind, parts)
    workspace.save(set(workspace.graph.tasks))
    workspace.cache.close()
    assert not is_clean(mini)
    (problem,) = mini.run()["problems"]
    assert problem["slug"] == "untracked-inputs"
    assert problem["warning"]
    assert "op of scale: it starts a program" in problem["message"]
    for name in ("r.json", "r.xml", "r.sarif", "r.md", "r.html"):
        mini.command("ci", "-o", name, code=None)
        assert "nothing follows" in (mini.root / name).read_text(), name
    assert "untracked-inputs" in mini.command("run").stdout, "also where nothing is to be done"
    assert "untracked-inputs" in mini.command("run").stdout
