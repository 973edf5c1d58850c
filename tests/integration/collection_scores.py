"""Import a problem of a collection and score its candidates, by the commands alone."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from import_commands import command

ALL = os.environ.get("IMPORT_PROBLEMS") == "all"
MOST = 4 if ALL else 1
"""Wrong candidates that are tried of each problem."""


def chosen(problems: Iterable[str], *quick: str) -> list[str]:
    """Return the problems to try."""
    return list(problems) if ALL else list(quick)


def scored(folder: Path, format_name: str, path: str = "theirs", *more: str) -> str:
    """Import what lies in a folder and demand that `score` tells right from wrong."""
    theirs = folder / "theirs"
    before = {each: each.read_bytes() for each in theirs.rglob("*") if each.is_file()}
    words = ("import", format_name, path, "--into", "work", "--cases", "4", *more)
    told = command(folder, *words)
    assert {each: each.read_bytes() for each in theirs.rglob("*") if each.is_file()} == before
    page = command(folder / "work", "score", "--no-confirm", "--format", "html")
    found = json.loads(command(folder / "work", "score", "--no-confirm", "--format", "json"))
    assert len(found["scores"]) == 1 + MOST
    for one in found["scores"]:
        right = one["candidate"].endswith("right")
        assert one["verdict"] == ("correct" if right else "wrong"), one
        assert bool(one["cause"]) is not right
        assert one["candidate"] in page
    assert page.startswith("<!doctype html>")
    assert "<script" not in page
    return told
