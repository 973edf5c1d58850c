"""Content-addressed blobs: files named by their sha256, verified when read, collected by age."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from gpuemu_flow.store.atomic import disk_errors, write_atomic
from gpuemu_flow.store.keys import digest_bytes

_DIGEST = re.compile(r"[0-9a-f]{64}")
SUFFIX = ".safetensors"


class BlobStore:
    """Tensor files, two hex digits per folder: ``ab/ab12….safetensors``.

    Parameters
    ----------
    folder : Path
    set_aside : callable
        Called with a file whose content is not what its name says.
    """

    def __init__(self, folder: Path, set_aside: Callable[[Path, str], None]) -> None:
        self.folder = folder
        self._set_aside = set_aside

    def path(self, digest: str) -> Path:
        """Return the path of a blob, whether it exists or not.

        Raises
        ------
        ValueError
            When `digest` is not a sha256 in lower-case hex.
        """
        if not _DIGEST.fullmatch(digest):
            raise ValueError(f"not a sha256: {digest!r}")
        return self.folder / digest[:2] / (digest + SUFFIX)

    def has(self, digest: str) -> bool:
        """Tell whether a file of that name exists; its content is verified by `read`."""
        return self.path(digest).exists()

    def size(self, digest: str) -> int:
        """Return bytes of a blob, 0 when there is none."""
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError:
            return 0

    def delete(self, digest: str) -> None:
        """Remove one blob; silent when there is none."""
        self.path(digest).unlink(missing_ok=True)

    def read(self, digest: str) -> bytes | None:
        """Return the content, or None when it is absent or was damaged (then it is set aside)."""
        path = self.path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        if digest_bytes(data) != digest:
            self._set_aside(path, "content does not match its digest")
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # recently used: the collector takes the oldest first
        return data

    def write(self, data: bytes) -> str:
        """Store bytes and return their digest."""
        digest = digest_bytes(data)
        path = self.path(digest)
        if not path.exists():
            write_atomic(path, data)
        return digest

    def publish(self, staged: Path, digest: str) -> None:
        """Move a finished file from the staging folder to its place."""
        path = self.path(digest)
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            staged.replace(path)

    def collect(self, size_limit: int, keep: Iterable[str] = ()) -> tuple[int, int]:
        """Delete the least recently used blobs until the rest fits.

        Parameters
        ----------
        size_limit : int
            Bytes that may stay.
        keep : iterable of str
            Digests that stay whatever their age (failures, baselines).

        Returns
        -------
        (int, int)
            Files and bytes deleted.
        """
        kept = set(keep)
        files: list[tuple[float, int, Path]] = []
        total = 0
        for path in self.folder.glob(f"*/*{SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                total += status.st_size
                if path.stem not in kept:
                    files.append((status.st_mtime, status.st_size, path))
        deleted = freed = 0
        for _, size, path in sorted(files):
            if total - freed <= size_limit:
                break
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
                deleted += 1
                freed += size
        return deleted, freed

    def verify(self) -> list[str]:
        """Read every blob, and list the digests of those that were damaged and set aside."""
        return [
            path.stem
            for path in sorted(self.folder.glob(f"*/*{SUFFIX}"))
            if not _DIGEST.fullmatch(path.stem) or self.read(path.stem) is None
        ]
