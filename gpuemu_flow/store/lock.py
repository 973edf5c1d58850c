"""Allow one run at a time per workspace. The kernel frees the lock if its holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from gpuemu_flow.store.private_files import PrivateFolder, disk_errors


class RunLock:
    """A lock (``flock``) on a file, whose content names the process that holds the lock."""

    def __init__(self, path: Path, on_wait: Callable[[str], None] | None = None) -> None:
        self._path = path
        self._on_wait = on_wait
        self._file: int | None = None
        self.waited = False
        """True if another process held the lock at first."""

    def __enter__(self) -> RunLock:
        with disk_errors(self._path):
            folder = PrivateFolder(self._path.parent)
            folder.make(folder.root)
            self._file = folder.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.waited = True
                if self._on_wait is not None:
                    self._on_wait(f"{read_holder(self._file)}, which runs in this workspace")
                fcntl.flock(self._file, fcntl.LOCK_EX)
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            words = f"process {os.getpid()} since {since}\n"
            write_holder(self._file, words)
        except BaseException:
            os.close(self._file)
            self._file = None
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            write_holder(self._file, "")
            os.close(self._file)
            self._file = None


def write_holder(descriptor: int, words: str) -> None:
    """Write the holder's description to the lock file; ignore errors of the disk."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, words.encode(), 0)


def read_holder(descriptor: int) -> str:
    """Return the description that the holder of a lock wrote."""
    return os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip() or "another process"
