"""docs/architecture.md is true: its files exist, and its walk follows calls."""

from __future__ import annotations

import re

import pytest
from import_graph import PACKAGE, ROOT, read_imports, source_files

PAGE = (ROOT.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
WALK = PAGE.partition("to a verdict, in ten files")[2].partition("\n## ")[0]
STEPS = re.findall(r"^\| `([\w/]+\.py)` \|", WALK, re.MULTILINE)
PASS_ON = ("cli/main.py", "judging/stored_batch.py")


def module_of(file: str) -> str:
    return ".".join((PACKAGE, *file.removesuffix(".py").split("/")))


def test_the_walk_has_at_most_ten_files() -> None:
    assert STEPS[0] == "front.py"
    assert STEPS[-1] == "verdicts.py"
    assert len(STEPS) <= 10
    assert all(f"`{file}`" in WALK for file in PASS_ON)


@pytest.mark.parametrize("here", range(len(STEPS) - 1))
def test_each_file_of_the_walk_leads_to_the_next(here: int) -> None:
    """By an import, or by the name of a module that is loaded later; at most one file between."""
    files = source_files()

    def leads(origin: str, target: str) -> bool:
        if any(found.target.startswith(target) for found in read_imports(files, [origin])):
            return True
        text = files[origin].read_text(encoding="utf-8")
        return f'"{target}' in text or f'"{target.removeprefix(PACKAGE + ".cli.")}"' in text

    origin, target = module_of(STEPS[here]), module_of(STEPS[here + 1])
    between = [module_of(file) for file in PASS_ON]
    assert leads(origin, target) or any(leads(origin, m) and leads(m, target) for m in between)


def test_every_file_and_folder_that_the_page_names_exists() -> None:
    named = re.findall(r"`((?:[\w.]+/)*[\w.*]+\.py|(?:[\w.]+/)+)`", PAGE)
    assert len(named) > 60
    missing = [
        name
        for name in named
        if not any([*ROOT.glob(name.rstrip("/")), *ROOT.parent.glob(name.rstrip("/"))])
    ]
    assert missing == []
