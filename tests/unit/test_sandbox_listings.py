"""Test that what a process keeps of folders for its fences is what the folders hold."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from gpuemu_flow.workers.sandbox import listings
from gpuemu_flow.workers.sandbox.listings import Listings
from gpuemu_flow.workers.sandbox.rules import rules_for
from gpuemu_flow.workers.sandbox.spec import Sandbox

NAMES = ("a.py", "b.py", "deep")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that counts as settled, as if it had been made some seconds ago."""
    monkeypatch.setattr(listings, "_SETTLED_NS", 0)
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in NAMES[:2]:
        (folder / name).write_text(name)
    (folder / "deep").mkdir()
    (folder / "link.py").symlink_to("a.py")
    return folder


def names_of(kept: Listings, folder: Path) -> set[str]:
    kept.begin()
    return {Path(path).name for path in kept.below(str(folder))}


def wait_for_tick(folder: Path) -> None:
    """Wait until a change is dated later than the last one of the folder."""
    probe = folder.parent / "probe"
    probe.touch()
    while probe.stat().st_ctime_ns <= folder.stat().st_ctime_ns:
        probe.touch()


def in_place(folder: Path) -> None:
    (folder / "new").write_text("other")
    (folder / "new").rename(folder / "a.py")


CHANGES: dict[str, Callable[[Path], object]] = {
    "made": lambda f: (f / "c.py").touch(),
    "removed": lambda f: (f / "b.py").unlink(),
    "renamed": lambda f: (f / "b.py").rename(f / "d.py"),
    "replaced": in_place,
    "linked": lambda f: [(f / "b.py").unlink(), (f / "b.py").symlink_to("a.py")],
    "a folder": lambda f: (f / "deep").rmdir(),
}


def test_an_unchanged_folder_is_listed_and_opened_once(folder: Path) -> None:
    kept = Listings(100)
    assert names_of(kept, folder) == set(NAMES)
    first = dict(kept.opened)
    assert names_of(kept, folder) == set(NAMES)
    assert kept.opened == first
    assert all(os.path.samestat(os.fstat(fd), Path(path).stat()) for path, fd in first.items())
    assert all(fd >= 512 and not os.get_inheritable(fd) for fd in first.values())


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_shows_at_the_next_fence(folder: Path, change: str) -> None:
    kept = Listings(100)
    names_of(kept, folder)
    old = dict(kept.opened)
    wait_for_tick(folder)
    CHANGES[change](folder)
    there = {entry.name for entry in os.scandir(folder) if not entry.is_symlink()}
    assert names_of(kept, folder) == there
    assert {Path(path).name for path in kept.opened} == there
    for path, fd in kept.opened.items():
        assert os.path.samestat(os.fstat(fd), Path(path).stat()), path
    for fd in set(old.values()) - set(kept.opened.values()):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_a_folder_that_has_just_changed_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    kept = Listings(100)
    assert names_of(kept, tmp_path) == {"a.py"}
    assert not kept.opened


def test_no_more_than_allowed_is_kept_open(folder: Path) -> None:
    kept = Listings(2)
    assert names_of(kept, folder) == set(NAMES)
    assert not kept.opened
    other = folder / "deep"
    (other / "one").touch()
    assert names_of(kept, other) == {"one"}
    assert len(kept.opened) == 1


def test_nothing_is_kept_open_for_ever(folder: Path) -> None:
    kept = Listings(100)
    assert kept.is_empty
    names_of(kept, folder)
    assert not kept.is_empty
    descriptors = list(kept.opened.values())
    kept.forget()
    assert kept.is_empty
    assert not kept.opened
    for fd in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    assert names_of(kept, folder) == set(NAMES)


def inside(paths: Iterable[str], folder: Path) -> list[str]:
    """Return the paths below a folder: others come and go on a machine."""
    return sorted(path for path in paths if path.startswith(f"{folder}/"))


def test_rules_are_the_same_with_and_without(folder: Path) -> None:
    kept = Listings(10_000)
    for hidden in ("a.py", "b.py"):
        sandbox = Sandbox("landlock 7", str(folder), hidden=(str(folder / hidden),))
        plain = rules_for(sandbox, "/scratch", "")
        for _ in range(2):
            found = rules_for(sandbox, "/scratch", "", (), kept)
            assert inside(found.read, folder) == inside(plain.read, folder)
            assert inside(found.write, folder) == inside(plain.write, folder)
        assert str(folder / "deep") in found.opened
        assert str(folder / hidden) not in found.read
