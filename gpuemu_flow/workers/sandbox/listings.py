"""List folders for sandboxes, and keep the lists and descriptors of unchanged folders.

To hide one file, a sandbox has to allow all other files in its folder. With one worker for each of
a thousand files in a folder, the folder would otherwise be listed a thousand times, and a million
files would be opened.
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import time
from collections.abc import Mapping

from msgspec import Struct

from gpuemu_flow.workers.sandbox.filters import LOOK

_MOST = 1 << 16
_LOW = 512  # lower numbers are left for other files
_SETTLED_NS = 2_000_000_000  # a younger folder may change again within a tick of the clock
_OWN_WAYS = ("/proc", "/sys", "/dev")  # changes do not change the folder's times
_MOUNTS = "/proc/self/mounts"

_Stamp = tuple[int, int, int, int]


class _Listing(Struct, frozen=True):
    """A folder's entries and their descriptors, valid as long as the folder's stamp is `stamp`."""

    stamp: _Stamp
    opened: Mapping[str, int]


class Listings:
    """Lists folders, and keeps the entries of unchanged folders open. Not thread-safe."""

    def __init__(self, most: int = 0) -> None:
        self.opened: dict[str, int] = {}
        self._left = most
        self._known: dict[str, _Listing] = {}
        self._mounts = select.poll()
        if most:
            self._watch_mounts()

    def _watch_mounts(self) -> None:
        try:
            fd = _moved_up(os.open(_MOUNTS, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            self._left = 0
        else:
            # The kernel reports each change once: see proc_pid_mounts(5).
            self._mounts.register(fd, select.POLLPRI)

    def begin(self) -> None:
        """Empty `opened` before the next sandbox is made. If mounts have changed, close all
        descriptors, too, because a new mount hides files that were opened before."""
        self.opened = {}
        if self._known and self._mounts.poll(0):  # a new mount hides files that were opened before
            self.forget()

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing is kept open."""
        return not self._known

    def forget(self) -> None:
        """Close all descriptors: an open file uses space on the disk even after it is deleted."""
        self.opened = {}
        for folder in list(self._known):
            self._forget(folder)

    def below(self, folder: str) -> list[str]:
        """Return the paths of a folder's entries, leaving out links. Raises OSError."""
        if not self._left and not self._known:
            return _entries(folder)
        stamp = _stamp(folder)
        known = self._known.get(folder)
        if known is None or known.stamp != stamp:
            if known is not None:
                self._forget(folder)
            paths = _entries(folder)
            known = self._keep(folder, stamp, paths)
            if known is None:
                return paths
        self.opened.update(known.opened)
        return list(known.opened)

    def _keep(self, folder: str, stamp: _Stamp, paths: list[str]) -> _Listing | None:
        """Keep the listing of a folder, and return it."""
        young = time.time_ns() - max(stamp[:2]) < _SETTLED_NS
        if len(paths) > self._left or young or f"{folder}/".startswith(_OWN_WAYS):
            return None
        opened: dict[str, int] = {}
        try:
            for path in paths:
                opened[path] = _moved_up(os.open(path, LOOK))
            same = _stamp(folder) == stamp
        except OSError:
            same = False
        if not same:
            _close(opened)
            return None
        self._left -= len(opened)
        self._known[folder] = _Listing(stamp, opened)
        return self._known[folder]

    def _forget(self, folder: str) -> None:
        opened = self._known.pop(folder).opened
        self._left += len(opened)
        _close(opened)


def _entries(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.path for entry in entries if not entry.is_symlink()]


def _stamp(folder: str) -> _Stamp:
    found = os.stat(folder)  # noqa: PTH116 - hot
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev


def _moved_up(fd: int) -> int:
    """Move a descriptor to a high number, which no newly opened file gets, and return it."""
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LOW)
    finally:
        os.close(fd)


def _close(opened: Mapping[str, int]) -> None:
    for fd in opened.values():
        os.close(fd)


def raise_limit() -> tuple[Listings, tuple[int, int]]:
    """Raise this process's limit of open files, and return listings that may use the new limit."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = before
    most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and most > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return Listings(max(0, most // 2 - _LOW)), before
