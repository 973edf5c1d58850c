"""Globs and paths that match nothing: what a run says follows what is there now, not a plan."""

from __future__ import annotations

import shutil

import pytest
from mini_workspace import Mini

pytestmark = pytest.mark.ci

SANDBOX = '[sandbox]\napart = ["submissions"]\nhidden = ["originals/a.py"]\n\n[validation]'


def fenced(mini: Mini) -> Mini:
    mini.edit("gpuemu.toml", "[validation]", SANDBOX)
    mini.write("submissions/note.txt", "")
    mini.write("originals/a.py", "")
    mini.command("run")
    assert mini.command("run").stdout.startswith("up to date")
    return mini


def test_a_run_stops_once_nothing_is_kept_apart_any_more(mini: Mini) -> None:
    fenced(mini)
    (mini.root / "submissions").rename(mini.root / "submisions")
    for arguments in ((), ("scale",), ("--format", "json")):
        refused = mini.command("run", *arguments, code=2).stderr
        assert "config-no-match: sandbox.apart[0]: 'submissions' matches nothing" in refused
        assert "did you mean 'submisions'?" in refused
    (mini.root / "submisions").rename(mini.root / "submissions")
    assert mini.command("run").stdout.startswith("up to date")
    mini.write("submissions/more.txt", "")  # another rival makes no result stale
    assert mini.command("run").stdout.startswith("up to date")


def test_a_run_stops_once_nothing_is_hidden_any_more(mini: Mini) -> None:
    fenced(mini)
    (mini.root / "originals/a.py").rename(mini.root / "originals/b.py")
    refused = mini.command("run", code=2).stderr
    assert "'originals/a.py' does not exist, so that nothing is hidden" in refused
    mini.write("originals/a.py", "")
    mini.command("run")
    shutil.rmtree(mini.root / "originals")
    mini.command("run", code=2)


def test_a_warning_of_no_match_goes_when_the_file_comes_and_returns(mini: Mini) -> None:
    mini.edit("gpuemu.toml", 'name = "scale"\n', 'name = "scale"\nshared = ["tables/*.txt"]\n')
    said = "'tables/*.txt' matches no file"
    assert said in mini.command("run").stdout
    assert said in mini.command("run").stdout
    mini.write("tables/a.txt", "1")
    assert said not in mini.command("run").stdout
    (mini.root / "tables/a.txt").unlink()
    assert said in mini.command("run").stdout
