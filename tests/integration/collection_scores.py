"""Import problems of a collection and score their candidates, by the commands alone."""

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


def scored(
    folder: Path,
    format_name: str,
    path: str = "theirs",
    *more: str,
    problems: int = 1,
    cases: int = 4,
) -> str:
    """Import what lies in a folder and demand that `score` tells right from wrong."""
    theirs = folder / "theirs"
    before = {each: each.read_bytes() for each in theirs.rglob("*") if each.is_file()}
    words = ("import", format_name, path, "--into", "work", "--cases", str(cases), *more)
    told = command(folder, *words)
    assert {each: each.read_bytes() for each in theirs.rglob("*") if each.is_file()} == before
    page = command(folder / "work", "score", "--no-confirm", "--format", "html")
    said = command(folder / "work", "score", "--no-confirm", "--format", "json")
    found = json.loads(said)["scores"]
    assert len(found) == problems * (1 + MOST)
    otherwise = [one for one in found if not _is_as_named(one["candidate"], one)]
    assert otherwise == [], otherwise
    assert all(one["candidate"] in page for one in found)
    assert page.startswith("<!doctype html>")
    assert "<script" not in page
    return told


def _is_as_named(candidate: str, score: dict[str, object]) -> bool:
    """Tell whether a candidate is judged as its name says, with a cause if it is wrong."""
    right = candidate.endswith("right")
    return score["verdict"] == ("correct" if right else "wrong") and bool(score["cause"]) != right
