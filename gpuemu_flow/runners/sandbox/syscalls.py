"""System calls, by number, for which Python has no function; importing this has no effect."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from typing import Any

PROCESSOR = platform.machine() if sys.platform == "linux" else ""
NO_NEW_PRIVS, DROP_FROM_BOUNDS = 38, 24  # prctl

_SECCOMP = {"x86_64": 317, "aarch64": 277}
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446


def library() -> Any:
    """Load the C library; raise OSError or AttributeError if it lacks a needed function."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def syscall(libc: Any, number: int, *arguments: Any) -> int:
    """Make a system call.

    Raises
    ------
    OSError
    """
    wide = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    result = int(libc.syscall(ctypes.c_long(number), *wide))
    if result < 0:
        number_of_error = ctypes.get_errno()
        raise OSError(number_of_error, os.strerror(number_of_error))
    return result


def prctl(libc: Any, option: int, value: int) -> None:
    """Set a property of this process.

    Raises
    ------
    OSError
    """
    if libc.prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0))) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def seccomp_number() -> int:
    """Return the number of ``seccomp``; 0 on a processor that the filter is not written for."""
    return _SECCOMP.get(PROCESSOR, 0)
