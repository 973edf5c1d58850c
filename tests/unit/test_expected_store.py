"""Expected outputs are kept where that pays, and found again only for their reference and case."""

from __future__ import annotations

import hashlib
import resource
import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from gpuemu_flow.judge.expected_store import (
    Effort,
    ExpectedStore,
    _key,
    load,
    own_seconds,
    stage,
    worth_keeping,
)
from gpuemu_flow.model.types import Case, InputSpec
from gpuemu_flow.store.workspace_cache import WorkspaceCache
from gpuemu_flow.workers import blobs

CASE = Case(3, 7, "float32", "contiguous", "normal", (InputSpec("x", (2, 5), "float32"),))
OUTPUTS = {"y": np.arange(10.0).reshape(2, 5), "n": np.array(4, dtype=np.int64)}
SIZE = len(blobs.encode(OUTPUTS))


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[WorkspaceCache]:
    cache = WorkspaceCache(tmp_path / ".gpuemu-cache")
    cache.create()
    yield cache
    cache.close()


@pytest.fixture
def store(cache: WorkspaceCache) -> ExpectedStore:
    return ExpectedStore(cache, "reference 1")


def keep(store: ExpectedStore, case: Case = CASE) -> bool:
    path = Path(store.staging_path())
    digest = stage(OUTPUTS, path)
    stored = store.keep(case, path, digest)
    assert not path.exists()
    return stored


def test_what_was_kept_comes_back_bit_by_bit(store: ExpectedStore, cache: WorkspaceCache) -> None:
    assert store.find(CASE) is None
    assert keep(store)
    again = ExpectedStore(cache, "reference 1")
    path = again.find(replace(CASE, index=90, shape_class="tail"))
    assert path is not None
    found = load(path)
    assert set(found) == set(OUTPUTS)
    for name, array in OUTPUTS.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()
        assert not found[name].flags.writeable
    assert (store.stored, store.found, again.stored, again.found) == (1, 0, 0, 1)


@pytest.mark.parametrize(
    "other",
    [
        replace(CASE, seed=8),
        replace(CASE, inputs=(InputSpec("x", (5, 2), "float32"),)),
        replace(CASE, inputs=(InputSpec("x", (2, 5), "float32", "strided"),)),
        replace(CASE, inputs=(InputSpec("x", (2, 5), "float32", strategy="ties"),)),
    ],
)
def test_other_cases_are_not_answered(store: ExpectedStore, other: Case) -> None:
    keep(store)
    assert store.find(other) is None


def test_another_reference_is_not_answered(store: ExpectedStore, cache: WorkspaceCache) -> None:
    keep(store)
    store.remember("traits", {"exact": True})
    for other in (
        ExpectedStore(cache, "reference 2"),
        ExpectedStore(cache, "reference 1", force=True),
    ):
        assert other.find(CASE) is None
        assert other.fact("traits") is None
    assert ExpectedStore(cache, "reference 1").fact("traits") == {"exact": True}
    assert store.fact("another") is None


def test_cheap_references_are_run_again() -> None:
    assert not worth_keeping(1e-4, 100)
    assert not worth_keeping(1e-3, 100)
    assert worth_keeping(1e-2, 100)
    assert not worth_keeping(1e-2, 10_000_000)
    assert worth_keeping(1.0, 10_000_000)


def test_a_reference_that_computes_or_waits_for_long_is_kept() -> None:
    waits = Effort()
    select.select([], [], [], 0.02)
    assert waits.is_worth_keeping(100)
    computes = Effort()
    begin = time.process_time()
    while time.process_time() < begin + 0.02:
        pass
    assert computes.is_worth_keeping(100)


def usage(seconds: float, waits: int, interruptions: int) -> resource.struct_rusage:
    return resource.struct_rusage((seconds, 0.0, *[0] * 12, waits, interruptions))


def test_time_that_other_processes_had_does_not_count() -> None:
    before = usage(1.0, 5, 5)
    assert own_seconds(0.02, before, usage(1.001, 5, 9)) == pytest.approx(0.001)
    assert own_seconds(0.02, before, usage(1.001, 6, 9)) == 0.02
    assert own_seconds(0.02, before, usage(1.05, 5, 5)) == 0.02


def test_no_more_than_the_limit_is_written(cache: WorkspaceCache) -> None:
    store = ExpectedStore(cache, "reference 1", limit=2 * SIZE)
    assert not store.full
    stored = [keep(store, replace(CASE, seed=seed)) for seed in range(4)]
    assert stored == [True, True, False, False]
    assert store.full
    assert store.stored == 2


def test_the_limit_holds_for_threads_together(cache: WorkspaceCache) -> None:
    store = ExpectedStore(cache, "reference 1", limit=5 * SIZE)

    def work(first: int) -> None:
        for seed in range(first, first + 10):
            keep(store, replace(CASE, seed=seed))

    threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.stored == 5
    assert not list(cache.staging.iterdir())


def test_damage_and_deletion_only_cost_a_run(store: ExpectedStore, cache: WorkspaceCache) -> None:
    keep(store)
    (blob,) = cache.blobs.folder.glob("*/*.safetensors")
    data = blob.read_bytes()
    blob.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert store.find(CASE) is None
    assert [problem.slug for problem in cache.problems] == ["cache-damaged"]
    assert keep(store)
    assert store.find(CASE) is not None
    cache.blobs.collect(0)
    assert store.find(CASE) is None


@pytest.mark.parametrize(
    "record", [[], "text", {}, {"blob": 1}, 3, "../../etc/passwd", "0" * 64, "0" * 63 + "G"]
)
def test_a_record_of_someone_else_is_no_answer(
    store: ExpectedStore, cache: WorkspaceCache, record: object
) -> None:
    cache.actions.put(_key("reference 1", "outputs", CASE.identity()), record)
    assert store.find(CASE) is None


def test_what_was_changed_after_the_worker_wrote_it_is_not_kept(store: ExpectedStore) -> None:
    path = Path(store.staging_path())
    digest = stage(OUTPUTS, path)
    stage({**OUTPUTS, "y": OUTPUTS["y"] + 1}, path)
    assert not store.keep(CASE, path, digest)
    assert store.find(CASE) is None


@pytest.mark.parametrize("content", [b"", b"not safetensors", b"\0" * 100, None])
def test_what_a_program_put_there_is_not_kept(
    store: ExpectedStore, cache: WorkspaceCache, content: bytes | None
) -> None:
    path = Path(store.staging_path())
    if content is not None:
        path.write_bytes(content)
    assert not store.keep(CASE, path, hashlib.sha256(content or b"").hexdigest())
    assert store.find(CASE) is None
    assert not path.exists()
    assert not list(cache.blobs.folder.glob("*/*"))
