"""Access files of the cache, which are private to the user, without following links; its lock.

A cache folder can come from somebody else's checkout or archive. A link in it must not make this
program read, write or delete a file elsewhere, and a pipe or device must not make it hang.
Therefore, each folder of a path is checked, files are opened without following links, and only
regular files are read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event

from gpuemu_flow.model.errors import CancelledRunError, Problem, StoreError
from gpuemu_flow.model.let_through import user_cache_of

# A cache folder can come from somebody else's checkout or archive. A link in it must not make this
# program read, write or delete a file elsewhere, and a pipe or device must not make it hang.
# Therefore, each folder of a path is checked, files are opened without following links, and only
# regular files are read.

LINK_VARIABLE = "GPUEMU_CACHE_LINK"
"""Environment variable with which the user allows the cache folder itself to be a link."""
FILE_MODE = 0o600
FOLDER_MODE = 0o700
LARGEST = 2 << 30
"""Largest size in bytes of a cache file to read, except blobs."""
_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_WRITING = os.O_WRONLY | os.O_RDWR
_OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def user_cache_folder(environ: Mapping[str, str]) -> Path:
    """Return ``$XDG_CACHE_HOME/gpuemu-flow``, or ``~/.cache/gpuemu-flow`` if that is unset."""
    return Path(user_cache_of(environ) or Path.home() / ".cache" / "gpuemu-flow")


def unsafe_entry(path: Path, mode: int) -> StoreError:
    """Make the error for an entry of the cache that is not a regular file or folder."""
    kind = stat.S_IFMT(mode)
    if kind in (stat.S_IFREG, stat.S_IFDIR):
        wanted = "file" if kind == stat.S_IFDIR else "folder"
        return StoreError(disk_problem(OSError(0, f"there is no {wanted} in its place"), path))
    return _refused(path, f"{_KINDS.get(kind, 'something unknown')} lies there")


def _refused(path: Path, found: str) -> StoreError:
    return StoreError(
        Problem(
            "cache-unsafe-entry",
            f"cannot use an entry of the cache: {found}",
            "remove it; what is missing in a cache is made again",
            file=str(path),
        )
    )


def check_root(root: Path) -> None:
    """Refuse a cache folder that is a link, unless the user's environment allows it. Raises
    StoreError: ``cache-unsafe-entry``."""
    is_link = os.path.islink(root)  # noqa: PTH114 - asked for each file
    if not is_link or os.environ.get(LINK_VARIABLE, "") not in ("", "0"):
        return
    raise StoreError(
        Problem(
            "cache-unsafe-entry",
            "the cache folder is a link: it may come from somebody else",
            f"name the real folder under [cache] dir, or set {LINK_VARIABLE}=1",
            file=str(root),
        )
    )


class PrivateFolder:
    """A cache folder, with methods that open, make and delete files below it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._name = str(root)

    def check(self, path: Path) -> None:
        """Refuse a path below the cache that leads through a link. Raises StoreError:
        ``cache-unsafe-entry``."""
        check_root(self.root)
        place = self._name
        for part in self._parts(path):
            place = f"{place}/{part}"  # text, as a run asks for thousands of them
            try:
                mode = os.lstat(place).st_mode
            except FileNotFoundError:
                return
            except OSError as error:
                raise StoreError(disk_problem(error, place)) from error
            if not stat.S_ISDIR(mode):
                raise unsafe_entry(Path(place), mode)

    def _parts(self, path: Path) -> Sequence[str]:
        text, before = str(path), f"{self._name}/"
        if text.startswith(before):
            return text[len(before) :].split("/")
        return path.relative_to(self.root).parts  # the folder itself, or an error

    def make(self, path: Path) -> None:
        """Make a folder below the cache, and its missing parents, accessible only to this user.
        Raises StoreError: ``cache-unsafe-entry``, ``cache-not-writable``, ``cache-disk-full``."""
        self.check(path)
        with disk_errors(path):
            if os.path.isdir(path):  # noqa: PTH112 - for thousands of files
                return
            if not self.root.exists():
                self.root.parent.mkdir(parents=True, exist_ok=True)
                _make_one(self.root)
            folder = self.root
            for part in self._parts(path):
                folder = folder / part
                _make_one(folder)

    def check_file(self, path: Path) -> None:
        """Refuse an entry that is not a regular file, or that has several hard links. Raises
        StoreError: ``cache-unsafe-entry``; no error if the file does not exist."""
        self.check(path.parent)
        with contextlib.suppress(FileNotFoundError):
            _check_status(path, path.lstat(), for_writing=True)

    def open(self, path: Path, flags: int) -> int:
        """Open a regular file below the cache. Raises FileNotFoundError: The file does not exist.
        Raises StoreError: ``cache-unsafe-entry`` for a link, pipe, device or folder, and when a
        file with several hard links is opened for writing."""
        self.check(path.parent)
        try:
            descriptor = os.open(path, flags | _OPEN_FLAGS, FILE_MODE)
        except OSError as error:
            # A pipe without a reader gives ENXIO, a link ELOOP, a folder opened for writing EISDIR.
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise unsafe_entry(path, path.lstat().st_mode) from error
            raise
        try:
            _check_status(path, os.fstat(descriptor), for_writing=flags & _WRITING != 0)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def read(self, path: Path, limit: int = LARGEST) -> bytes:
        """Read a file below the cache. Raises FileNotFoundError: The file does not exist. Raises
        StoreError: ``cache-unsafe- entry``, also for a file that is larger than `limit`."""
        with os.fdopen(self.open(path, os.O_RDONLY), "rb") as file:
            if os.fstat(file.fileno()).st_size > limit:
                raise _refused(path, f"a file of more than {limit >> 20} MiB")
            return file.read()

    def write(self, path: Path, data: bytes) -> None:
        """Write or replace a file below the cache, whole or not at all. Raises StoreError:
        ``cache-unsafe-entry``, ``cache-disk-full`` or ``cache-not-writable``."""
        self.make(path.parent)
        replace_file(path, data)

    def touch(self, path: Path) -> int:
        """Make an empty file below the cache; if the file exists, empty it. Raises StoreError:
        ``cache-unsafe-entry``, ``cache-disk-full`` or ``cache-not-writable``."""
        self.make(path.parent)
        with disk_errors(path):
            descriptor = self.open(path, os.O_WRONLY | os.O_CREAT)
            try:
                os.ftruncate(descriptor, 0)  # only now: a file with another name is refused whole
                return os.fstat(descriptor).st_mtime_ns
            finally:
                os.close(descriptor)

    def append(self, path: Path, data: bytes) -> None:
        """Append to a file below the cache, and create it if it does not exist. Raises StoreError:
        ``cache-unsafe-entry``, ``cache-disk-full`` or ``cache-not-writable``."""
        self.make(path.parent)
        with disk_errors(path):
            descriptor = self.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            with os.fdopen(descriptor, "ab") as file:
                file.write(data)

    def remove(self, path: Path) -> None:
        """Delete a file or a link below the cache, if it exists. Raises StoreError:
        ``cache-unsafe-entry``, ``cache-not-writable``."""
        self.check(path.parent)
        with disk_errors(path), contextlib.suppress(FileNotFoundError):
            path.unlink()

    def remove_tree(self, path: Path) -> None:
        """Delete a folder below the cache with its content, or any other entry in its place. A link
        is deleted, not its target. Entries that cannot be deleted are left. Raises StoreError:
        ``cache-unsafe-entry`` if a parent folder is a link."""
        self.check(path.parent)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()

    def list_files(self, folder: Path, suffix: str, *, depth: int = 0) -> Iterator[Path]:
        """Yield the regular files in a folder of the cache, or in its subfolders."""
        self.check(folder)
        yield from (Path(entry.path) for entry in _files(folder, suffix, depth))

    def volume(self, folder: Path, suffix: str, *, depth: int = 0) -> int:
        self.check(folder)
        total = 0
        for entry in _files(folder, suffix, depth):
            with contextlib.suppress(FileNotFoundError):  # another process deleted it
                total += entry.stat(follow_symlinks=False).st_size
        return total

    @contextlib.contextmanager
    def temporary(self, parent: Path, prefix: str) -> Iterator[Path]:
        """Make a folder below the cache that is deleted at the end of the ``with`` block."""
        self.make(parent)
        with disk_errors(parent), tempfile.TemporaryDirectory(dir=parent, prefix=prefix) as folder:
            yield Path(folder)


def _check_status(path: Path, status: os.stat_result, *, for_writing: bool) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise unsafe_entry(path, status.st_mode)
    if status.st_nlink > 1 and for_writing:
        raise _refused(path, "a file that has another name elsewhere")


def _make_one(folder: Path) -> None:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=FOLDER_MODE)


def _files(folder: str | Path, suffix: str, depth: int) -> Iterator[os.DirEntry[str]]:
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if depth:
                if entry.is_dir(follow_symlinks=False):
                    yield from _files(entry.path, suffix, depth - 1)
            elif entry.name.endswith(suffix) and entry.is_file(follow_symlinks=False):
                yield entry


# Write files so that a crash leaves the old or the new content, never a mix.


FAILING_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE}
"""Error codes of a full or failing disk."""
DISK_ERRNOS = FAILING_ERRNOS | {
    errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EISDIR, errno.ENOTDIR, errno.EEXIST,
}  # fmt: skip


def disk_problem(error: OSError, path: Path | str) -> Problem:
    """Return the diagnosis of an OSError that occurred while writing a file of the cache. For a
    failing disk, the diagnosis also fits an error that occurred while reading."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Problem(
            "cache-disk-full",
            f"no space left while writing {path}",
            "free some space, or `gpuemu-flow clean --cache`; what was finished is kept",
        )
    if error.errno in FAILING_ERRNOS:
        return io_problem(path, error.strerror or str(error))
    return Problem(
        "cache-not-writable",
        f"cannot write {path}: {error.strerror or error}",
        "check the owner and the mode of the cache folder, or set [cache] dir",
    )


def io_problem(path: Path | str, reason: str) -> Problem:
    """Return the diagnosis of a disk that fails to read or write."""
    return Problem(
        "cache-io-error",
        f"the disk failed at {path}: {reason}",
        "look into the system's log; what was finished is kept, and the next run goes on",
    )


@contextlib.contextmanager
def disk_errors(path: Path | str) -> Iterator[None]:
    """Convert an OSError that the disk causes into a StoreError; other errors pass unchanged."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_ERRNOS:
            raise StoreError(disk_problem(error, path)) from error
        raise


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to `path` through a temporary file in the same folder and a rename. There is no
    fsync. A killed process loses nothing. A file that a power failure damaged is detected by its
    digest and computed again. Raises StoreError: ``cache-disk-full`` or ``cache-not-writable``; the
    old file is still there."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data)


def replace_file(path: Path, data: bytes) -> None:
    """Write like `write_atomic`, in a folder that must exist. Raises StoreError:
    ``cache-disk-full`` or ``cache-not-writable``; the old file is still there."""
    with disk_errors(path):
        handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)  # noqa: PTH105 - for each task
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108
            raise


class RunLock:
    """A lock (``flock``) on a file, whose content names the process that holds the lock."""

    def __init__(self, path: Path, on_wait: Callable[[str], None] | None = None) -> None:
        self._path = path
        self._on_wait = on_wait
        self._file: int | None = None
        self.waited = False
        """True if another process held the lock at first."""

    def __enter__(self) -> RunLock:
        with disk_errors(self._path):
            folder = PrivateFolder(self._path.parent)
            folder.make(folder.root)
            self._file = folder.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.waited = True
                if self._on_wait is not None:
                    self._on_wait(f"{read_holder(self._file)}, which runs in this workspace")
                fcntl.flock(self._file, fcntl.LOCK_EX)
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            words = f"process {os.getpid()} since {since}\n"
            write_holder(self._file, words)
        except BaseException:
            os.close(self._file)
            self._file = None
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            write_holder(self._file, "")
            os.close(self._file)
            self._file = None


def write_holder(descriptor: int, words: str) -> None:
    """Write the holder's description to the lock file; ignore errors of the disk."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, words.encode(), 0)


def read_holder(descriptor: int) -> str:
    return os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip() or "another process"


# Lock the files that commands make, so that only one process makes a file at a time.


_PAUSE = 0.05


@contextlib.contextmanager
def output_locks(
    paths: Iterable[Path], cancel: Event, on_wait: Callable[[str], None]
) -> Iterator[None]:
    """Hold the locks of some files inside the context. The operating system frees the locks when
    the process dies. The lock files are in the user's cache. If it is not writable, nothing is
    locked. Raises CancelledRunError: `cancel` was set."""
    # All processes take the locks in the same order, or two could wait for each other.
    names = {os.path.join(os.path.realpath(path.parent), path.name) for path in paths}  # noqa: PTH118
    with contextlib.ExitStack() as stack:
        for name in sorted(names):
            descriptor = _open(name)
            if descriptor is None:
                continue
            stack.callback(os.close, descriptor)
            _lock(descriptor, name, cancel, on_wait)
            stack.callback(write_holder, descriptor, "")
        yield


def _open(name: str) -> int | None:
    """Open the lock file of an output; return None if the user's cache cannot be written."""
    try:
        files = PrivateFolder(user_cache_folder(os.environ))
        folder = files.root / "locks"
        files.make(folder)
        digest = hashlib.sha256(os.fsencode(name)).hexdigest()
        return files.open(folder / digest, os.O_RDWR | os.O_CREAT)
    except (StoreError, OSError, RuntimeError):  # RuntimeError: no home folder
        return None


def _lock(descriptor: int, name: str, cancel: Event, on_wait: Callable[[str], None]) -> None:
    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if not told:
                told = True
                on_wait(f"{read_holder(descriptor)}, which makes {name}")
            if cancel.wait(_PAUSE):
                raise CancelledRunError from None
        except OSError:  # a file system without locks
            return
    words = f"process {os.getpid()}\n"
    write_holder(descriptor, words)
