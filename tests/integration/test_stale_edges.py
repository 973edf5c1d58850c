"""Test that a result becomes stale when it must and only then, one situation at a time."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mini_workspace import Mini
from stale_rows import Row, make, module, rewrite, scale_by
from stored_snapshot import is_clean, results

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.store.keys import Discovered
from gpuemu_flow.workers import notices
from gpuemu_flow.workers.sandbox import filters

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
    while "op:scale:float32" not in results(mini):
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


def verdict(mini: Mini, *words: str) -> str:
    done = mini.command("run", "--format", "json", *words, code=None)
    (result,) = json.loads(done.stdout)["results"]
    return str(result["verdict"])


@pytest.fixture
def copy(mini: Mini, tmp_path: Path) -> Mini:
    """Return a copy of a workspace whose results are all current; the original stays."""
    mini.keep_only("scale")
    mini.env["HOME"] = str(tmp_path / "nobody")  # as for one user with two copies
    assert "1 passed" in mini.command("run").stdout
    shutil.copytree(mini.root, tmp_path / "copy", symlinks=True)
    return Mini(tmp_path / "copy", mini.env)


def test_an_edit_of_a_copy_is_judged(copy: Mini) -> None:
    copy.edit("scripts/scale.py", "* 3", "* 2")
    done = copy.command("run", code=1)
    assert "1 failed" in done.stdout
    assert verdict(copy, "--force") == "failed", "and its own program is what runs"


def test_a_copy_runs_nothing_again(mini: Mini, copy: Mini) -> None:
    done = copy.command("run")
    assert ": 0 ran, 0 restored," in done.stdout
    mini.edit("scripts/scale.py", "* 3", "* 2")
    assert "up to date" in copy.command("run").stdout, "the original is none of its inputs"
    assert verdict(mini) == "failed"


UNSEEING = """
import ctypes, struct, sys
libc = ctypes.CDLL(None)
code = [(0x20, 0, 0, 0), (0x15, 0, 1, {number}), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000)]
data = b"".join(struct.pack("<HBBI", *line) for line in code)
class Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_char_p)]
assert libc.prctl(38, *map(ctypes.c_ulong, (1, 0, 0, 0))) == 0
assert libc.prctl(22, ctypes.c_ulong(2), ctypes.byref(Program(len(code), data))) == 0
sys.argv = ["gpuemu-flow", "run", "--format", "json"]
from gpuemu_flow.front import main
main()
"""


@pytest.mark.skipif(not notices.CALLS, reason="this system gives no notices")
@pytest.mark.ci
def test_where_nothing_is_seen_imports_and_depends_count_and_one_warning_says_so(
    mini: Mini,
) -> None:
    """As in a container without this right: EPERM for the call that asks for notices."""
    mini.unfence()
    path = "scripts/scale.py:scale"
    mini.edit("gpuemu.toml", f'op = "{path}"', f'op = "{path}"\ndepends = ["factor.txt"]')
    mini.edit("scripts/scale.py", "* 3", "* int(open('factor.txt').read())")
    mini.write("factor.txt", "3")
    rule = "[[rules]]\nname = 'made'\nshell = true\ncommand = 'echo > made'\noutputs = ['made']\n"
    mini.edit("gpuemu.toml", "[targets]\n", f"{rule}[targets]\n")

    def run() -> tuple[dict[str, str], list[str]]:
        done = subprocess.run(
            [sys.executable, "-c", UNSEEING.format(number=filters.seccomp_number())],
            cwd=mini.root, env=mini.environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.stdout, done.stderr
        report = json.loads(done.stdout)
        (problem,) = report["problems"]
        assert problem["slug"] == "untracked-inputs"
        assert "and 6 more: the files that programs use are not seen" in problem["message"]
        assert "docs/caching.md#where-nothing-is-seen" in problem["hint"]
        return {r["op"]: r["verdict"] for r in report["results"]}, report["executed"]

    assert set(run()[0].values()) == {"passed"}
    assert run()[1] == []
    mini.write("factor.txt", "4")
    assert run()[0] == {"scale": "failed", "total": "passed", "relu": "passed"}
    mini.edit("scripts/common.py", "x.astype(np.float32)", "x.astype(np.float32) * 2")
    assert run()[0]["total"] == "failed"
