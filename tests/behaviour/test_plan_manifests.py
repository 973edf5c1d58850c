"""A manifest that changed behind our back ends the short way, and counts for nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from mini_workspace import Mini


def manifest_of(mini: Mini) -> Path:
    return mini.root / ".gpuemu-cache" / "tasks" / "compare" / "scale@float32.json"


def up_to_date(mini: Mini) -> bool:
    return mini.command("run").stdout.startswith("up to date")


def removed(path: Path) -> None:
    path.unlink()


def replaced(path: Path) -> None:
    """Put another file of the same content and times in its place, as a restored copy would be."""
    before = path.stat()
    copy = path.with_suffix(".copy")
    copy.write_bytes(path.read_bytes())
    os.utime(copy, ns=(before.st_atime_ns, before.st_mtime_ns))
    copy.rename(path)


def edited(path: Path) -> None:
    path.write_text(path.read_text().replace("passed", "failed"))


@pytest.mark.parametrize("change", [removed, replaced, edited])
def test_a_manifest_that_changed_is_looked_at(
    checked_mini: Mini, change: Callable[[Path], None]
) -> None:
    """The summary line is said only after its task was found current, or has made it again."""
    checked_mini.command("run")
    assert up_to_date(checked_mini)
    before = manifest_of(checked_mini).read_bytes()
    change(manifest_of(checked_mini))
    assert not up_to_date(checked_mini)
    assert manifest_of(checked_mini).read_bytes() == before
    checked_mini.command("run")  # the run before may have told of the damage
    assert up_to_date(checked_mini)


@pytest.mark.parametrize("name", ["tasks", "tasks/compare"])
def test_a_link_in_place_of_a_folder_is_refused(checked_mini: Mini, name: str) -> None:
    """Also a link to the very folder, with the manifests and stamps of the last run."""
    checked_mini.command("run")
    assert up_to_date(checked_mini)
    folder = checked_mini.root / ".gpuemu-cache" / name
    aside = checked_mini.root / "aside"
    folder.rename(aside)
    folder.symlink_to(aside)
    done = checked_mini.command("run", code=3)
    assert "cache-unsafe-entry" in done.stdout + done.stderr
    folder.unlink()
    aside.rename(folder)
    checked_mini.command("run")
