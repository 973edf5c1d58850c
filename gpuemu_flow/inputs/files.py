"""Digests of workspace files, cached under the stamps of the file system."""

from __future__ import annotations

import hashlib
import math
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.store.private_files import LARGEST, PrivateFolder

ABSENT = ""
NO_TARGETS = "\0"  # no path begins so
_BLOCK = 1 << 20
_SETTLED_NS = 2_000_000_000
"""Age above which a file's stamp identifies its content: two changes may share a clock tick."""
_MOST_KNOWN = 1 << 13

Stamp = tuple[int, int, int, int]
"""(mtime_ns, ctime_ns, size, inode). ctime cannot be set back, so restored mtimes are noticed."""


_known: dict[tuple[int, Stamp], str] = {}
"""Digests that this process has made, by device and stamp: Python's library, which has two names
and fifty megabytes, is read once, whatever number of workspaces is opened."""


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


@dataclass
class FileTable:
    """Table of the stamp and sha256 of each path; reads a file again only if its stamp changed.

    Attributes
    ----------
    root : Path
        Folder that relative paths start from.
    entries : dict
        Path to (stamp, digest), as the snapshot stores them.
    """

    root: Path
    entries: dict[str, tuple[Stamp, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._prefix = str(self.root)
        self._targets = NO_TARGETS
        self._checked: set[Path] = set()
        self._fresh = False

    def expect_targets(self, prefix: str) -> None:
        """Treat paths with this prefix as files that tasks wrote into the cache.

        Links, and files larger than any target, are not such files.
        """
        self._targets = prefix

    def digest(self, path: str) -> str:
        """Return the sha256 of a file's content, or `ABSENT` if it is no regular file.

        Raises
        ------
        StoreError
            ``cache-unsafe-entry`` where a folder of the cache is a link.
        """
        if self._fresh and path in self.entries:
            return self.entries[path][1]
        full = os.path.join(self._prefix, path)  # noqa: PTH118 - thousands of times per look
        stamp = stamp_of(full)
        if stamp is None:
            self.entries.pop(path, None)
            return ABSENT
        known = self.entries.get(path)
        if known is not None and known[0] == stamp:
            return known[1]
        if path.startswith(self._targets):
            self._check_folder(Path(full).parent)
            digest = _digest_file(full, os.O_NOFOLLOW, LARGEST)
        else:
            digest = _digest_file(full)
        if digest is None:
            self.entries.pop(path, None)
            return ABSENT
        self.entries[path] = (stamp, digest)
        return digest

    def _check_folder(self, folder: Path) -> None:
        if folder not in self._checked:
            PrivateFolder(folder.parents[1]).check(folder)  # a target lies at tasks/STAGE/NAME
            self._checked.add(folder)

    def record(self, path: str, digest: str) -> None:
        """Store a digest that the writer of the file computed."""
        stamp = stamp_of(os.path.join(self._prefix, path))  # noqa: PTH118 - for each task
        if stamp is not None:
            self.entries[path] = (stamp, digest)

    @contextmanager
    def as_refreshed(self) -> Iterator[None]:
        """Trust the digests in the table while inside, as all have just been checked again."""
        self._fresh = True
        try:
            yield
        finally:
            self._fresh = False

    def refresh(self, paths: Iterable[str]) -> set[str]:
        """Check the stamp of every path again, and return the paths whose content changed."""
        by_folder: dict[str, list[str]] = {}
        for path in paths:
            by_folder.setdefault(path[: path.rfind("/") + 1], []).append(path)
        changed = set()
        for folder, inside in by_folder.items():
            for path in self._not_as_known(folder, inside):
                known = self.entries.get(path)
                before = known[1] if known is not None else ABSENT
                if self.digest(path) != before:
                    changed.add(path)
        return changed

    def _not_as_known(self, folder: str, paths: list[str]) -> list[str]:
        """Return those paths in one folder whose stamps are not the known ones.

        Files are looked up relative to the folder's descriptor, so that the system need not resolve
        the whole path of each of thousands of files.
        """
        try:
            place = os.open(os.path.join(self._prefix, folder), os.O_RDONLY | os.O_DIRECTORY)  # noqa: PTH118
        except (OSError, ValueError):
            return paths
        begin, look, entries = len(folder), os.stat, self.entries
        found = []
        try:
            for path in paths:
                try:
                    s = look(path[begin:], dir_fd=place)
                    if entries[path][0] == (s.st_mtime_ns, s.st_ctime_ns, s.st_size, s.st_ino):
                        continue
                except (OSError, ValueError, KeyError):
                    pass
                found.append(path)
        finally:
            os.close(place)
        return found


def _digest_file(path: str, flags: int = 0, limit: float = math.inf) -> str | None:
    """Return the sha256 of a regular file of at most `limit` bytes; else None."""
    found = hashlib.sha256()
    try:
        # Opening a pipe must not block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags)
        with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
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
