"""Allow one run at a time per workspace. The kernel frees the lock if its holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Event

from gpuemu_flow.model.errors import CancelledRunError, StoreError
from gpuemu_flow.store.private_files import PrivateFolder, disk_errors
from gpuemu_flow.store.workspace_cache import user_cache_folder


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


# Lock the files that commands make, so that only one process makes a file at a time.


_PAUSE = 0.05


@contextlib.contextmanager
def output_locks(
    paths: Iterable[Path], cancel: Event, on_wait: Callable[[str], None]
) -> Iterator[None]:
    """Hold the locks of some files inside the context.

    The operating system frees the locks when the process dies. The lock files are in the user's
    cache. If it is not writable, nothing is locked.

    Raises CancelledRunError: `cancel` was set.
    """
    # All processes take the locks in the same order, or two could wait for each other.
    names = {os.path.join(os.path.realpath(path.parent), path.name) for path in paths}  # noqa: PTH118
    with contextlib.ExitStack() as stack:
        for name in sorted(names):
            descriptor = _open(name)
            if descriptor is None:
                continue
            stack.callback(os.close, descriptor)
            _lock(descriptor, name, cancel, on_wait)
            stack.callback(write_holder, descriptor, "")
        yield


def _open(name: str) -> int | None:
    """Open the lock file of an output; return None if the user's cache cannot be written."""
    try:
        files = PrivateFolder(user_cache_folder(os.environ))
        folder = files.root / "locks"
        files.make(folder)
        digest = hashlib.sha256(os.fsencode(name)).hexdigest()
        return files.open(folder / digest, os.O_RDWR | os.O_CREAT)
    except (StoreError, OSError, RuntimeError):  # RuntimeError: no home folder
        return None


def _lock(descriptor: int, name: str, cancel: Event, on_wait: Callable[[str], None]) -> None:
    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if not told:
                told = True
                on_wait(f"{read_holder(descriptor)}, which makes {name}")
            if cancel.wait(_PAUSE):
                raise CancelledRunError from None
        except OSError:  # a file system without locks
            return
    words = f"process {os.getpid()}\n"
    write_holder(descriptor, words)
