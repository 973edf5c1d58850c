"""Results: newest first, on disk when acknowledged, bounded."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
from msgspec.structs import asdict

from gpuemu_flow.model.decoding import plain
from gpuemu_flow.model.errors import StoreError
from gpuemu_flow.model.types import Verdict
from gpuemu_flow.model.verdicts import Elements
from gpuemu_flow.store.cache import WorkspaceCache
from gpuemu_flow.store.results import DAY_NS, CountedResult, NewResult, ResultStore


@pytest.fixture
def cache(tmp_path: Path) -> WorkspaceCache:
    made = WorkspaceCache(tmp_path / "cache")
    made.create()
    return made


def add(store: ResultStore, seed: int, *, op: str = "op", passed: bool = True) -> None:
    result = {"passed": passed, "max_diff": 0.0, "seed": seed, "op_name": op}
    judged = CountedResult(Verdict.PASSED if passed else Verdict.FAILED)
    store.add(NewResult(op, seed, "float32", judged, result, "submit", "k"))


def test_newest_first_whatever_the_seeds(cache: WorkspaceCache) -> None:
    store = ResultStore(cache)
    for seed in (5, 1 << 63, 2):
        add(store, seed)
    assert [s.seed for s in store.newest(10)] == [2, 1 << 63, 5]
    assert [s.seed for s in store.newest(1)] == [2]
    assert store.newest(0) == []


def test_the_newest_of_a_seed_counts(cache: WorkspaceCache) -> None:
    store = ResultStore(cache)
    add(store, 7, passed=True)
    add(store, 7, passed=False)
    add(store, 7, op="other")
    found = store.find(7)
    assert found is not None
    assert found.op == "other"
    assert store.find(8) is None
    assert {key: s.result["passed"] for key, s in store.latest().items()} == {
        ("op", 7): False,
        ("other", 7): True,
    }


def test_the_next_process_has_them(cache: WorkspaceCache) -> None:
    store = ResultStore(cache)
    for seed in range(4):
        add(store, seed)
    again = ResultStore(WorkspaceCache(cache.folder))
    assert [s.seed for s in again.newest(10)] == [3, 2, 1, 0]
    assert {s.judged.verdict for s in again.newest(10)} == {Verdict.PASSED}


def test_what_another_process_forgets_is_gone(cache: WorkspaceCache) -> None:
    store = ResultStore(cache)
    for seed, op in enumerate(("op", "kept", "op")):
        add(store, seed, op=op)
    assert ResultStore(WorkspaceCache(cache.folder)).forget(["op"]) == 2
    assert [s.seed for s in store.newest(10)] == [1]
    add(store, 3)
    assert [s.seed for s in store.newest(10)] == [3, 1]


def test_threads_lose_nothing(cache: WorkspaceCache) -> None:
    store = ResultStore(cache)
    threads = [
        threading.Thread(target=lambda n=n: [add(store, n * 100 + i) for i in range(25)])
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wanted = {n * 100 + i for n in range(8) for i in range(25)}
    assert {s.seed for s in store.newest(1000)} == wanted
    assert {s.seed for s in ResultStore(cache).newest(1000)} == wanted


def test_the_oldest_go(cache: WorkspaceCache) -> None:
    store = ResultStore(cache, max_results=10)
    for seed in range(400):
        add(store, seed)
        if store.is_due:
            store.prune()
    kept = [s.seed for s in store.newest(1000)]
    assert kept == list(range(399, 399 - len(kept), -1))
    assert 10 <= len(kept) < 300
    assert store.find(0) is None
    assert len(ResultStore(cache, max_results=10).newest(1000)) == 10
    assert len(ResultStore(cache, max_results=0).newest(1000)) == 10


def test_days(cache: WorkspaceCache) -> None:
    store = ResultStore(cache)
    add(store, 1)
    assert ResultStore(cache, retention_days=1).find(1) is not None
    old = store.newest(1)[0].time_ns - 2 * DAY_NS
    fields = {
        **asdict(store.newest(1)[0]),
        "seed": 2,
        "judged": plain(CountedResult(Verdict.PASSED)),
        "result": {},
    }
    del fields["key"], fields["text"]
    store._records.put(f"{old:020d}", fields)
    assert ResultStore(cache).find(2) is not None
    assert ResultStore(cache, retention_days=1).find(2) is None


@pytest.mark.parametrize("figure", [0.0, 1.5, float("inf"), float("nan")])
def test_what_was_judged_comes_back(cache: WorkspaceCache, figure: float) -> None:
    elements = Elements(7, 2, 5, ("empty",))
    judged = CountedResult(Verdict.FAILED, elements, figure, 2.0, 3.0, 4.0, "id")
    ResultStore(cache).add(NewResult("op", 1, "float32", judged, {}, "submit"))
    found = ResultStore(WorkspaceCache(cache.folder)).newest(1)[0].judged
    assert repr(found) == repr(judged)


def test_records_of_another_version_are_dropped(cache: WorkspaceCache) -> None:
    store = ResultStore(cache)
    add(store, 1)
    store._records.put("junk", {"some": "thing"})
    store._records.put("x" * 20, {"op": 1})
    assert [s.seed for s in ResultStore(cache).newest(10)] == [1]


def test_times_are_unique(cache: WorkspaceCache) -> None:
    store = ResultStore(cache)
    times = [store.time_ns() for _ in range(1000)]
    assert times == sorted(set(times))


def test_many_results_share_a_transaction_and_survive_the_process(cache: WorkspaceCache) -> None:
    store = ResultStore(cache)
    big = {"notes": "x" * 40_000}  # goes to a file of its own
    new = [
        NewResult("op", seed, "float32", CountedResult(Verdict.PASSED), big if seed == 2 else {},
                  "submit")
        for seed in range(600)
    ]  # fmt: skip
    added = store.add_many(new)
    assert [stored.seed for stored in added] == list(range(600))
    assert store.add_many([]) == []
    again = ResultStore(WorkspaceCache(cache.folder))
    assert [s.seed for s in again.everything()] == list(range(600))
    found = again.find(2)
    assert found is not None
    assert found.result == big


def test_nothing_is_acknowledged_where_another_call_could_not_write_it(
    cache: WorkspaceCache,
) -> None:
    store = ResultStore(cache)
    add(store, 1)
    database = sqlite3.connect(cache.folder / "results/cache.db")
    database.execute(
        "CREATE TRIGGER full BEFORE INSERT ON Cache BEGIN SELECT RAISE(ABORT, 'disk is full'); END"
    )
    database.commit()
    outcomes: list[object] = []

    def submit(seed: int) -> None:
        try:
            add(store, seed)
            outcomes.append(seed)
        except StoreError as error:
            outcomes.append(error.slug)

    threads = [threading.Thread(target=submit, args=(seed,)) for seed in range(2, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == ["cache-disk-full"] * len(threads)
    database.execute("DROP TRIGGER full")
    database.commit()
    database.close()
    add(store, 11)
    assert [s.seed for s in store.newest(10)] == [11, 1]
    assert [s.seed for s in ResultStore(WorkspaceCache(cache.folder)).newest(10)] == [11, 1]
