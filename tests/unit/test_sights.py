"""Stamps that are read once for several steps: those of the right files, at the right time."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from gpuemu_flow.inputs.files import FileTable, stamp_of
from gpuemu_flow.inputs.plan import look_into
from gpuemu_flow.inputs.sights import Sights

STRANGER = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def text(path: Path) -> str:
    stamp = stamp_of(path)
    assert stamp is not None
    return ",".join(map(str, stamp))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name)
    return tmp_path


def test_a_stamp_is_read_once_and_that_of_another_file_when_it_is_asked_for(folder: Path) -> None:
    sights = Sights()
    before = text(folder / "a")
    assert sights.stamps(str(folder), ["a"]) == [before]
    for name in ("a", "b"):
        (folder / name).write_text("longer")
    assert sights.stamps(str(folder), ["b", "a"]) == [text(folder / "b"), before]
    assert Sights().stamps(str(folder), ["a"]) == [text(folder / "a")] != [before]


def test_what_the_process_has_read_is_not_read_again(folder: Path) -> None:
    seen = look_into(str(folder), ["a"])
    (folder / "a").write_text("longer")
    assert Sights({str(folder): seen}).stamps(str(folder), ["a"]) == seen.stamps
    assert seen.stamps != [text(folder / "a")]


def test_a_stamp_is_that_behind_a_link_and_none_where_no_file_is(folder: Path) -> None:
    (folder / "link").symlink_to("a")
    (folder / "dangling").symlink_to("nothing")
    found = Sights().stamps(str(folder), ["link", "dangling", "nothing", "nul\0"])
    assert found == [text(folder / "a"), "", "", ""]
    assert Sights().stamps(str(folder / "nowhere"), ["a"]) == [""]
    assert Sights().stamps("", ["etc"]) == [text(Path("/etc"))]


@as_root
@pytest.mark.parametrize("what", ["file", "link", "target", "dangling"])
def test_a_folder_with_something_of_a_stranger_is_not_taken_for_ones_own(
    folder: Path, what: str
) -> None:
    (folder / "link").symlink_to("nothing" if what == "dangling" else "/etc/passwd")
    names = ["a", "b", "link"]
    own, sights = frozenset({os.geteuid()}), Sights()
    if what == "target":
        (folder / "target").write_text("")
        os.chown(folder / "target", STRANGER, STRANGER)
        (folder / "link").unlink()
        (folder / "link").symlink_to("target")
    elif what == "file":
        os.chown(folder / "b", STRANGER, STRANGER)
    else:
        os.chown(folder / "link", STRANGER, STRANGER, follow_symlinks=False)
    sights.stamps(str(folder), names)
    assert sights.owned_by(own) == set()
    assert sights.owned_by(own | {STRANGER}) == {
        f"{folder}/{name}" for name in names if what != "dangling" or name != "link"
    }


def test_a_table_goes_by_the_stamps_that_it_is_given(folder: Path) -> None:
    table = FileTable(folder)
    for name in ("a", "b"):
        table.digest(name)
    sights = Sights({str(folder): look_into(str(folder), ["a"])})
    for name in ("a", "b"):
        (folder / name).write_text("longer")
    assert table.moved(sights=sights) == ["b"], "only b was not seen before"
    assert table.copy().refresh(sights) == {"b"}
    assert table.copy().refresh() == {"a", "b"}


def test_a_table_comes_back_from_its_json(folder: Path) -> None:
    (folder / "sub dir").mkdir()
    odd = os.fsdecode(b"sub dir/\xff odd")
    (folder / odd).write_text("x")
    table = FileTable(folder)
    paths = ["a", "b", odd, "/etc/passwd", str(folder / "c")]
    digests = {path: table.digest(path) for path in paths}
    again = FileTable.from_json(folder, table.to_json())
    assert {path: again.stamp(path) for path in paths} == {p: stamp_of(folder / p) for p in paths}
    assert sorted(itertools.chain.from_iterable(again.folders().values())) == sorted(paths)
    assert {path: again.known_digest(path) for path in paths} == digests
    assert again.moved() == []


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_table_of_another_form_is_refused(folder: Path, place: int) -> None:
    table = FileTable(folder)
    for name in ("a", "b"):
        table.digest(name)
    data = table.to_json()
    row = list(data[""])
    row[place] = row[place].replace("/", "").replace(" ", "")
    with pytest.raises(ValueError, match="zip"):
        FileTable.from_json(folder, {"": row})
