"""A copy of a workspace, its cache included, is judged by its own files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from mini_workspace import Mini

pytestmark = pytest.mark.ci


def verdict(mini: Mini, *words: str) -> str:
    done = mini.command("run", "--format", "json", *words, code=None)
    (result,) = json.loads(done.stdout)["results"]
    return str(result["verdict"])


@pytest.fixture
def copy(mini: Mini, tmp_path: Path) -> Mini:
    """Return a copy of a workspace whose results are all current; the original stays."""
    mini.without_causes()
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
