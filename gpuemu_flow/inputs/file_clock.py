"""The file system's clock, by whose times changes of files are dated."""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path

from gpuemu_flow.store.private_files import PrivateFolder


class FileClock:
    """Reads the clock that dates changes of files, which no other clock keeps step with.

    A file that has no name any more is written to, again and again: to make and delete one each
    time costs the more, the more were deleted in the last seconds.

    Parameters
    ----------
    staging : Path
        Folder of the cache in which the file is made.
    """

    def __init__(self, staging: Path) -> None:
        self._staging = staging
        self._lock = threading.Lock()
        self._probe = -1

    def now(self) -> int:
        """Return the time in ns; a file that changes from now on gets the same or a later one.

        Raises
        ------
        StoreError
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
