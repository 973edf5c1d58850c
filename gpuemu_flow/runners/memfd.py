"""Files without a path: standard streams of programs, shared tensors, the status page."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import tempfile
import time

_LINUX = sys.platform.startswith("linux")
_STATUS = struct.Struct("<Id")
TAIL = 4000
PREPARING, CALLING, FINISHING = range(3)


def create(name: str, *, fixed: bool = False) -> int:
    """Create an empty file, in memory if the system can, and return a descriptor of it.

    The descriptor is closed on exec.
    """
    if _LINUX:
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        if fixed:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        return fd
    fd, path = tempfile.mkstemp(prefix=f"{name}-")
    os.unlink(path)  # noqa: PTH108 - never a path of ours
    return fd


def append_only(fd: int) -> int:
    """Make every write append to the file, also in processes that share `fd`; return `fd`."""
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    return fd


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data` at the current position."""
    rest = memoryview(data)
    while rest.nbytes:
        rest = rest[os.write(fd, rest) :]


def read_all(fd: int, size: int) -> bytes:
    """Return the first `size` bytes of a file, or all if it has fewer; do not move its position."""
    pieces = []
    offset = 0
    while offset < size and (piece := os.pread(fd, min(size - offset, 1 << 30), offset)):
        pieces.append(piece)
        offset += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def tail(fd: int) -> str:
    """Return the last `TAIL` bytes of a file as text; empty when the file cannot be read."""
    try:
        size = os.fstat(fd).st_size
        data = os.pread(fd, TAIL, max(0, size - TAIL))
    except OSError:
        return ""
    return as_text(data)


def as_text(data: bytes) -> str:
    """Decode a program's output; replace invalid bytes, and drop zero bytes."""
    return data.decode("utf-8", "replace").replace("\0", "").strip()


def write_status(fd: int, phase: int) -> None:
    """Tell the coordinator that the worker enters a phase now."""
    os.pwrite(fd, _STATUS.pack(phase, time.monotonic()), 0)


def read_status(fd: int) -> tuple[int, float]:
    """Return the phase and the monotonic time when it began; if unreadable, `PREPARING` and 0.0.

    The result is only a hint, since the program in the worker can write to this file, too.
    """
    try:
        phase, since = _STATUS.unpack(os.pread(fd, _STATUS.size, 0))
    except (OSError, struct.error):
        return PREPARING, 0.0
    return int(phase), float(since)
