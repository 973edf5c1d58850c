"""Records: checksummed, without pickle, and set aside when the database is damaged.

Of flipped bits the suite tries a sample: see `whole`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import random
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from whole import WHOLE

from gpuemu_flow.model.errors import StoreError
from gpuemu_flow.store.cache import BytesDisk, ForeignRecordError, JsonStore, seal, unseal
from gpuemu_flow.store.private_files import RunLock


class Aside:
    """Moves damaged things next to the test's folder, as the workspace cache does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reasons: list[str] = []

    def __call__(self, path: Path, reason: str) -> None:
        self.reasons.append(reason)
        path.rename(self.folder / f"aside{len(self.reasons)}")


@pytest.fixture
def aside(tmp_path: Path) -> Aside:
    return Aside(tmp_path)


@pytest.fixture
def store(tmp_path: Path, aside: Aside) -> JsonStore:
    return JsonStore(tmp_path / "state", aside)


def test_seal_and_unseal() -> None:
    value = {"a": [1, 2.5, None, "ü"]}
    record = seal(value)
    assert unseal(record) == value
    assert unseal(seal(["no text: \udce9", 2**64])) == ["no text: \udce9", 2**64]
    assert math.isnan(unseal(seal(math.nan)))
    for position in range(len(record)):
        damaged = bytearray(record)
        damaged[position] ^= 0x20
        with pytest.raises(ValueError):
            unseal(bytes(damaged))


def test_values_survive_another_process_opening_the_folder(
    store: JsonStore, tmp_path: Path, aside: Aside
) -> None:
    store.put("task:a", {"n": 1})
    store.put_many([("task:b", {"n": 2}), ("task:c", {"big": "x" * 100_000})])
    store.close()
    again = JsonStore(tmp_path / "state", aside)
    assert again.get("task:a") == {"n": 1}
    assert again.get("task:c") == {"big": "x" * 100_000}
    assert list(again) == ["task:a", "task:b", "task:c"]
    assert again.get("task:none") is None


def database(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(folder / "cache.db")


@pytest.mark.parametrize("limit", [0, 1 << 30])
def test_keys_are_looked_up_many_at_a_time(tmp_path: Path, aside: Aside, limit: int) -> None:
    store = JsonStore(tmp_path / "state", aside, size_limit=limit)
    keys = [f"key {number}" for number in range(1200)]
    assert store.among(keys) == set()
    store.put_many((key, {}) for key in keys[::2])
    assert store.among(keys) == set(keys[::2])
    assert store.among([]) == set()


def test_values_are_read_many_at_a_time(store: JsonStore, tmp_path: Path) -> None:
    store.put_many((f"{number}", number) for number in range(1200))
    other = json.dumps("of another key").encode()
    with sqlite3.connect(tmp_path / "state/cache.db") as database:
        database.execute("UPDATE Cache SET value = ? WHERE key = '7'", (other,))
    found = store.get_many([*map(str, range(1200)), "none"])
    assert found.pop("7") is None
    assert found == {str(number): number for number in range(1200) if number != 7}
    assert store.get("7") is None
    with sqlite3.connect(tmp_path / "state/cache.db") as database:
        database.execute("UPDATE Cache SET value = 'a text' WHERE key = '8'")
        database.execute("UPDATE Cache SET mode = 4 WHERE key = '9'")
    assert store.get_many(["8", "9", "10"]) == {"10": 10}


def test_a_damaged_record_is_dropped(store: JsonStore, tmp_path: Path) -> None:
    store.put("k", {"n": 1})
    store.close()
    with database(tmp_path / "state") as connection:
        (value,) = connection.execute("select value from Cache").fetchone()
        connection.execute("update Cache set value = ?", (value[:-3] + b"9}\n",))
    connection.close()
    assert store.get("k") is None
    store.put("k", {"n": 2})
    assert store.get("k") == {"n": 2}


def test_a_record_of_another_version_is_left_to_it(
    store: JsonStore, tmp_path: Path, aside: Aside
) -> None:
    store.put("k", {"n": 1})
    for record, is_damaged in ((b"gf2\nwhatever", False), (b"gf1\nwhatever", True)):
        with contextlib.closing(database(tmp_path / "state")) as connection, connection:
            connection.execute("update Cache set value = ?", (record,))
        assert store.get("k") is None
        assert (len(aside.reasons), list(store)) == (is_damaged, [] if is_damaged else ["k"])


@pytest.mark.parametrize("mode", [2, 3, 4])
def test_a_row_that_claims_to_be_a_pickle_or_a_file_is_not_followed(
    store: JsonStore, tmp_path: Path, mode: int
) -> None:
    store.put("k", {"n": 1})
    store.close()
    secret = tmp_path / "secret"
    secret.write_bytes(pickle.dumps({"stolen": True}))
    with database(tmp_path / "state") as connection:
        connection.execute(
            "update Cache set mode = ?, filename = ?, value = ?",
            (mode, "../secret", pickle.dumps({"run": True})),
        )
    connection.close()
    assert store.get("k") is None
    assert secret.exists(), "a foreign file name was removed"


def test_a_damaged_database_is_set_aside_and_replaced(
    store: JsonStore, tmp_path: Path, aside: Aside
) -> None:
    store.put("k", {"n": 1})
    store.close()
    for name in ("cache.db-wal", "cache.db-shm"):
        (tmp_path / "state" / name).unlink(missing_ok=True)
    path = tmp_path / "state" / "cache.db"
    path.write_bytes(b"this is no database" * 500)
    again = JsonStore(tmp_path / "state", aside)
    assert again.get("k") is None
    again.put("k", {"n": 2})
    assert again.get("k") == {"n": 2}
    assert len(aside.reasons) == 1


def make_undecodable(folder: Path) -> None:
    with contextlib.closing(database(folder)) as connection, connection:
        connection.execute("update Cache set value = cast(x'67ff' as text)")


def test_threads_go_on_while_the_database_is_damaged_again_and_again(
    store: JsonStore, tmp_path: Path, aside: Aside
) -> None:
    """Each meets the damage on a connection of its own, and what was made anew meanwhile."""
    ended = threading.Event()

    def work(name: str) -> None:
        while not ended.is_set():
            store.put(name, {"n": 1})
            assert store.get(name) in ({"n": 1}, None)

    with ThreadPoolExecutor(4) as threads:
        jobs = [threads.submit(work, name) for name in "abcd"]
        try:
            while len(aside.reasons) < 6 and not any(job.done() for job in jobs):
                with contextlib.suppress(sqlite3.Error):
                    make_undecodable(tmp_path / "state")
        finally:
            ended.set()
        for job in jobs:
            job.result()
    store.put("k", {"n": 2})
    assert store.get("k") == {"n": 2}


def test_an_error_at_the_begin_of_a_transaction_is_not_taken_for_a_lock(
    store: JsonStore, aside: Aside
) -> None:
    """diskcache raises the same for both; a database that was moved away gives the former."""
    store._opened()._sql("pragma query_only = 1")
    store.put("k", {"n": 1})
    store._opened()._sql("pragma query_only = 1")
    store.put_many([("l", {"n": 2})])
    assert [store.get("k"), store.get("l")] == [{"n": 1}, {"n": 2}]
    assert aside.reasons == []


def test_what_another_process_has_set_aside_is_not_set_aside_again(
    store: JsonStore, tmp_path: Path, aside: Aside
) -> None:
    store.put("k", {"n": 1})
    (tmp_path / "state").rename(tmp_path / "moved")
    other = JsonStore(tmp_path / "state", aside)
    other.put("k", {"n": 2})
    store.put("l", {"n": 3})
    assert [other.get("k"), other.get("l")] == [{"n": 2}, {"n": 3}]
    assert store.get("k") == {"n": 2}
    assert aside.reasons == []


def test_a_database_that_stays_locked_is_told_not_set_aside(
    store: JsonStore, tmp_path: Path, aside: Aside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuemu_flow.store.cache._LOCK_SECONDS", 0.05)
    impatient = JsonStore(tmp_path / "state", aside)
    with contextlib.closing(database(tmp_path / "state")) as connection:
        connection.execute("begin immediate")
        impatient._open = None  # type: ignore[method-assign, assignment]  # nobody tries again
        for act in (lambda: impatient.put("k", 1), lambda: impatient.put_many([("k", 1)])):
            with pytest.raises(StoreError, match="stayed locked") as caught:
                act()
            assert caught.value.slug == "cache-busy"
    assert aside.reasons == []


def test_a_path_that_sqlite_does_not_open_is_told_from_other_faults(
    tmp_path: Path, aside: Aside
) -> None:
    deep = str(tmp_path.joinpath(*["n" * 60] * 9))
    for length in (504, 505):
        folder = deep[: length - len("/cache.db") - 1].removesuffix("/").ljust(length - 9, "n")
        try:
            JsonStore(Path(folder), aside).put("a", 1)
            assert length == 504
        except StoreError as error:
            assert "has 505 bytes, and SQLite opens none of more than 504" in str(error)


def test_eviction_takes_old_records(tmp_path: Path, aside: Aside) -> None:
    store = JsonStore(tmp_path / "actions", aside, size_limit=200_000)
    for n in range(100):
        store.put(f"k{n}", {"payload": "x" * 10_000})
    assert store.get("k0") is None
    assert store.get("k99") is not None
    assert store.volume() < 2_000_000


def test_eviction_takes_old_records_where_many_are_stored_at_once(
    tmp_path: Path, aside: Aside
) -> None:
    store = JsonStore(tmp_path / "actions", aside, size_limit=200_000)
    some = [(f"k{n:03}", {"payload": "x" * 10_000}) for n in range(200)]
    for start in range(0, 200, 10):
        store.put_many(some[start : start + 10])
        assert {key for key, _ in some[start : start + 10]} <= set(store)
    assert len(list(store)) < 40
    assert store.volume() < 500_000


def test_the_disk_refuses_what_it_would_not_read_back(tmp_path: Path) -> None:
    disk = BytesDisk(str(tmp_path))
    with pytest.raises(TypeError):
        disk.put(1)
    with pytest.raises(TypeError):
        disk.store({"not": "bytes"}, False)
    with pytest.raises(ForeignRecordError):
        disk.fetch(4, None, b"\x80\x04N.", False)
    with pytest.raises(ForeignRecordError):
        disk.get("k", False)


VALUES = {f"key{n}": {"n": n, "pad": "x" * (10 if n % 3 else 40_000)} for n in range(9)}
CELLS = (None, -1, 2**62, 1.5, float("inf"), "", "abc", "../../x", b"", b"abc")


def damaged_stores(sound: Path, places: random.Random) -> Iterator[Callable[[Path], None]]:
    """Ways to damage a database: each cell of another type, then single flipped bits."""
    with contextlib.closing(sqlite3.connect(sound)) as database:
        tables = [name for (name,) in database.execute("select name from sqlite_master")]
        cells = [
            (table, column[1], row)
            for table in tables
            for column in database.execute(f"pragma table_info({table})")
            for (row,) in database.execute(f"select rowid from {table} limit 40")
        ]

    def put_cell(table: str, column: str, row: int, value: object, path: Path) -> None:
        with (
            contextlib.closing(sqlite3.connect(path)) as database,
            contextlib.suppress(sqlite3.Error),
        ):
            database.execute(f"update {table} set {column} = ? where rowid = ?", (value, row))
            database.commit()

    def flip(position: int, bit: int, path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[position] ^= 1 << bit
        path.write_bytes(data)

    for cell in cells:
        yield partial(put_cell, *cell, places.choice(CELLS))
    size = sound.stat().st_size
    for _ in range(300 if WHOLE else 90):
        yield partial(flip, places.randrange(size), places.randrange(8))


@pytest.mark.ci
def test_no_damage_to_a_database_crashes_or_gives_a_wrong_value(tmp_path: Path) -> None:
    sound = tmp_path / "sound"
    with contextlib.closing(JsonStore(sound, lambda path, _: shutil.rmtree(path))) as store:
        store.put_many(VALUES.items())
    used = tmp_path / "used"

    def set_aside(path: Path, _: str) -> None:
        path.unlink() if path.is_file() else shutil.rmtree(path)

    aside = 0
    for number, damage in enumerate(damaged_stores(sound / "cache.db", random.Random(7))):
        shutil.rmtree(used, ignore_errors=True)
        shutil.copytree(sound, used)
        damage(used / "cache.db")
        store = JsonStore(used, set_aside)
        for key, value in VALUES.items():
            found = store.get(key)
            assert found in (None, value), (number, key)
            aside += found is None
        list(store), store.volume()
        store.put("key1", 5)
        store.put("key2", {"big": "y" * 50_000})
        store.delete("key3")
        store.delete_many(["key4", "key5"])
        assert store.get("key1") in (5, None), number  # a damaged index may hide a row
        store.close()
    assert aside > 0


def test_large_records_stay_in_the_database(store: JsonStore, tmp_path: Path) -> None:
    large = "x" * (1 << 20)
    store.put_many([(f"k{number}", number) for number in range(1200)])
    store.put_many([("large", large), ("other", large)])
    assert {path.suffix for path in (tmp_path / "state").rglob("*") if path.is_file()} <= {
        ".db", ".db-wal", ".db-shm",
    }  # fmt: skip
    store.delete_many([*(f"k{number}" for number in range(1, 1200)), "large", "unknown"])
    assert set(store) == {"k0", "other"}
    assert store.get("other") == large


def test_keys_by_their_beginning(store: JsonStore) -> None:
    keys = ["code", "code:", "code:a", "code:é", "code;", "cod", "Code:a"]
    store.put_many([(key, 0) for key in keys])
    assert sorted(store.keys_from("code:")) == ["code:", "code:a", "code:é"]


def test_who_waits_for_a_run_is_told_whose_it_is(tmp_path: Path) -> None:
    told: list[str] = []
    waits = threading.Event()

    def wait() -> None:
        with RunLock(tmp_path / "lock", lambda holder: [told.append(holder), waits.set()]):
            told.append("held")

    with ThreadPoolExecutor(1) as pool:
        with RunLock(tmp_path / "lock"):
            second = pool.submit(wait)
            assert waits.wait(60)
        second.result(60)
    assert told[0].startswith(f"process {os.getpid()} since 20")
    assert told[1:] == ["held"]
