"""The plan of "up to date" names the folders of tasks' manifests, and holds while they do."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from mini_workspace import Mini

from gpuemu_flow.engine import plan_file
from gpuemu_flow.engine.workspace import Workspace


def plan_of(mini: Mini) -> Path:
    return mini.root / ".gpuemu-cache" / "plan"


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


def joined(path: Path) -> None:
    path.with_name("other.json").write_text("{}")


def test_no_manifest_is_named(checked_mini: Mini) -> None:
    checked_mini.command("run")
    text = plan_of(checked_mini).read_text()
    assert ".json" not in text.replace("graph.json", "")
    for stage in ("generate", "op", "reference", "compare", "diff"):
        assert f"own {checked_mini.root}/.gpuemu-cache/tasks/{stage}\t" in text
    assert up_to_date(checked_mini)


@pytest.mark.parametrize("change", [removed, replaced, joined])
def test_a_changed_folder_of_manifests_ends_the_short_way(
    checked_mini: Mini, change: Callable[[Path], None]
) -> None:
    checked_mini.command("run")
    assert up_to_date(checked_mini)
    before = plan_of(checked_mini).read_bytes()
    change(manifest_of(checked_mini))
    checked_mini.command("run")
    assert plan_of(checked_mini).read_bytes() != before, "the full program answered"
    assert manifest_of(checked_mini).exists()
    assert up_to_date(checked_mini)


@pytest.mark.parametrize("name", ["tasks", "tasks/compare"])
def test_a_link_in_place_of_a_folder_is_refused(checked_mini: Mini, name: str) -> None:
    """Also a link to the very folder, with the manifests and stamps that the plan names."""
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


def test_no_plan_is_kept_where_a_manifest_was_replaced_meanwhile(checked_mini: Mini) -> None:
    checked_mini.command("run")
    workspace = Workspace(checked_mini.root, environ=checked_mini.environment())
    plan_of(checked_mini).unlink()
    plan_file.save_plan(workspace, "as it is")
    assert plan_of(checked_mini).exists()
    plan_of(checked_mini).unlink()
    replaced(manifest_of(checked_mini))
    plan_file.save_plan(workspace, "replaced")
    assert not plan_of(checked_mini).exists()
    workspace.cache.close()
