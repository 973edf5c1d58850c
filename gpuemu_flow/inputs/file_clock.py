"""The clock of the file system, which dates changes of files."""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path

from gpuemu_flow.store.private_files import PrivateFolder


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
