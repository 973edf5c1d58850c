"""Content-addressed blobs: files named by their sha256, verified when read, collected by age."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from gpuemu_flow.store.atomic import disk_errors
from gpuemu_flow.store.keys import digest_bytes
from gpuemu_flow.store.private_files import PrivateFolder

_DIGEST = re.compile(r"[0-9a-f]{64}")
SUFFIX = ".safetensors"
LARGEST = 1 << 40
"""Bytes of the largest blob that is read."""


class BlobStore:
    """Tensor files, two hex digits per folder: ``ab/ab12….safetensors``.

    Parameters
    ----------
    folder : Path
        Lies in the cache folder.
    set_aside : callable
        Called with a file whose content is not what its name says.
    """

    def __init__(self, folder: Path, set_aside: Callable[[Path, str], None]) -> None:
        self.folder = folder
        self._files = PrivateFolder(folder.parent)
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
        return stat.S_ISREG(self._mode(digest))

    def size(self, digest: str) -> int:
        """Return the size of a blob in bytes; 0 if there is none."""
        try:
            return self.path(digest).lstat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def delete(self, digest: str) -> None:
        """Remove one blob; silent when there is none."""
        self._files.remove(self.path(digest))

    def _mode(self, digest: str) -> int:
        try:
            return self.path(digest).lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def read(self, digest: str) -> bytes | None:
        """Return the content, or None if it is absent or damaged (then it is set aside)."""
        path = self.path(digest)
        try:
            data = self._files.read(path, LARGEST)
        except FileNotFoundError:
            return None
        if digest_bytes(data) != digest:
            self._set_aside(path, "content does not match its digest")
            return None
        with contextlib.suppress(OSError):
            # Recently used: the collector takes the oldest first.
            os.utime(path, follow_symlinks=False)
        return data

    def write(self, data: bytes) -> str:
        """Store bytes and return their digest."""
        digest = digest_bytes(data)
        path = self.path(digest)
        if not self.has(digest):
            self._files.write(path, data)
        return digest

    def publish(self, staged: Path, digest: str) -> None:
        """Move a finished file from the staging folder to its place."""
        path = self.path(digest)
        self._files.make(path.parent)
        with disk_errors(path):
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
        for path in self._files.list_files(self.folder, SUFFIX, depth=1):
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
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

    def volume(self) -> int:
        """Return the bytes that all blobs take."""
        found = self._files.list_files(self.folder, SUFFIX, depth=1)
        return sum(path.lstat().st_size for path in found)

    def verify(self) -> list[str]:
        """Read every blob, and list the digests of those that were damaged and set aside."""
        return [
            path.stem
            for path in sorted(self._files.list_files(self.folder, SUFFIX, depth=1))
            if not _DIGEST.fullmatch(path.stem) or self.read(path.stem) is None
        ]
