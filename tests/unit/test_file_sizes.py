"""No Python file has more than 500 lines: a longer one has more than one purpose, and is split."""

from __future__ import annotations

from pathlib import Path

from import_graph import ROOT

REPOSITORY = ROOT.parent
FOLDERS = ("gpuemu_flow", "tests", "scripts", "benchmarks", "docs")
LONGEST = 500


def too_long(folder: Path) -> list[str]:
    """List the Python files below a folder that are too long, without those that git ignores."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        below = path.relative_to(folder)
        count = len(path.read_text(encoding="utf-8").splitlines())
        if count > LONGEST and not any(part.startswith(".") for part in below.parts):
            found.append(f"{folder.name}/{below}: {count} lines")
    return found


def test_no_file_is_too_long() -> None:
    assert [name for folder in FOLDERS for name in too_long(REPOSITORY / folder)] == []


def test_a_file_that_is_too_long_is_seen(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("a = 1\n" * (LONGEST + 1))
    (tmp_path / "short.py").write_text("a = 1\n" * LONGEST)
    assert too_long(tmp_path) == [f"{tmp_path.name}/long.py: 501 lines"]


def test_the_folders_are_searched() -> None:
    assert all(list((REPOSITORY / folder).rglob("*.py")) for folder in FOLDERS)
