"""Interface of the storage of a shared cache.

The storage holds two kinds of objects. Entries are small and replaceable, and named by the sha256
of their keys. Blobs are named by the sha256 of their content.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import BinaryIO, Protocol

ACTION = "ac"
"""Kind of entries, which are small and replaceable, and named by the sha256 of their keys."""
CONTENT = "cas"
"""Kind of blobs, which are named by the sha256 of their content."""
MOST_ENTRY_BYTES = 64 << 20
MOST_BLOB_BYTES = 8 << 30
BLOCK = 1 << 20

_SHA256 = re.compile(r"[0-9a-f]{64}")


class RemoteError(Exception):
    """Error of a failed request to a shared cache; it is unknown whether the object exists.

    Attributes
    ----------
    refused : bool
        True if the server denied access.
    """

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused


class TooLargeError(RemoteError):
    """The error that a remote object is larger than any object that this program writes."""


class Transport(Protocol):
    """Interface of the storage of a shared cache. Thread-safe."""

    def get(self, kind: str, key: str, sink: BinaryIO, limit: int) -> bool:
        """Write an object to `sink`; return False if it does not exist.

        Raises
        ------
        RemoteError
            The request failed. `sink` may then contain a part of the object.
        """

    def put(self, kind: str, key: str, source: bytes | Path) -> None:
        """Store an object, whole or not at all; raise RemoteError if that fails."""

    def has(self, kind: str, key: str) -> bool:
        """Tell whether an object exists; raise RemoteError if the request fails."""

    def close(self) -> None:
        """End connections."""


def is_key(key: object) -> bool:
    """Tell whether a value is a valid object name: a sha256 in lower-case hex."""
    return isinstance(key, str) and _SHA256.fullmatch(key) is not None


def copy_bounded(source: BinaryIO, sink: BinaryIO, limit: int) -> int:
    """Copy a stream of at most `limit` bytes, and return the number of bytes.

    Raises
    ------
    TooLargeError
    """
    total = 0
    while block := source.read(BLOCK):
        total += len(block)
        if total > limit:
            raise TooLargeError(f"an object of more than {limit >> 20} MiB")
        sink.write(block)
    return total
