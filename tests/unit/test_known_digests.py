"""Digests that a process has made already are not made again, and none of them is an old one."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from gpuemu_flow.build import files
from gpuemu_flow.build.files import FileTable


@pytest.fixture
def settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is old enough, by a clock that is ahead."""
    path = tmp_path / "library.so"
    path.write_bytes(b"one")
    now = time.time_ns
    monkeypatch.setattr(files.time, "time_ns", lambda: now() + 10_000_000_000)
    monkeypatch.setattr(files, "_known", {})
    return path


def digest_anew(path: Path) -> str:
    """Return the digest in a table that knows no file yet."""
    return FileTable(Path("/")).digest(str(path))


def test_a_file_with_two_names_is_read_once(settled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = settled.with_name("link.so")
    link.symlink_to(settled)
    found = digest_anew(settled)
    assert found == hashlib.sha256(b"one").hexdigest()
    monkeypatch.setattr(files, "_BLOCK", None)  # a read would go wrong
    monkeypatch.setattr(files.hashlib, "sha256", lambda: None)
    assert digest_anew(settled) == digest_anew(link) == found


@pytest.mark.parametrize("way", ["written", "replaced", "with the old times"])
def test_a_file_that_changed_is_read_again(settled: Path, way: str) -> None:
    before = settled.stat()
    digest_anew(settled)
    other = settled.with_name("other")
    other.write_bytes(b"two")
    while other.stat().st_ctime_ns == before.st_ctime_ns:  # within one tick of the clock
        other.write_bytes(b"two")
    if way == "replaced":
        other.replace(settled)
    else:
        settled.write_bytes(b"two")
    if way == "with the old times":
        os.utime(settled, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digest_anew(settled) == hashlib.sha256(b"two").hexdigest()


def test_what_was_written_just_now_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may change once more before the clock of the file system goes on."""
    monkeypatch.setattr(files, "_known", {})
    path = tmp_path / "fresh"
    path.write_bytes(b"one")
    monkeypatch.setattr(files.time, "time_ns", lambda: path.stat().st_ctime_ns)
    digest_anew(path)
    assert files._known == {}


def test_no_more_than_so_many_are_kept(settled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MOST_KNOWN", 2)
    for n in range(5):
        path = settled.with_name(f"file{n}")
        path.write_bytes(b"%d" % n)
        digest_anew(path)
        assert len(files._known) <= 2
