"""A watch of a broken configuration: what sets it off, and what is only written by programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuemu_flow.services.watched_files import FileWatch


@pytest.fixture
def files(tmp_path: Path) -> FileWatch:
    config = tmp_path / "gpuemu.toml"
    config.write_text("[[[")
    (tmp_path / "run.log").write_text("a")
    (tmp_path / "op.py").write_text("a")
    found = FileWatch(tmp_path)
    found.follow_config(config)
    return found


def grow(path: Path) -> None:
    with path.open("a") as file:
        file.write("more\n")


@pytest.mark.parametrize(
    "name",
    [".op.py.swp", "#op.py#", ".git/index", "__pycache__/op.pyc", ".gpuemu-cache/lock"],
)
def test_what_editors_and_caches_write_sets_nothing_off(files: FileWatch, name: str) -> None:
    path = files.root / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    assert files.saved() == set()
    files.refresh()
    grow(path)
    assert files.saved() == set()


def test_what_may_mend_it_counts_and_logs_do_not(files: FileWatch) -> None:
    root = files.root
    grow(root / "run.log")
    assert files.saved() == set()
    grow(root / "gpuemu.toml")
    assert files.saved() == {"gpuemu.toml"}
    files.refresh()
    (root / "op.py").rename(root / "op2.py")
    assert files.saved() == {"op.py", "op2.py"}
    files.refresh()
    files.follow_config(root / "gpuemu.toml")
    (root / "more").mkdir()
    (root / "more" / "ops.toml").touch()
    assert files.saved() == {"more"}
