"""Blobs: named by content, verified when read, collected by age."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuemu_flow.model.errors import StoreError
from gpuemu_flow.store.cache import BlobStore, WorkspaceCache
from gpuemu_flow.store.keys import digest_bytes


@pytest.fixture
def aside() -> list[Path]:
    return []


@pytest.fixture
def store(tmp_path: Path, aside: list[Path]) -> BlobStore:
    def set_aside(path: Path, _reason: str) -> None:
        aside.append(path)
        path.rename(tmp_path / f"aside{len(aside)}")

    return BlobStore(tmp_path / "blobs", set_aside)


def test_what_is_written_is_read(store: BlobStore) -> None:
    digest = store.write(b"tensor bytes")
    assert digest == digest_bytes(b"tensor bytes")
    assert store.has(digest)
    assert store.read(digest) == b"tensor bytes"


def test_a_file_in_the_place_of_the_folder_is_an_error_with_a_reason(store: BlobStore) -> None:
    store.folder.write_bytes(b"not a folder")
    digest = digest_bytes(b"tensor bytes")
    assert not store.has(digest)
    assert store.size(digest) == 0
    for act in (lambda: store.write(b"tensor bytes"), lambda: store.read(digest)):
        with pytest.raises(StoreError) as caught:
            act()
        assert caught.value.problems[0].slug == "cache-not-writable"


@pytest.mark.parametrize("position", [0, 5, 11])
def test_a_flipped_byte_is_never_accepted(
    store: BlobStore, aside: list[Path], position: int
) -> None:
    digest = store.write(b"tensor bytes")
    path = store.path(digest)
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    assert store.read(digest) is None
    assert aside == [path]
    assert not store.has(digest)
    assert store.write(b"tensor bytes") == digest
    assert store.read(digest) == b"tensor bytes"


def test_a_truncated_blob_is_never_accepted(store: BlobStore) -> None:
    digest = store.write(b"tensor bytes")
    store.path(digest).write_bytes(b"tensor")
    assert store.read(digest) is None


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "a" * 63, "A" * 64, "g" * 64])
def test_only_digests_name_files(store: BlobStore, name: str) -> None:
    with pytest.raises(ValueError, match="sha256"):
        store.path(name)


def test_publish_moves_a_staged_file(store: BlobStore, tmp_path: Path) -> None:
    staged = tmp_path / "staged"
    staged.write_bytes(b"from a worker")
    digest = digest_bytes(b"from a worker")
    store.publish(staged, digest)
    assert not staged.exists()
    assert store.read(digest) == b"from a worker"


def test_small_blobs_share_a_file(tmp_path: Path) -> None:
    cache = WorkspaceCache(tmp_path / "cache")
    contents = [bytes([n]) * 100 for n in range(5)]
    digests = [cache.blobs.add(data) for data in contents]
    assert [cache.blobs.read(digest) for digest in digests] == contents, "from memory"
    large = cache.blobs.add(bytes(1 << 17))
    for _ in range(2):  # nothing waits the second time, and nothing is written
        cache.blobs.flush()
    assert len(list(cache.blobs.folder.rglob("*.safetensors"))) == 2
    cache.close()
    again = WorkspaceCache(tmp_path / "cache").blobs
    assert [again.read(digest) for digest in digests] == contents
    assert [again.size(digest) for digest in (*digests, large)] == [100] * 5 + [1 << 17]
    assert again.verify() == []
    again.collect(0)
    assert not any(map(again.has, digests))
    assert again.read(digests[0]) is None


def test_a_damaged_file_of_several_blobs_gives_none(tmp_path: Path) -> None:
    cache = WorkspaceCache(tmp_path / "cache")
    first, second = cache.blobs.add(b"first"), cache.blobs.add(b"second")
    cache.blobs.flush()
    (file,) = cache.blobs.folder.rglob("*.safetensors")
    file.write_bytes(file.read_bytes()[:8])
    assert cache.blobs.read(second) is None
    assert cache.blobs.read(first) is None, "the file is set aside"
    assert len(cache.problems) == 1


def test_collect_takes_the_least_recently_used_and_keeps_what_it_must(store: BlobStore) -> None:
    digests = [store.write(bytes([n]) * 100) for n in range(5)]
    for age, digest in enumerate(digests):
        os.utime(store.path(digest), (1_000_000 + age, 1_000_000 + age))
    assert store.collect(250, keep=[digests[0]]) == (3, 300)
    assert [store.has(d) for d in digests] == [True, False, False, False, True]
    assert store.collect(250) == (0, 0)


def test_verify_finds_damage_anywhere(store: BlobStore) -> None:
    good, bad = store.write(b"good"), store.write(b"bad")
    store.path(bad).write_bytes(b"worse")
    assert store.verify() == [store.path(bad).stem]
    assert store.verify() == []
    assert store.has(good)


def test_a_folder_that_cannot_be_written_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_bytes(b"a file where the folder should be")
    store = BlobStore(tmp_path / "blobs", lambda *_: None)
    with pytest.raises((StoreError, NotADirectoryError, FileExistsError)):
        store.write(b"x")


def test_the_volume_is_that_of_the_blobs_alone(store: BlobStore, tmp_path: Path) -> None:
    first = store.path(store.write(b"12345"))
    store.write(b"123")
    (first.parent / "note.txt").write_bytes(b"not a blob")
    (first.parent / f"link{first.suffix}").symlink_to(first)
    os.mkfifo(first.parent / f"pipe{first.suffix}")
    (store.folder / "linked").symlink_to(first.parent)
    assert store.volume() == 8
    assert store.collect(8) == (0, 0)
    assert first.exists()
    assert store.collect(7)[0] >= 1
