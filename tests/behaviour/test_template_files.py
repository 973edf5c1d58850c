"""Templates whose values are files: candidates that come, change and go, and names that cannot."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from mini_workspace import Mini
from watching import READY, watching

CONFIG = """
[project]
name = "candidates"
[validation]
dtypes = ["float32"]
cases = 2
[[ops]]
name = "twice/{candidate}"
foreach.candidate = { files = "candidates/*.py" }
reference = "ref.py:twice"
schema = { dims = { N = [3] }, inputs = { x = ["N"] }, output = ["N"] }
[ops.op]
kind = "callable"
path = "adapter.py"
function = "load"
loads = "candidates/{candidate}.py"
skip_if = ["cuda_only"]
"""
FIXED = """
[[ops]]
name = "fixed"
op = "fixed.py:run"
reference = "ref.py:twice"
schema = { dims = { N = [3] }, inputs = { x = ["N"] }, output = ["N"] }
"""
ADAPTER = """
import runpy

def load(path):
    return runpy.run_path(path)["run"]
"""
RIGHT = "def run(x):\n    return x + x\n"
WRONG = "def run(x):\n    return x + 1\n"


@pytest.fixture
def mini(tmp_path: Path) -> Mini:
    mini = Mini(tmp_path / "w", warm=True)
    mini.write("gpuemu.toml", CONFIG)
    mini.write("adapter.py", ADAPTER)
    mini.write("ref.py", "def twice(x):\n    return x * x.dtype.type(2)\n")
    mini.write("fixed.py", RIGHT)
    mini.write("candidates/first.py", RIGHT)
    return mini


def place(mini: Mini, name: str, text: str) -> None:
    """Save a candidate at one moment, as copying programs and editors do."""
    path = mini.root / "candidates" / name
    path.parent.mkdir(exist_ok=True)
    beside = path.with_name(f".{name}.part")
    beside.write_text(text)
    beside.replace(path)


def scores(mini: Mini) -> dict[str, str]:
    said = mini.command("score", "--no-confirm", "--format", "json", code=None).stdout
    return {row["candidate"]: row["verdict"] for row in json.loads(said)["scores"]}


def test_a_candidate_that_comes_changes_or_goes_counts(mini: Mini) -> None:
    assert scores(mini) == {"first": "correct"}
    mini.command("run")
    assert mini.command("run").stdout.startswith("up to date: 5 tasks")
    place(mini, "second.py", WRONG)
    assert "twice/second" in mini.command("list", "op").stdout
    assert scores(mini) == {"first": "correct", "second": "wrong"}
    place(mini, "second.py", RIGHT)
    assert scores(mini) == {"first": "correct", "second": "correct"}
    mini.command("run")
    assert mini.command("run").stdout.startswith("up to date: 10 tasks; 2 passed")
    (mini.root / "candidates/first.py").unlink()
    assert scores(mini) == {"second": "correct"}
    place(mini, "second.py", "# cuda_only\n")
    assert scores(mini) == {"second": "not judged"}
    place(mini, "second.py", WRONG)
    assert scores(mini) == {"second": "wrong"}


def test_the_references_outputs_serve_every_candidate(mini: Mini) -> None:
    mini.run()
    place(mini, "second.py", RIGHT + "# another one\n")
    ran = {name.partition(":")[0] for name in mini.run()["executed"]}
    assert "op" in ran
    assert not {"inputs", "reference"} & ran


def test_the_first_candidate_of_a_missing_folder_counts(mini: Mini) -> None:
    (mini.root / "candidates/first.py").unlink()
    (mini.root / "candidates").rmdir()
    assert "config-foreach" in mini.command("config", "check").stdout
    assert "nothing was selected" in mini.command("run", code=4).stdout
    mini.write("gpuemu.toml", CONFIG + FIXED)
    mini.command("run")
    place(mini, "late.py", RIGHT)
    assert scores(mini) == {"late": "correct", "": "correct"}


def outside(path: Path) -> None:
    path.symlink_to("/etc/hostname")


HOSTILE: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "a name with spaces": ("my kernel.py", Path.touch, "a name that no op can have"),
    "a name with braces": ("{x}.py", Path.touch, "a name that no op can have"),
    "a name of no text": (os.fsdecode(b"\xff\xfe.py"), Path.touch, "a name that no op can have"),
    "a long name": ("x" * 150 + ".py", Path.touch, "a name that no op can have"),
    "a line in the name": ("a\nb.py", Path.touch, "a name that no op can have"),
    "a folder": ("folder.py", Path.mkdir, "is no regular file"),
    "a link that leads out": ("link.py", outside, "leads out of the workspace through a link"),
    "a link to nowhere": ("gone.py", lambda p: p.symlink_to("nothing"), "is no regular file"),
    "a pipe": ("pipe.py", os.mkfifo, "is no regular file"),
}


def test_what_cannot_be_a_candidate_is_an_error_until_it_goes(mini: Mini) -> None:
    mini.run()
    for number, (what, (name, make, message)) in enumerate(HOSTILE.items()):
        path = mini.root / "candidates" / name
        make(path)
        said = mini.command(*(("config", "check") if number else ("run",)), code=2).stderr
        assert "gpuemu.toml:8: config-foreach" in said, what
        assert message in said, what
        path.rmdir() if path.is_dir() else path.unlink()
    assert "5 current; 1 passed" in mini.command("run").stdout


def test_what_editors_leave_is_no_candidate(mini: Mini) -> None:
    for name in (".first.py.swp", ".#first.py", "notes.txt", "first.pyc"):
        (mini.root / "candidates" / name).write_text("?")
    (mini.root / "candidates/__pycache__").mkdir()
    assert scores(mini) == {"first": "correct"}


def test_a_folder_of_enormous_count_is_refused(mini: Mini) -> None:
    for number in range(10_001):
        os.mknod(mini.root / "candidates" / f"c{number}.py")
    done = mini.command("list", code=2)
    assert "matches more than 10000 files" in done.stderr


PATTERNS = {
    "../else/*.py": "leads out of the workspace",
    "/etc/*.py": "leads out of the workspace",
    "candidates/**/*.py": "has a wildcard in the name of a folder",
    "c*/*.py": "has a wildcard in the name of a folder",
    "candidates/first.py": "needs one '*' in the name of the file",
    "candidates/*_*.py": "needs one '*' in the name of the file",
    "candidates/?*.py": "needs one '*' in the name of the file",
}


def test_patterns_that_cannot_be_are_refused(mini: Mini) -> None:
    for pattern, message in PATTERNS.items():
        mini.write("gpuemu.toml", CONFIG.replace("candidates/*.py", pattern))
        done = mini.command("config", "check", code=2)
        assert f"config-foreach: ops[0].foreach.candidate: '{pattern}' {message}" in done.stderr


def test_watch_takes_candidates_that_come_change_and_go(mini: Mini) -> None:
    with watching(mini) as it:
        assert "twice/first  float32  passed" in "\n".join(it.until(READY))
        place(mini, "second.py", WRONG)
        said = it.turn()
        assert "saved: candidates/second.py" in said
        assert "failed twice/second" in said
        place(mini, "second.py", RIGHT)
        assert "twice/second  float32  passed" in it.turn()
        (mini.root / "candidates/bad name.py").touch()
        assert "saved: candidates/bad name.py" in it.turn()
        (mini.root / "candidates/bad name.py").unlink()
        assert "saved: candidates/bad name.py" in it.turn()
        (mini.root / "candidates/second.py").unlink()
        assert "1 passed" in it.turn()
        assert it.end() == 0
        assert "a name that no op can have" in it.errors()


def test_score_watch_prints_the_scores_again(mini: Mini) -> None:
    with watching(mini, "--watch", "--no-confirm", command="score") as it:
        assert "1 correct, 0 wrong" in "\n".join(it.until(READY))
        place(mini, "second.py", WRONG)
        assert "1 correct, 1 wrong" in it.turn()
        place(mini, "second.py", RIGHT)
        assert "2 correct, 0 wrong" in it.turn()
        (mini.root / "candidates/first.py").unlink()
        assert "1 correct, 0 wrong" in it.turn()
        assert it.end() == 0
        assert it.errors() == ""


def test_a_score_tells_the_warnings_of_the_configuration(mini: Mini) -> None:
    mini.edit("gpuemu.toml", "[validation]", "[strangers]\na = 1\n\n[validation]")
    done = mini.command("score", "--no-confirm", code=None)
    assert "warning: config-unknown-key: unknown key 'strangers'" in done.stderr
