"""Set up a worker process: its limits, its end with its parent, and its allocator."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

LOAD_ALLOWANCE = 8 << 30
"""Bytes of address space that imports may use in addition to the memory limit."""
MIN_OUTPUT_LIMIT = 256 << 20
OUTPUT_PER_INPUT_BYTE = 64
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36


@lru_cache(maxsize=1)
def c_library() -> Any:
    """Return the C library, loaded once by the fork server for all processes that it forks."""
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            c_library().prctl(option, value, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Make the system kill this process when its parent ends, or now if `parent` has ended."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Adopt descendants whose own parent ends (Linux)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def own_children() -> list[int]:
    """Return the ids of this process's children, adopted ones included; empty if unknown."""
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    try:
        return [int(pid) for pid in path.read_text().split()]
    except (OSError, ValueError):
        return []


def address_space() -> int | None:
    """Return the size in bytes of the address space in use; None if the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return pages * resource.getpagesize()


def _lower(kind: int, value: int) -> None:
    """Set a soft limit of this process; a value above the hard limit is reduced to that limit."""
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, hard))


_SPACE = resource.getrlimit(resource.RLIMIT_AS)[0]


def lift_memory_limit() -> None:
    """Undo `limit_memory`."""
    resource.setrlimit(resource.RLIMIT_AS, (_SPACE, resource.getrlimit(resource.RLIMIT_AS)[1]))


def limit_memory(extra: int | None) -> bool:
    """Let the address space grow by at most `extra` bytes; return False if no limit was set."""
    used = None if extra is None else address_space()
    if extra is None or used is None:
        return False
    _lower(resource.RLIMIT_AS, used + max(0, extra))
    return True


def no_core_dumps() -> None:
    """Switch off core dumps, so that a crash leaves no file in the workspace."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def output_limit(input_bytes: int) -> int:
    """Return the most bytes that a program with inputs of this size may write to one file."""
    return max(MIN_OUTPUT_LIMIT, OUTPUT_PER_INPUT_BYTE * input_bytes)


def limit_file_size(nbytes: int | None) -> None:
    """Limit the size of files that this process writes; None lifts the limit as far as possible.
    Python ignores SIGXFSZ, so a write beyond the limit raises OSError instead of crashing."""
    if nbytes is None:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    else:
        _lower(resource.RLIMIT_FSIZE, nbytes)


def open_descriptors() -> list[int]:
    """Return all file descriptors of this process."""
    return [int(name) for name in os.listdir("/dev/fd") if name.isdigit()]  # noqa: PTH208


def close_all_but(keep: Collection[int]) -> None:
    """Close every file descriptor that is not in `keep`."""
    if _close_between(sorted(keep)):
        return
    for fd in open_descriptors():
        if fd not in keep:
            try:
                os.close(fd)
            except OSError:  # the listing's own descriptor
                pass


def _close_between(keep: Sequence[int]) -> bool:
    """Close all descriptors except those in a sorted list; return False if the system cannot."""
    try:
        close_range = c_library().close_range
        gaps = zip((-1, *keep), (*keep, 1 << 32), strict=True)
        return not any(
            close_range(ctypes.c_uint(before + 1), ctypes.c_uint(after - 1), 0)
            for before, after in gaps
            if after - before > 1
        )
    except (OSError, AttributeError):
        return False


# Make glibc's malloc faster for large tensors, and make reads of unwritten memory visible.


_M_TRIM_THRESHOLD = -1  # malloc.h
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_M_PERTURB = -6


@lru_cache(maxsize=1)
def _glibc() -> Any:
    """Return glibc, or None."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        libc = c_library()
        libc.gnu_get_libc_version  # noqa: B018 - musl lacks it, and its mallopt does nothing
        libc.mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    except (OSError, AttributeError):
        return None
    return libc


def tune() -> bool:
    """Keep freed memory for later allocations; return False if this C library cannot do it."""
    libc = _glibc()
    if libc is None:
        return False
    return bool(
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        and libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
        and libc.mallopt(_M_TOP_PAD, 64 << 20)
    )


NO_FILL = 0xFF


def perturb(fill: int) -> bool:
    """Make malloc fill all memory that it returns with the byte `fill`; 0xFF turns this off. Small
    pieces of memory from per-thread caches keep their old contents."""
    libc = _glibc()
    # glibc stores the complement, and takes a stored zero for "off" (mallopt(3)).
    return libc is not None and bool(libc.mallopt(_M_PERTURB, (fill ^ 0xFF) & 0xFF))


def flush_c_streams() -> None:
    """Flush C's own stdout and stderr buffers."""
    try:
        c_library().fflush(None)
    except (OSError, AttributeError):
        pass
