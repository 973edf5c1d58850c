"""Make glibc's malloc faster for large tensors, and make reads of unwritten memory visible.

By default, malloc maps memory for each large tensor and unmaps it afterwards, which causes page
faults. These are expensive on virtual machines. Without glibc, the functions here do nothing.
"""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from typing import Any

_M_TRIM_THRESHOLD = -1  # malloc.h
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_M_PERTURB = -6


@lru_cache(maxsize=1)
def _libc() -> Any:
    """Return glibc, or None."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018 - musl lacks it, and its mallopt does nothing
        libc.mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    except (OSError, AttributeError):
        return None
    return libc


def tune() -> bool:
    """Keep freed memory for later allocations; return False if this C library cannot do it."""
    libc = _libc()
    if libc is None:
        return False
    return bool(
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        and libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
        and libc.mallopt(_M_TOP_PAD, 64 << 20)
    )


NO_FILL = 0xFF


def perturb(fill: int) -> bool:
    """Make malloc fill all memory that it returns with the byte `fill`; 0xFF turns this off.

    Small pieces of memory from per-thread caches keep their old contents.
    """
    libc = _libc()
    # glibc stores the complement, and takes a stored zero for "off" (mallopt(3)).
    return libc is not None and bool(libc.mallopt(_M_PERTURB, (fill ^ 0xFF) & 0xFF))


def flush_c_streams() -> None:
    """Flush C's own stdout and stderr buffers."""
    try:
        ctypes.CDLL(None).fflush(None)
    except (OSError, AttributeError):
        pass
