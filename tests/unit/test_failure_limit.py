"""Test that the inputs of failures take bounded space: the newest and the minimised stay, and each
loss is reported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpuemu_flow.model.decoding import plain
from gpuemu_flow.model.types import Case, CheckResult, Failure, FailureKind, InputSpec, Verdict
from gpuemu_flow.store.cache import WorkspaceCache
from gpuemu_flow.store.failures import (
    GIVEN,
    MADE_AGAIN,
    SHRUNK,
    FailureRecord,
    FailureStore,
    StoredInputs,
    excess,
)

SIZE = 100


def make(seed: int, source: str = "fuzz", minimized_from: str | None = None) -> FailureRecord:
    case = Case(0, seed, "float32", "contiguous", "normal", (InputSpec("x", (3,), "float32"),))
    result = CheckResult(Verdict.FAILED, (Failure(FailureKind.TOLERANCE, "wrong"),))
    return FailureRecord.of("op", case, result, source=source, minimized_from=minimized_from)


def tensors(seed: int) -> bytes:
    return seed.to_bytes(SIZE, "little")


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[WorkspaceCache]:
    cache = WorkspaceCache(tmp_path / ".gpuemu-cache")
    cache.create()
    yield cache
    cache.close()


def kept(store: FailureStore) -> set[int]:
    """Seeds of the failures whose inputs are there."""
    return {r.seed for r in store.list() if store.input_tensors(r) is not None}


def test_the_oldest_go_first_and_all_stay_recorded(cache: WorkspaceCache) -> None:
    store = FailureStore(cache, inputs_limit=10 * SIZE)
    for seed in range(10):
        store.add(make(seed), tensors(seed))
    assert kept(store) == set(range(10))
    assert (cache.problems, store.dropped()) == ([], 0)
    store.add(make(10), tensors(10))
    assert kept(store) == set(range(2, 11)), "down to nine tenths of the limit"
    assert len(store.list()) == 11
    assert store.dropped() == 2


def test_a_loss_is_told_once_with_its_number(cache: WorkspaceCache) -> None:
    store = FailureStore(cache, inputs_limit=4 * SIZE)
    for seed in range(9):
        store.add(make(seed), tensors(seed))
    (problem,) = cache.problems
    assert problem.slug == "failure-inputs-dropped"
    assert problem.warning
    assert f"of {store.dropped()} recorded failures" in problem.message
    assert {r.seed for r in store.list() if r.inputs_dropped} == set(range(9)) - kept(store)


def test_what_can_be_made_again_goes_before_what_was_given_and_what_was_shrunk(
    cache: WorkspaceCache,
) -> None:
    store = FailureStore(cache, inputs_limit=7 * SIZE)
    first = store.add(make(0, "daemon"), tensors(0))
    store.add(make(1, "minimize", minimized_from=first), tensors(1))
    for seed in range(2, 12):
        store.add(make(seed), tensors(seed))
    assert {0, 1} <= kept(store)
    for seed in range(12, 22):
        store.add(make(seed, "daemon"), tensors(seed))
    assert 1 in kept(store)
    assert not kept(store) & set(range(12)) - {1}


def test_the_newest_stays_whatever_its_size(cache: WorkspaceCache) -> None:
    store = FailureStore(cache, inputs_limit=SIZE)
    store.add(make(0), tensors(0))
    store.add(make(1), b"x" * (5 * SIZE))
    assert kept(store) == {1}
    store.add(make(2), tensors(2))
    assert kept(store) == {2}


def test_a_failure_that_is_seen_again_has_its_inputs_again(cache: WorkspaceCache) -> None:
    store = FailureStore(cache, inputs_limit=2 * SIZE)
    ids = [store.add(make(seed, "daemon"), tensors(seed)) for seed in range(3)]
    assert 0 not in kept(store)
    assert store.add(make(0, "daemon"), tensors(0)) == ids[0]
    assert 0 in kept(store)
    assert not store.get(ids[0]).inputs_dropped


def test_other_processes_count_too(cache: WorkspaceCache) -> None:
    mine, other = (FailureStore(cache, inputs_limit=10 * SIZE) for _ in range(2))
    for seed in range(20):
        (mine if seed % 2 else other).add(make(seed), tensors(seed))
    # Each looks at all when its own count says so, so that both together stay below two limits.
    assert len(kept(mine)) <= 20
    for seed in range(20, 30):
        mine.add(make(seed), tensors(seed))
    assert len(kept(mine)) <= 10


def test_collection_keeps_only_what_is_still_there(cache: WorkspaceCache) -> None:
    store = FailureStore(cache, inputs_limit=2 * SIZE)
    for seed in range(4):
        store.add(make(seed), tensors(seed))
    assert len(store.pinned()) == len(kept(store))
    cache.blobs.collect(0, store.pinned())
    assert kept(store) == {r.seed for r in store.list() if not r.inputs_dropped}


def test_shared_inputs_are_counted_and_deleted_once() -> None:
    held = [StoredInputs("a", "x", MADE_AGAIN, "1"), StoredInputs("b", "x", SHRUNK, "2")]
    held += [StoredInputs("c", "y", GIVEN, "3"), StoredInputs("d", "z", GIVEN, "4")]
    sizes = {"x": 50, "y": 30, "z": 40}
    assert excess(held, sizes, 120, "d").failures == ()
    found = excess(held, sizes, 100, "d")
    assert found.failures == ("c",), "dropping `a` alone frees nothing, so it loses nothing"
    assert (found.blobs, found.left) == (("y",), 90)
    found = excess(held, sizes, 60, "d")
    assert found.failures == ("a", "c", "b")
    assert found.left == 40


def test_records_of_before_the_limit_are_read(cache: WorkspaceCache) -> None:
    store = FailureStore(cache)
    failure = store.add(make(0), tensors(0))
    old = plain(store.get(failure))
    del old["inputs_dropped"]
    cache.failures_db.put(failure, old)
    assert store.get(failure) == replace(store.get(failure), inputs_dropped=False)
    assert kept(store) == {0}
