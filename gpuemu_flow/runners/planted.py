"""Replace the PTX that Triton compiles, so that bugs can be planted in its kernels."""

from __future__ import annotations

import hashlib
from pathlib import Path

RECORD = "record"
"""Name of the folder that receives the PTX of all launched kernels."""


class PtxFolder:
    """A folder of PTX files, each named by the digest of the PTX that it replaces."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def exchanged(self, ptx: bytes) -> bytes:
        """Return the replacement for a PTX text; the text itself if there is none."""
        if self._folder is None:
            return ptx
        try:
            return (self._folder / _name(ptx)).read_bytes()
        except FileNotFoundError:
            return ptx

    def launched(self, ptx: bytes) -> None:
        """Store the PTX of a launched kernel in the subfolder `RECORD`, if that exists."""
        if self._folder is None or not (self._folder / RECORD).is_dir():
            return
        kept = self._folder / RECORD / _name(ptx)
        if not kept.exists():
            kept.write_bytes(ptx)


def _name(ptx: bytes) -> str:
    return f"{hashlib.sha256(ptx).hexdigest()}.ptx"
