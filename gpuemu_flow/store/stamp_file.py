"""Set a file's modification time many times, for processes that watch the file."""

from __future__ import annotations

import os
from pathlib import Path

from gpuemu_flow.store.private_files import PrivateFolder


class StampFile:
    """A file whose time of modification tells other processes that something has changed.

    The file is kept open. It is opened again, with all checks of a `PrivateFolder`, only if `path`
    now leads to another file, or to a file with more or fewer hard links. Not thread-safe.
    """

    def __init__(self, files: PrivateFolder, path: Path) -> None:
        self._files = files
        self._path = path
        self._name = str(path)
        self._descriptor = -1
        self._known: tuple[int, int, int] | None = None

    def touch(self, time_ns: int) -> None:
        """Set the file's time of modification; make the file if there is none.

        Raises OSError, StoreError: The errors of `PrivateFolder.open`.
        """
        if self._known is None or self._seen() != self._known:
            self.close()
            self._descriptor = self._files.open(self._path, os.O_WRONLY | os.O_CREAT)
            self._known = self._seen()
        os.utime(self._descriptor, ns=(time_ns, time_ns))

    def _seen(self) -> tuple[int, int, int] | None:
        """Return the identity and the number of hard links of the file; None if there is none."""
        try:
            status = os.lstat(self._name)
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_nlink

    def close(self) -> None:
        """Close the file; the next `touch` opens it again."""
        self._known = None
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
