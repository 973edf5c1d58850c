"""One run at a time per workspace, by a lock that the kernel frees when its holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from gpuemu_flow.store.atomic import disk_errors
from gpuemu_flow.store.private_files import PrivateFolder


class RunLock:
    """``flock`` on a file whose content names the holder.

    Parameters
    ----------
    path : Path
    on_wait : callable
        Called once, with the holder's own words, before waiting.
    """

    def __init__(self, path: Path, on_wait: Callable[[str], None] | None = None) -> None:
        self._path = path
        self._on_wait = on_wait
        self._file: int | None = None

    def __enter__(self) -> RunLock:
        with disk_errors(self._path):
            folder = PrivateFolder(self._path.parent)
            folder.make(folder.root)
            self._file = folder.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._on_wait is not None:
                    holder = os.pread(self._file, 200, 0).decode("utf-8", "replace").strip()
                    self._on_wait(f"{holder or 'another process'}, which runs in this workspace")
                fcntl.flock(self._file, fcntl.LOCK_EX)
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            words = f"process {os.getpid()} since {since}\n"
            self._write_holder(words)
        except BaseException:
            os.close(self._file)
            self._file = None
            raise
        return self

    def _write_holder(self, words: str) -> None:
        """Name the holder; the lock holds even where a failing disk does not take its name."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, words.encode(), 0)

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._write_holder("")
            os.close(self._file)
            self._file = None
