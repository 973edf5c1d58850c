"""An import that comes to mean another file counts as a change, like an edit of that file."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mini_workspace import Mini

pytestmark = pytest.mark.ci

OPTIONAL = """
try:
    from helper import FACTOR
except ImportError:
    FACTOR = 3

def scale(x):
    return x * x.dtype.type(FACTOR)
"""
PLAIN = """
from helper import FACTOR

def scale(x):
    return x * x.dtype.type(FACTOR)
"""


def appears(mini: Mini) -> None:
    """The op imports a module if there is one; the module appears after the first run."""
    mini.write("scripts/scale.py", OPTIONAL)
    validated(mini)
    mini.write("scripts/helper.py", "FACTOR = 4\n")


def hides_another(mini: Mini) -> None:
    """The folder of the script comes before the workspace's own."""
    mini.write("scripts/scale.py", PLAIN)
    mini.write("helper.py", "FACTOR = 3\n")
    validated(mini)
    mini.write("scripts/helper.py", "FACTOR = 4\n")


def becomes_a_package(mini: Mini) -> None:
    """A package goes before a module of the same name; the module stays."""
    mini.write("scripts/scale.py", PLAIN)
    mini.write("scripts/helper.py", "FACTOR = 3\n")
    validated(mini)
    mini.write("scripts/helper/__init__.py", "FACTOR = 4\n")


def moved_and_edited(mini: Mini) -> None:
    """The edit comes later than the move, which changed no output."""
    mini.write("scripts/scale.py", PLAIN)
    mini.write("scripts/helper.py", "FACTOR = 3\n")
    validated(mini)
    (mini.root / "scripts/helper.py").unlink()
    mini.write("scripts/helper/__init__.py", "FACTOR = 3\n")
    validated(mini)
    mini.write("scripts/helper/__init__.py", "FACTOR = 4\n")


def validated(mini: Mini) -> None:
    """Twice without --format json: the first leaves a plan, the second believes it."""
    mini.command("run")
    assert mini.command("run").stdout.startswith("up to date")


@pytest.mark.parametrize("change", [appears, hides_another, becomes_a_package, moved_and_edited])
@pytest.mark.parametrize("asked", ["plainly", "of the op"])
def test_another_module_is_noticed(mini: Mini, change: Callable[[Mini], None], asked: str) -> None:
    mini.keep_only("scale")
    mini.without_causes()
    change(mini)
    if asked == "plainly":  # the plan is asked first
        done = mini.command("run", code=1)
        assert "failed scale" in done.stdout
    else:
        report = mini.run("scale", code=1)
        assert report["executed"] == ["op:scale:float32", "compare:scale:float32", "diff:scale"]


def test_modules_of_the_interpreter_and_of_packages_can_be_hidden(mini: Mini) -> None:
    mini.keep_only("scale")
    mini.write(
        "scripts/scale.py", "import colorsys\nimport numpy\n\ndef scale(x):\n    return x * 3\n"
    )
    validated(mini)
    mini.write("scripts/colorsys.py", "raise ImportError('not the one you meant')\n")
    report = mini.run("scale", code=3)
    assert "op:scale:float32" in report["executed"]


def test_what_hides_nothing_runs_nothing(mini: Mini) -> None:
    validated(mini)
    mini.write("scripts/unrelated.py", "FACTOR = 4\n")
    mini.write("elsewhere/common.py", "FACTOR = 4\n")
    assert mini.command("run").stdout.startswith("up to date")
    mini.write("scripts/common/__init__.py", "")  # goes before scripts/common.py
    assert "op:scale:float32" in mini.run(code=3)["executed"]
