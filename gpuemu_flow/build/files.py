"""Digests of workspace files, each cached under the file's stamp: its times, size and inode."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpuemu_flow.store.private_files import PrivateFolder

ABSENT = ""
_BLOCK = 1 << 20
_SETTLED_NS = 2_000_000_000
"""Age above which a file's stamp identifies its content: two changes may share a clock tick."""
_MOST_KNOWN = 1 << 13

Stamp = tuple[int, int, int, int]
"""(mtime_ns, ctime_ns, size, inode). ctime cannot be set back, so restored mtimes are noticed."""


_known: dict[tuple[int, Stamp], str] = {}
"""Digests that this process has made, by device and stamp: Python's library, which has two names
and fifty megabytes, is read once, however many workspaces are opened."""


def stamp_of(path: str | Path) -> Stamp | None:
    """Return the stamp of a regular file, or None when there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - asked for every file of a workspace
    except (OSError, ValueError):
        return None
    return _stamp(status)


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def is_settled(stamp: Stamp, now: int) -> bool:
    """Tell whether a stamp, seen at the time `now` in ns, will differ after any later change."""
    return now - max(stamp[:2]) > _SETTLED_NS


class FileTable:
    """Table of the stamp and sha256 of each path; reads a file again only if its stamp changed.

    `root` is the folder that relative paths start from. Digests in `entries` were made by earlier
    runs.
    """

    def __init__(self, root: Path, entries: Mapping[str, tuple[Stamp, str]] | None = None) -> None:
        self.root = root
        self._prefix = str(root)
        self._entries = dict(entries or {})
        self._fresh = False

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> Mapping[str, tuple[Stamp, str]]:
        """Return the stamp and the digest of each path."""
        return self._entries

    def copy(self) -> FileTable:
        """Return another table with the same entries."""
        return FileTable(self.root, self._entries)

    def stamp(self, path: str) -> Stamp | None:
        """Return the stamp under which a path is listed; None if the path is not listed."""
        known = self._entries.get(path)
        return None if known is None else known[0]

    def known_digest(self, path: str) -> str:
        """Return the table's digest for a path, even if the file changed; `ABSENT` if unlisted."""
        known = self._entries.get(path)
        return ABSENT if known is None else known[1]

    def digest(self, path: str) -> str:
        """Return the sha256 of a file's content, or `ABSENT` if it is no regular file."""
        known = self._entries.get(path)
        if self._fresh and known is not None:
            return known[1]
        full = os.path.join(self._prefix, path)  # noqa: PTH118 - thousands of times per look
        stamp = stamp_of(full)
        if stamp is None:
            self._entries.pop(path, None)
            return ABSENT
        if known is not None and known[0] == stamp:
            return known[1]
        digest = _digest_file(full)
        if digest is None:
            self._entries.pop(path, None)
            return ABSENT
        self._entries[path] = stamp, digest
        return digest

    @contextmanager
    def as_refreshed(self) -> Iterator[None]:
        """Trust the table's digests during the context, without looking at the files.

        Use it only if all digests have just been checked; see `refresh`.
        """
        self._fresh = True
        try:
            yield
        finally:
            self._fresh = False

    def refresh(self) -> set[str]:
        """Look at all paths again, and return the paths whose content changed."""
        changed = set()
        for path in self.moved():
            before = self.known_digest(path)
            if self.digest(path) != before:
                changed.add(path)
        return changed

    def moved(self, paths: Iterable[str] | None = None) -> list[str]:
        """Return the paths that are missing, not in the table, or in it with another stamp.

        By default, all paths in the table are looked at.
        """
        entries, start = self._entries, f"{self._prefix}/"
        found = []
        for path in list(entries) if paths is None else paths:
            stamp = stamp_of(path if path.startswith("/") else start + path)
            if stamp is None or path not in entries or entries[path][0] != stamp:
                found.append(path)
        return found


def _digest_file(path: str) -> str | None:
    """Return the sha256 of a regular file; else None."""
    found = hashlib.sha256()
    try:
        # Opening a pipe must not block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return None
            key = status.st_dev, _stamp(status)
            known = _known.get(key)
            if known is not None:
                return known
            while block := file.read(_BLOCK):
                found.update(block)
            digest = found.hexdigest()
            settled = is_settled(key[1], time.time_ns())
            if settled and _stamp(os.fstat(descriptor)) == key[1]:
                if len(_known) >= _MOST_KNOWN:
                    _known.clear()
                _known[key] = digest
    except OSError:
        return None
    return digest


# The clock of the file system, which dates changes of files.


class FileClock:
    """Reads the clock that a file system uses for the times of changes to its files.

    Other clocks may show another time, so only this one can be compared with times of changes.

    One unlinked file is touched at each reading. A new file for each reading would be slow, since
    creating a file takes longer if many files were deleted in the last seconds.
    """

    def __init__(self, staging: Path) -> None:
        self._staging = staging
        self._lock = threading.Lock()
        self._probe = -1

    def now(self) -> int:
        """Return the present time in ns; no later change of a file is dated earlier.

        Raises StoreError.
        """
        with self._lock:
            if self._probe < 0:
                self._probe = self._make_probe()
        os.utime(self._probe)
        return os.fstat(self._probe).st_ctime_ns

    def _make_probe(self) -> int:
        files = PrivateFolder(self._staging.parent)
        path = self._staging / f"now-{os.getpid()}-{id(self)}"
        files.touch(path)
        probe = files.open(path, os.O_WRONLY)
        weakref.finalize(self, os.close, probe)
        files.remove(path)
        return probe
