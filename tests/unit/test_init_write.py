"""Installing several files: whatever breaks on the way, the folder is as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuemu_flow.model.errors import StoreError, UsageError
from gpuemu_flow.services.init.write import PREFIX, install

FILES = {"a": b"new a", "deep/b": b"new b", "deep/er/c": b"new c", "d": b"new d"}


def tree(folder: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("moves", range(len(FILES)))
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("stop", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failing_move_takes_all_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int, force: bool, stop: BaseException
) -> None:
    target = tmp_path / "target"
    if force:
        (target / "deep").mkdir(parents=True)
        for name in ("a", "deep/b", "d"):
            (target / name).write_bytes(b"old " + name.encode())
    before = tree(tmp_path)
    link, done = os.link, 0

    def failing(source: Path, place: Path) -> None:
        nonlocal done
        if done == moves:
            raise stop
        done += 1
        link(source, place)

    monkeypatch.setattr(os, "link", failing)
    if isinstance(stop, OSError):
        monkeypatch.setattr(Path, "rename", _failing_rename(target))
    with pytest.raises(StoreError if isinstance(stop, OSError) else KeyboardInterrupt):
        install(FILES, target, force=force)
    assert tree(tmp_path) == before


def _failing_rename(target: Path):
    """`Path.rename` that cannot move a file out of the staging folder."""
    rename = Path.rename

    def replacement(self: Path, place: Path) -> Path:
        if self.parent.name.startswith(PREFIX) and place.is_relative_to(target):
            raise OSError(28, "No space left on device")
        return rename(self, place)

    return replacement


def test_all_of_them_or_those_that_differ(tmp_path: Path) -> None:
    assert install(FILES, tmp_path / "t", force=False) == list(FILES)
    assert {k: v for k, v in tree(tmp_path / "t").items() if v} == FILES
    assert install(FILES, tmp_path / "t", force=True) == []
    assert install({**FILES, "a": b"x"}, tmp_path / "t", force=True) == ["a"]
    with pytest.raises(UsageError):
        install({**FILES, "a": b"y"}, tmp_path / "t", force=False)
    assert (tmp_path / "t" / "a").read_bytes() == b"x"
    assert install({"a": b"z"}, tmp_path / "t", force=False, added_to={"a"}) == ["a"]
    assert not [p for p in tree(tmp_path) if PREFIX in p]


def test_a_file_that_appears_meanwhile_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def racing(source: Path, place: Path) -> None:
        if place.name == "d":
            place.write_bytes(b"somebody else's")
        link(source, place)

    monkeypatch.setattr(os, "link", racing)
    with pytest.raises(StoreError, match="init-not-writable"):
        install(FILES, tmp_path, force=False)
    assert tree(tmp_path) == {"d": b"somebody else's"}


def test_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, place: Path) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    assert install(FILES, tmp_path, force=False) == list(FILES)
    assert {k: v for k, v in tree(tmp_path).items() if v} == FILES
