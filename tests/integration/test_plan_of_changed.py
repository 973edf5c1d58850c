"""A run answers "up to date" only for the workspace that it judged, not for what it became."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mini_workspace import Mini

pytestmark = pytest.mark.ci

CAUSES = False

WAITING = """
import os, time

def scale(x):
    open({begun!r}, "w").close()
    while not os.path.exists({go!r}):
        time.sleep(0.01)
    return x * x.dtype.type(3)
"""
WRONG = """
def scale(x):
    return x * x.dtype.type(4)
"""
OP = """
[[ops]]
name = "{name}"
op = "{op}"
reference = "scripts/scale_ref.py:reference"
input_names = ["x"]
schema = {{ dims = {{ N = [4] }}, inputs = {{ x = ["N"] }}, output = ["N"] }}
{keys}
"""
LISTS = """
import os

def scale(x):
    return x * x.dtype.type(2 + len(os.listdir(os.path.dirname(__file__) + "/listed")))
"""
GLOBS = """
import glob

def scale(x):
    return x * x.dtype.type(2 + len(glob.glob("data/*.txt")))
"""

EACH = """
[[ops]]
name = "each_{file}"
foreach.file = { files = "each/*.py" }
op = "each/{file}.py:scale"
reference = "scripts/scale_ref.py:reference"
input_names = ["x"]
schema = { dims = { N = [4] }, inputs = { x = ["N"] }, output = ["N"] }
"""
RULE = """
[[rules]]
name = "join"
command = "cat parts/* > build/joined"
shell = true
inputs = ["parts/*"]
outputs = ["build/joined"]
""" + OP.format(name="built", op="scripts/built.py:scale", keys='needs = ["join"]')
BUILT = """
def scale(x):
    with open("build/joined") as file:
        return x * x.dtype.type(2 + len(file.read()))
"""


@pytest.fixture
def waiting(mini: Mini) -> Mini:
    """One op that waits for a file ``go``, as soon as it made the file ``begun``."""
    mini.keep_only("scale")
    mini.unfence()
    mini.edit("gpuemu.toml", "[project]", 'include = ["more/*.toml"]\n[project]')
    mini.write("scripts/wrong.py", WRONG)
    mini.write("scripts/listed/one.txt", "")
    mini.write("more/lists.toml", OP.format(name="lists", op="scripts/lists.py:scale", keys=""))
    mini.write("scripts/lists.py", LISTS)
    mini.write("data/a.txt", "")
    keys = 'depends = ["data/*.txt"]'
    mini.write("more/globs.toml", OP.format(name="globs", op="scripts/globs.py:scale", keys=keys))
    mini.write("scripts/globs.py", GLOBS)
    mini.write("more/each.toml", EACH)
    mini.write("each/right.py", "def scale(x):\n    return x * x.dtype.type(3)\n")
    mini.write("more/rule.toml", RULE)
    mini.write("parts/one", "1")
    mini.write("scripts/built.py", BUILT)
    mini.command("run")
    begun, go = mini.root / "begun", mini.root / "go"
    mini.write("scripts/scale.py", WAITING.format(begun=str(begun), go=str(go)))
    return mini


def run_meanwhile(mini: Mini, change: Callable[[], object]) -> None:
    """Run all, and change something when the op that waits has begun and others are current."""
    process = mini.popen("run")
    while not (mini.root / "begun").exists():
        assert process.poll() is None, process.communicate()
    change()
    (mini.root / "go").touch()
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err


def test_without_a_change_nothing_is_left_to_do(waiting: Mini) -> None:
    run_meanwhile(waiting, lambda: None)
    assert waiting.command("run").stdout.startswith("up to date")


CHANGES: dict[str, Callable[[Mini], object]] = {
    "an op at the end of the configuration": lambda mini: mini.write(
        "gpuemu.toml",
        (mini.root / "gpuemu.toml").read_text()
        + OP.format(name="wrong", op="scripts/wrong.py:scale", keys=""),
    ),
    "a file that include matches": lambda mini: mini.write(
        "more/wrong.toml", OP.format(name="wrong", op="scripts/wrong.py:scale", keys="")
    ),
    "a file that depends matches": lambda mini: mini.write("data/b.txt", ""),
    "an entry of a folder that an op lists": lambda mini: mini.write("scripts/listed/two.txt", ""),
    "a file that a template takes": lambda mini: mini.write("each/wrong.py", WRONG),
    "a file that a rule takes": lambda mini: mini.write("parts/two", "2"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_came_meanwhile_is_judged_by_the_next_run(
    waiting: Mini, change: Callable[[Mini], object]
) -> None:
    run_meanwhile(waiting, lambda: change(waiting))
    done = waiting.command("run", code=1)
    assert "up to date" not in done.stdout
    assert "failed" in done.stdout


def test_a_run_that_waited_for_another_judges_what_came_meanwhile(waiting: Mini) -> None:
    first = waiting.popen("run")
    while not (waiting.root / "begun").exists():
        assert first.poll() is None, first.communicate()
    second = waiting.popen("run")
    assert second.stderr is not None
    assert "waiting" in second.stderr.readline()
    CHANGES["an op at the end of the configuration"](waiting)
    (waiting.root / "go").touch()
    assert first.wait(timeout=600) == 0
    out, _ = second.communicate(timeout=600)
    assert second.returncode == 1, out
    assert "wrong" in out
