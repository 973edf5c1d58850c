"""Workspaces below folders with any name that the system takes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from built_workspace import make_built
from disturbed import figures
from mini_workspace import Mini, make_mini
from whole import sample

NAMES = (
    b"two  spaces and \xc3\xbcn\xc3\xaf\xe6\x97\xa5\xe6\x9c\xac",
    b"new\nline\n",
    b"no UTF-8 \xe9\xff",
    b"-n",
    b"tab\t'quote\" \\back",
    b"100%s{name}$HOME`id`;#~*?[x]",
    b"\x01\x1b[31mred\x7f",
    b" ",
    b"x" * 200,
)
COMMANDS = (
    ("status",), ("list", "--format", "json"), ("explain",), ("report", "--format", "json"),
    ("report", "--format", "html", "-o", "report.html"), ("fuzz", "it", "-n", "2"),
    ("graph",), ("failures",), ("baseline", "store", "first"), ("cache", "verify"),
    ("ci", "--format", "junit", "-o", "junit.xml"), ("diff", "first"), ("config", "check"),
)  # fmt: skip


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[object, ...]]:
    mini = make_built(tmp_path_factory.mktemp("plain") / "workspace")
    return figures(mini.run())


@pytest.mark.parametrize("number", sample(range(len(NAMES)), 3))
def test_the_results_are_the_same(
    tmp_path: Path, plain: list[tuple[object, ...]], number: int
) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + NAMES[number]))
    mini = make_built(folder)
    mini.env["HOME"] = str(tmp_path)
    report = mini.run()
    assert figures(report) == plain
    assert report["problems"] == []
    assert mini.run()["executed"] == []
    for words in COMMANDS:
        mini.command(*words)
    assert figures(json.loads((mini.command("report", "--format", "json")).stdout)) == plain
    mini.write("src/a.txt", "5\n")
    assert mini.run("it", code=1)["results"][0]["verdict"] == "failed"


@pytest.mark.parametrize("encoding", ["utf-8:strict", "ascii:strict", "iso-8859-1:strict"])
def test_a_terminal_that_cannot_show_the_path(tmp_path: Path, encoding: str) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + NAMES[2]))
    mini = make_mini(folder)
    mini.env |= {"HOME": str(tmp_path), "PYTHONIOENCODING": encoding}
    mini.run("scale")
    for _ in range(2):  # the second answer is a cached one, which is printed in another way
        assert "no UTF-8 \\xe9\\xff" in mini.command("status").stdout


def test_a_folder_that_is_renamed(tmp_path: Path, plain: list[tuple[object, ...]]) -> None:
    mini = make_mini(tmp_path / "before")
    first = mini.run("scale")
    mini.root.rename(tmp_path / "after \n \u00fc")
    moved = Mini(tmp_path / "after \n \u00fc")
    assert figures(moved.run("scale")) == figures(first)
    moved.edit("scripts/scale.py", "* 3)", "* 4)")
    assert moved.run("scale", code=1)["results"][0]["verdict"] == "failed"
