"""A bit flipped anywhere in a database never gives one key the record of another."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from itertools import count
from pathlib import Path

import pytest

from gpuemu_flow.model.errors import StoreError
from gpuemu_flow.store.cache import JsonStore, seal, unseal

KEYS = ("key-1", "key-2", "key-3")
INDEX, TABLE = "Cache_key_raw", "Cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A closed store of three records, all in one file."""
    found = tmp_path / "whole"
    store = JsonStore(found, lambda path, reason: None)
    for n, key in enumerate(KEYS):
        store.put(key, {"n": n})
    store.close()
    connection = sqlite3.connect(found / "cache.db")
    connection.execute("pragma wal_checkpoint(truncate)")
    connection.close()
    return found


def page_of(folder: Path, name: str) -> tuple[int, int]:
    """First byte and length of the page that an index or table begins in."""
    connection = sqlite3.connect(folder / "cache.db")
    (page,) = connection.execute(
        "select rootpage from sqlite_master where name = ?", (name,)
    ).fetchone()
    (size,) = connection.execute("pragma page_size").fetchone()
    connection.close()
    return (page - 1) * size, size


def read_all(folder: Path, aside: Path) -> list[object]:
    """Return a store's answer for each key; damaged files are moved to `aside`."""
    aside.mkdir()
    names = count()
    store = JsonStore(folder, lambda path, _: shutil.move(path, aside / str(next(names))))
    found: list[object] = []
    for key in KEYS:
        try:
            found.append(store.get(key))
        except StoreError:
            found.append(None)
    store.close()
    return found


def test_a_record_of_another_key_is_refused() -> None:
    record = seal({"n": 1}, "key-1")
    assert unseal(record, "key-1") == {"n": 1}
    for other in ("key-2", "", "key-1 "):
        with pytest.raises(ValueError, match="damaged"):
            unseal(record, other)


@pytest.mark.parametrize("name", [INDEX, TABLE])
def test_no_flipped_bit_gives_a_wrong_record(folder: Path, tmp_path: Path, name: str) -> None:
    sound = (folder / "cache.db").read_bytes()
    begin, size = page_of(folder, name)
    used = [n for n in range(begin, begin + size) if sound[n]]
    # The cells lie at the end of a page; in the table most of them is payload, which every flip
    # of a checksummed record shows anyway.
    tried = used if name == INDEX else used[::7]
    missed = 0
    for position in tried:
        data = bytearray(sound)
        data[position] ^= 1 << (position % 2)
        copy, aside = tmp_path / "copy", tmp_path / "aside"
        for path in (copy, aside):
            shutil.rmtree(path, ignore_errors=True)
        copy.mkdir()
        (copy / "cache.db").write_bytes(data)
        with contextlib.suppress(StoreError):
            for n, found in enumerate(read_all(copy, aside)):
                assert found in (None, {"n": n}), f"byte {position - begin} of {name}: key {n}"
                missed += found is None
    assert missed > 0, "no flip did any harm; the test looks at the wrong bytes"
