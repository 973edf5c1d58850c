"""Lock the files that commands make, so that only one process makes a file at a time.

Two workspaces may make the same file, if one is inside the other or if a folder has two
configurations. Each has its own cache, whose run lock does not stop the other.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Event

from gpuemu_flow.model.errors import CancelledRunError, StoreError
from gpuemu_flow.store.lock import read_holder, write_holder
from gpuemu_flow.store.private_files import PrivateFolder
from gpuemu_flow.store.user_cache import user_cache_folder

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
