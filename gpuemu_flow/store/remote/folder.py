"""A shared cache in a folder, such as a mounted share, whose content is not trusted."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gpuemu_flow.store.remote.transport import (
    ACTION,
    BLOCK,
    CONTENT,
    RemoteError,
    TooLargeError,
    copy_bounded,
    is_key,
)

FOLDER_MODE = 0o777  # less the umask: others are to read it
FILE_MODE = 0o666
_PART = ".part"


class FolderTransport:
    """Stores objects as plain files ``ac/SHA256`` and ``cas/SHA256``, which web servers can serve.

    Parameters
    ----------
    root : Path
        Folder of the cache. Its parent must exist, so that no cache is made in the empty mount
        point of a share that is not mounted.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def get(self, kind: str, key: str, sink: BinaryIO, limit: int) -> bool:
        try:
            descriptor = self._open(kind, key)
        except FileNotFoundError:
            self._check_there()
            return False
        except OSError as error:
            raise RemoteError(_reason(error)) from error
        try:
            with os.fdopen(descriptor, "rb") as file:
                if os.fstat(file.fileno()).st_size > limit:
                    raise TooLargeError(f"a file of more than {limit >> 20} MiB")
                copy_bounded(file, sink, limit)
        except OSError as error:
            raise RemoteError(_reason(error)) from error
        return True

    def put(self, kind: str, key: str, source: bytes | Path) -> None:
        path = self.path(kind, key)
        try:
            self._make(path.parent)
            handle, name = tempfile.mkstemp(prefix=f".{key[:8]}-", suffix=_PART, dir=path.parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    if isinstance(source, bytes):
                        file.write(source)
                    else:
                        with source.open("rb") as read:
                            while block := read.read(BLOCK):
                                file.write(block)
                    os.fchmod(file.fileno(), FILE_MODE & ~_umask())
                Path(name).replace(path)
            except BaseException:
                with contextlib.suppress(OSError):
                    Path(name).unlink()
                raise
        except OSError as error:
            raise RemoteError(_reason(error)) from error

    def has(self, kind: str, key: str) -> bool:
        path = self.path(kind, key)
        try:
            return stat.S_ISREG(path.lstat().st_mode)
        except FileNotFoundError:
            self._check_there()
            return False
        except OSError as error:
            raise RemoteError(_reason(error)) from error

    def close(self) -> None:
        """Do nothing: no connection is kept."""

    def path(self, kind: str, key: str) -> Path:
        """Return the path of an object's file."""
        if kind not in (ACTION, CONTENT) or not is_key(key):
            raise ValueError(f"no object: {kind}/{key}")
        return self._root / kind / key

    def files(self, kind: str) -> Iterator[Path]:
        """Yield the files of one kind in no particular order; skip links and invalid names."""
        folder = self._root / kind
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            if folder.is_symlink():
                return
            for entry in entries:
                if is_key(entry.name) and entry.is_file(follow_symlinks=False):
                    yield Path(entry.path)

    def _open(self, kind: str, key: str) -> int:
        """Open an object's file; follow no links below the root, where others can write."""
        self.path(kind, key)
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        folder = os.open(self._root / kind, flags | os.O_DIRECTORY)
        try:
            descriptor = os.open(key, flags | os.O_NONBLOCK, dir_fd=folder)
        finally:
            os.close(folder)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(0, "no regular file")
        return descriptor

    def _make(self, folder: Path) -> None:
        """Make a folder below the root; raise an error if it exists as a link."""
        for path in (self._root, folder):
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=FOLDER_MODE)
            if path != self._root and not stat.S_ISDIR(path.lstat().st_mode):
                raise OSError(0, f"{path.name} is a link or a file")

    def _check_there(self) -> None:
        """Raise RemoteError if the root is missing, for example because a share is not mounted."""
        if not self._root.is_dir() and not self._root.parent.is_dir():
            raise RemoteError(f"there is no folder {self._root.parent}")


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _umask() -> int:
    """Return the process's umask without changing it temporarily."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    except (OSError, ValueError, IndexError):
        pass
    return 0o077
