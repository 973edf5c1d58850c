"""Pass large tensors as files, without base64, if both sides are on the same machine.

The daemon owns a private folder. A message contains the random name of a file there, and never a
path. The side that reads a file deletes it.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.dtypes import bytes_of
from gpuemu_flow.wire.address import is_private
from gpuemu_flow.wire.envelope import WireError

FROM_BYTES = 1 << 20
"""Least size in bytes of a tensor passed as a file; smaller tensors are in the message itself."""
LEFT_SECONDS = 300.0
_NAME = re.compile(r"[0-9a-f]{32}")


def exchange_folder(private: Path, stem: str) -> Path:
    """Return the folder through which a daemon exchanges tensors.

    The folder is not in shared memory, since ops may write to shared memory.
    """
    return private / f"{stem}.exchange"


class Exchange:
    """A folder through which tensors are passed. Thread-safe.

    Raises WireError: The folder does not exist or is not private.
    """

    def __init__(self, folder: Path) -> None:
        if not is_private(folder):
            raise WireError(f"{folder} is not a private folder of this user")
        self.folder = folder

    def put(self, array: NDArray[Any]) -> str:
        """Write an array's elements in C order, and return the file's name.

        Raises OSError: There is no space; the tensor can still be sent in the message.
        """
        name = secrets.token_hex(16)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        path = self.folder / name
        descriptor = os.open(path, flags, 0o600)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                left = bytes_of(array).data
                while left:
                    left = left[file.write(left) :]
        except OSError:
            self.drop(name)
            raise
        return name

    def take(self, name: object, nbytes: int, where: str) -> NDArray[np.uint8]:
        """Read a file of exactly `nbytes`, and delete it.

        The file is read and not mapped: if the other side truncated it, a process that has it
        mapped would be killed.

        Raises WireError: The file is missing, or does not have the size in the message.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise WireError(f"{where}.file is not the name of an exchanged file")
        try:
            descriptor = os.open(
                self.folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            )
        except OSError:
            raise WireError(f"{where}.file is not there") from None
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            self.drop(name)
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size != nbytes:
                raise WireError(f"{where}.file does not hold {nbytes} bytes")
            flat = np.empty(nbytes, dtype=np.uint8)
            left = flat.data
            while left:
                count = file.readinto(left)
                if not count:
                    raise WireError(f"{where}.file ends early")
                left = left[count:]
        return flat

    def drop(self, name: str) -> None:
        """Delete a file that the other side will not read; ignore a missing file."""
        with contextlib.suppress(OSError):
            (self.folder / name).unlink()

    def close(self) -> None:
        """Delete the folder and everything in it."""
        self.clear(0)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def clear(self, older_than: float = LEFT_SECONDS) -> None:
        """Delete files older than `older_than` seconds, since nobody will read them."""
        limit = time.time() - older_than if older_than else math.inf
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.folder):
                with contextlib.suppress(OSError):
                    if _NAME.fullmatch(entry.name) and entry.stat().st_mtime <= limit:
                        Path(entry.path).unlink()
