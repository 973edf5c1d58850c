"""The table of docs/architecture.md names every file in which a new thing has to stand."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

import pytest

from gpuemu_flow.config.fields import keys_of
from gpuemu_flow.config.tables import File
from gpuemu_flow.lint.rules import RULES_BY_ID
from gpuemu_flow.model.types import STRATEGIES
from gpuemu_flow.report.formats import FORMATS

ROOT = Path(__file__).resolve().parents[2]
KNOWN: dict[str, Collection[str]] = {
    "a key of `gpuemu.toml`": list(keys_of(File)),
    "a lint rule": RULES_BY_ID,
    "a strategy of values": STRATEGIES,
    "a report format": FORMATS,
}


def files_of(what: str) -> list[list[str]]:
    """Each file of a row, or those of which one is enough."""
    (row,) = re.findall(rf"^\| {re.escape(what)} \| (.*) \|$", page(), re.MULTILINE)
    joined = row.replace("` or `", "|")
    return [paths.split("|") for paths in re.findall(r"`([\w./|]+/[\w.|]*)`", joined)]


def page() -> str:
    return (ROOT / "docs" / "architecture.md").read_text()


def text_of(path: str) -> str:
    place = next(p for p in (ROOT / "gpuemu_flow" / path, ROOT / path) if p.exists())
    files = [place] if place.is_file() else sorted(p for p in place.iterdir() if p.is_file())
    return "\n".join(file.read_text() for file in files)


@pytest.mark.parametrize("what", KNOWN)
def test_each_file_of_a_row_names_each(what: str) -> None:
    rows = files_of(what)
    assert len(rows) >= 4
    for name in KNOWN[what]:
        module = name.replace("-", "_")
        for paths in rows:
            words = rf"\b({re.escape(name)}|{module})\b"
            texts = "\n".join(text_of(path) for path in paths)
            assert re.search(words, texts, re.IGNORECASE), f"{what}: {name} is in none of {paths}"
