"""Tests in this folder start no processes: those that do stand in tests/integration."""

from __future__ import annotations

import ast
from pathlib import Path

HERE = Path(__file__).resolve().parent
STARTERS = {"subprocess", "multiprocessing", "mini_workspace", "pynng", "socket", "forkserver"}


def imported(text: str) -> set[str]:
    """Each part of each name that a module imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(part for alias in node.names for part in alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            found.update((node.module or "").split("."))
    return found


def test_no_unit_test_imports_what_starts_processes() -> None:
    guilty = {
        path.name: sorted(found)
        for path in sorted(HERE.glob("*.py"))
        if (found := imported(path.read_text(encoding="utf-8")) & STARTERS)
    }
    assert guilty == {}


def test_imports_are_seen() -> None:
    text = "import os\ndef f():\n    import subprocess as s\n"
    assert imported(text) & STARTERS == {"subprocess"}
    assert imported("from gpuemu_flow.runners.forkserver import x") & STARTERS == {"forkserver"}
