"""Content-addressed blobs. They are named by a keyed digest, and verified when they are read."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from gpuemu_flow.model.errors import StoreError
from gpuemu_flow.store.keys import digest_bytes
from gpuemu_flow.store.private_files import PrivateFolder, disk_errors

_DIGEST = re.compile(r"[0-9a-f]{64}")
SUFFIX = ".safetensors"
_SALT, _SALT_BYTES = "salt", 32
LARGEST = 1 << 40
"""Largest size of a blob to read, in bytes."""


class BlobStore:
    """Tensor files with paths such as ``ab/ab12….safetensors``.

    A name is a digest of the content's sha256 and a secret of the cache. An op that must not read
    the files may be able to list their names. Without the secret, the names do not tell it whether
    the store contains a certain tensor.
    """

    def __init__(self, folder: Path, set_aside: Callable[[Path, str], None]) -> None:
        self.folder = folder
        self._files = PrivateFolder(folder.parent)
        self._set_aside = set_aside
        self._salt = b""
        self.written = 0  # bytes that this object has added
        self._folders: set[Path] = set()  # that exist

    def _name(self, digest: str) -> str:
        self._salt = self._salt or self._stored_salt() or self._draw_salt()
        return hmac.digest(self._salt, digest.encode(), hashlib.sha256).hex()

    def _stored_salt(self) -> bytes:
        """Return the secret of this cache; empty if there is none."""
        path = self.folder / _SALT
        try:
            found = self._files.read(path, LARGEST)
        except (FileNotFoundError, NotADirectoryError):
            return b""
        if len(found) == _SALT_BYTES:
            return found
        self._set_aside(path, "it is no salt of a cache")
        return b""

    def _draw_salt(self) -> bytes:
        """Generate a random secret for this cache, unless another process does so first."""
        path = self.folder / _SALT
        drawn = path.with_name(f"{_SALT}-{os.getpid()}-{secrets.token_hex(8)}")
        self._files.write(drawn, secrets.token_bytes(_SALT_BYTES))
        with disk_errors(path):
            try:
                os.link(drawn, path, follow_symlinks=False)
            except FileExistsError:
                pass
            except OSError:  # a file system without second names
                drawn.replace(path)
            drawn.unlink(missing_ok=True)
        return self._files.read(path, LARGEST)

    def _is_new(self) -> bool:
        """Tell whether the store has no secret yet, and so no blobs.

        Unlike `path`, this does not generate a secret.
        """
        try:
            self._salt = self._salt or self._stored_salt()
        except StoreError:
            return True
        return not self._salt

    def path(self, digest: str) -> Path:
        """Return the path of a blob, whether it exists or not.

        Raises ValueError when `digest` is not a sha256 in lower-case hex.
        """
        if not _DIGEST.fullmatch(digest):
            raise ValueError(f"not a sha256: {digest!r}")
        name = self._name(digest)
        return self.folder / name[:2] / (name + SUFFIX)

    def has(self, digest: str) -> bool:
        """Tell whether a blob's file exists; only `read` verifies its content."""
        return stat.S_ISREG(self._mode(digest))

    def size(self, digest: str) -> int:
        """Return the size of a blob in bytes; 0 if there is none."""
        if self._is_new():
            return 0
        try:
            return self.path(digest).lstat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def delete(self, digest: str) -> None:
        """Delete a blob, if it exists."""
        if self._is_new():
            return
        self._files.remove(self.path(digest))

    def _mode(self, digest: str) -> int:
        if self._is_new():
            return 0
        try:
            return self.path(digest).lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def read(self, digest: str) -> bytes | None:
        """Return a blob's content; None if it is missing or damaged. Move a damaged file aside."""
        if not self._salt and not self._stored_salt():
            return None
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
            self.written += len(data)
        return digest

    def publish(self, staged: Path, digest: str) -> None:
        """Move a finished file from the staging folder to its place."""
        path = self.path(digest)
        if path.parent not in self._folders:
            self._files.make(path.parent)
            self._folders.add(path.parent)
        with disk_errors(path):
            self.written += staged.stat().st_size
            try:
                staged.replace(path)
            except FileNotFoundError:  # somebody has cleaned the cache
                self._files.make(path.parent)
                staged.replace(path)

    def collect(self, size_limit: int, keep: Iterable[str] = ()) -> tuple[int, int]:
        """Delete the least recently used blobs until the rest fits."""
        if self.volume() <= size_limit:
            return 0, 0
        kept = set() if self._is_new() else {self._name(digest) for digest in keep}
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
        """Return the total size of all blobs in bytes."""
        return self._files.volume(self.folder, SUFFIX, depth=1)

    def verify(self) -> list[str]:
        """Read all blobs, move the damaged blobs aside, and return their names."""
        return [
            path.stem
            for path in sorted(self._files.list_files(self.folder, SUFFIX, depth=1))
            if not self._is_whole(path)
        ]

    def _is_whole(self, path: Path) -> bool:
        """Tell whether a file's content matches its name; if not, move it aside."""
        try:
            data = self._files.read(path, LARGEST)
        except FileNotFoundError:
            return False
        if self.path(digest_bytes(data)) == path:
            return True
        self._set_aside(path, "content does not match its digest")
        return False
