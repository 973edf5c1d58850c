"""A record that was written up to any of its bytes is not believed, and nothing before it is lost.

A power cut tears files so, and a disk that filled. The suite tries a sample of the places.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from mini_workspace import Mini
from whole import WHOLE

from gpuemu_flow.model.errors import UsageError
from gpuemu_flow.model.types import Verdict
from gpuemu_flow.store.baselines import BaselineStore
from gpuemu_flow.store.cache import WorkspaceCache, seal, unseal
from gpuemu_flow.store.results import CountedResult, NewResult, ResultStore

CAUSES = False


def torn(data: bytes, every: int = 1) -> Iterator[bytes]:
    """Yield the beginnings of a record, plain and as a file system pads them: with zeros.

    All of them where matrices are whole, but of large files a thousand.
    """
    for length in range(0, len(data), max(1, len(data) // 1000) if WHOLE else every):
        yield data[:length]
        if length + 1 < len(data) and set(data[length:]) != {0}:
            yield data[:length] + bytes(len(data) - length)


def test_a_record_of_the_store() -> None:
    record = seal({"verdict": "passed", "numbers": [1, 2.5, None]}, "key")
    assert unseal(record, "key")
    for data in torn(record):
        with pytest.raises(ValueError, match=r"damaged|version"):
            unseal(data, "key")


def test_a_blob(tmp_path: Path) -> None:
    aside: list[str] = []
    cache = WorkspaceCache(tmp_path / ".gpuemu-cache")
    cache.create()
    content = b"tensor" * 20
    digest = cache.blobs.write(content)
    path = cache.blobs.path(digest)
    for data in torn(content):
        path.write_bytes(data)
        assert cache.blobs.read(digest) is None
        aside.append(digest)
        assert not path.exists()
    assert cache.blobs.write(content) == digest
    assert cache.blobs.read(digest) == content
    assert len(cache.problems) == len(aside)


def test_baseline(checked_mini: Mini) -> None:
    folder = checked_mini.root / ".gpuemu-cache"
    checked_mini.command("baseline", "store", "first")
    cache = WorkspaceCache(folder)
    (stored,) = (folder / "baselines").glob("*.baseline")

    whole = stored.read_bytes()
    for data in torn(whole, every=211):
        stored.write_bytes(data)
        with pytest.raises(UsageError):
            BaselineStore(cache).get("first")
    stored.write_bytes(whole)
    assert BaselineStore(cache).get("first").tag == "first"


def test_submissions(tmp_path: Path) -> None:
    """The database's journal ends anywhere: the results are those up to some moment."""
    store = ResultStore(WorkspaceCache(tmp_path / "cache"))
    keys = [
        store.add(
            NewResult("op", n, "float32", CountedResult(Verdict.PASSED), {"n": n}, source="submit")
        ).key
        for n in range(6)
    ]
    journal = (tmp_path / "cache" / "results" / "cache.db-wal").read_bytes()
    assert len(journal) > 10_000
    seen: set[int] = set()
    for number, data in enumerate(torn(journal, every=4001)):
        if WHOLE and number % 53:
            continue
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(tmp_path / "cache", copy)
        (copy / "results" / "cache.db-wal").write_bytes(data)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(copy / "results" / "cache.db-shm")  # noqa: PTH108 - what a power cut leaves
        again = ResultStore(WorkspaceCache(copy))
        found = [result.key for result in reversed(again.newest(10))]
        assert found == keys[: len(found)]
        later = again.add(
            NewResult("op", 9, "float32", CountedResult(Verdict.FAILED), {}, source="submit")
        )
        assert again.newest(1) == [later]
        again.close()
        seen.add(len(found))
    assert len(seen) > 2, "each place gave the same"
