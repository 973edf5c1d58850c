"""Test that a program edited while it runs never has its result stored under the other text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    import factor  # late, as lazy imports are
    return x * x.dtype.type(factor.FACTOR)
"""


def run_and_edit(mini: Mini, edit: Any, code: int) -> dict[str, Any]:
    """A run during which `edit` happens, after the op was loaded and before it goes on."""
    begun, go = mini.root / "begun", mini.root / "go"
    mini.unfence()
    mini.write("scripts/scale.py", WAITING.format(begun=str(begun), go=str(go)))
    process = mini.popen("run", "--format", "json", "scale")
    while not begun.exists():
        assert process.poll() is None, process.communicate()
    edit()
    go.touch()
    out, err = process.communicate(timeout=600)
    assert process.returncode == code, out + err
    return dict(json.loads(out))


def factor(mini: Mini, value: int) -> Path:
    return mini.write("scripts/factor.py", f"FACTOR = {value}\n")


@pytest.mark.ci
def test_the_result_is_that_of_the_text_it_is_recorded_under(mini: Mini) -> None:
    factor(mini, 3)
    report = run_and_edit(mini, lambda: factor(mini, 4), code=1)
    assert report["results"][0]["verdict"] == "failed", "4 times is wrong"
    assert mini.run("scale", code=1)["executed"] == [], "and it is known of this very text"
    factor(mini, 3)
    back = mini.run("scale")
    assert back["results"][0]["verdict"] == "passed", "3 times is right, and was never run"
    assert "op:scale:float32" in back["executed"]


@pytest.mark.ci
def test_an_import_that_comes_in_meanwhile_is_followed_from_then_on(mini: Mini) -> None:
    mini.write("scripts/deeper.py", "VALUE = 3\n")
    factor(mini, 3)
    run_and_edit(
        mini,
        lambda: mini.write("scripts/factor.py", "from deeper import VALUE as FACTOR\n"),
        code=0,
    )
    mini.write("scripts/deeper.py", "VALUE = 4\n")
    assert mini.run("scale", code=1)["results"][0]["verdict"] == "failed"
