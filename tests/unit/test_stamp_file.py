"""A stamp file shows each change, whatever others did with the file meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuemu_flow.model.errors import StoreError
from gpuemu_flow.store.private_files import PrivateFolder
from gpuemu_flow.store.results import StampFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    return folder / "stamp"


@pytest.fixture
def stamp(path: Path) -> StampFile:
    return StampFile(PrivateFolder(path.parent), path)


def test_the_time_is_set_each_time(stamp: StampFile, path: Path) -> None:
    for time_ns in (10**18, 10**18 + 1, 5):
        stamp.touch(time_ns)
        assert path.stat().st_mtime_ns == time_ns
    stamp.close()
    stamp.touch(7)
    assert path.stat().st_mtime_ns == 7


@pytest.mark.parametrize("way", ["deleted", "replaced", "moved"])
def test_a_file_that_others_took_away_is_made_again(stamp: StampFile, path: Path, way: str) -> None:
    stamp.touch(1)
    if way == "deleted":
        path.unlink()
    elif way == "moved":
        path.rename(path.with_name("other"))
    else:
        path.with_name("new").write_text("")
        path.with_name("new").replace(path)
    stamp.touch(2)
    assert path.stat().st_mtime_ns == 2


def test_a_link_in_its_place_is_refused(stamp: StampFile, path: Path) -> None:
    stamp.touch(1)
    other = path.with_name("other")
    path.rename(other)
    path.symlink_to(other)
    with pytest.raises(StoreError):
        stamp.touch(2)
    assert other.stat().st_mtime_ns == 1


def test_a_second_name_for_it_is_refused(stamp: StampFile, path: Path) -> None:
    stamp.touch(1)
    os.link(path, path.with_name("other"))
    with pytest.raises(StoreError):
        stamp.touch(2)
    assert path.stat().st_mtime_ns == 1


def test_no_descriptor_stays_open(stamp: StampFile, path: Path) -> None:
    before = len(list(Path("/dev/fd").iterdir()))
    for time_ns in range(1, 5):
        stamp.touch(time_ns)
        path.unlink()
    stamp.close()
    stamp.close()
    assert len(list(Path("/dev/fd").iterdir())) == before
