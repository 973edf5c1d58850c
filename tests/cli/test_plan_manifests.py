"""The plan of "up to date" names the folders of tasks' manifests, and holds while they do."""

from __future__ import annotations

import json
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


def in_place(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Overwrite a file with other content, and set its time back: its folder stays as it is."""

    def act(path: Path) -> None:
        before, folder = path.stat(), path.parent.stat()
        with path.open("r+b") as file:
            content = change(file.read())
            file.seek(0)
            file.write(content)
            file.truncate()
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        after = path.parent.stat()
        assert (folder.st_mtime_ns, folder.st_ctime_ns) == (after.st_mtime_ns, after.st_ctime_ns)

    return act


DAMAGES = {
    "emptied": lambda _: b"",
    "cut": lambda content: content[: len(content) // 2],
    "zeroed": lambda content: bytes(len(content)),
    "garbled": lambda content: content[::-1],
}


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


@pytest.mark.parametrize("command", [("run",), ("run", "--format", "json"), ("ci",)])
@pytest.mark.parametrize("damage", [*DAMAGES, "another task's"])
def test_a_manifest_that_is_damaged_in_place_is_made_again(
    checked_mini: Mini, damage: str, command: tuple[str, ...]
) -> None:
    """By each command whose short way says that all passed, also where it has said so before."""
    checked_mini.command("run")
    assert up_to_date(checked_mini)
    checked_mini.command(*command)
    path = manifest_of(checked_mini)
    sound = path.read_bytes()
    other = path.with_name("relu@float32.json").read_bytes()
    in_place(DAMAGES.get(damage, lambda _: other))(path)
    done = checked_mini.command(*command)
    assert "cache-damaged" in done.stdout + done.stderr
    assert path.read_bytes() == sound
    checked_mini.command("run")
    assert up_to_date(checked_mini)


@pytest.mark.parametrize("stage", ["generate", "op", "reference", "compare", "diff"])
def test_no_command_takes_an_empty_manifest_for_a_result(checked_mini: Mini, stage: str) -> None:
    checked_mini.command("run")
    checked_mini.command("status")
    name = "scale" if stage == "diff" else "scale@float32"
    in_place(lambda _: b"")(manifest_of(checked_mini).parents[1] / stage / f"{name}.json")
    assert ", 0 stale" not in checked_mini.command("status").stdout
    report = json.loads(checked_mini.command("report", "--format", "json", code=None).stdout)
    verdicts = {r["verdict"] for r in report["results"] if r["op"] == "scale"}
    # What became of the op since the last run is no part of its verdict.
    assert verdicts == ({"passed"} if stage == "diff" else {"skipped"})


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
