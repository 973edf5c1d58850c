"""Write files so that a crash leaves the old or the new content, never a mix."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpuemu_flow.errors import Problem, StoreError

FAILING_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE}
"""Error codes of a full or failing disk."""
DISK_ERRNOS = FAILING_ERRNOS | {
    errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EISDIR, errno.ENOTDIR, errno.EEXIST,
}  # fmt: skip


def disk_problem(error: OSError, path: Path | str) -> Problem:
    """Return the diagnosis of an OSError that occurred while writing a file of the cache.

    For a failing disk, the diagnosis also fits an error that occurred while reading.
    """
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
    """Write `data` to `path` through a temporary file in the same folder and a rename.

    There is no fsync. A killed process loses nothing. A file that a power failure damaged is
    detected by its digest and computed again.

    Raises StoreError: ``cache-disk-full`` or ``cache-not-writable``; the old file is still there.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data)


def replace_file(path: Path, data: bytes) -> None:
    """Write like `write_atomic`, in a folder that must exist.

    Raises StoreError: ``cache-disk-full`` or ``cache-not-writable``; the old file is still there.
    """
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
