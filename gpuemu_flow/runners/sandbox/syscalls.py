"""System calls, by number, for which Python has no function.

Importing this module has no side effects.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

PROCESSOR = platform.machine() if sys.platform == "linux" else ""
NO_NEW_PRIVS, DROP_FROM_BOUNDS = 38, 24  # prctl

_SECCOMP = {"x86_64": 317, "aarch64": 277}
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446


@cache
def library() -> Any:
    """Load the C library; raise OSError or AttributeError if it lacks a needed function."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def syscall(libc: Any, number: int, *arguments: Any) -> int:
    """Make a system call.

    Raises OSError.
    """
    wide = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    result = int(libc.syscall(ctypes.c_long(number), *wide))
    if result < 0:
        fail()
    return result


def fail() -> NoReturn:
    """Raise OSError for the error number that the last call to the C library left in ``errno``."""
    number_of_error = ctypes.get_errno()
    raise OSError(number_of_error, os.strerror(number_of_error))


@cache
def adds_rules(libc: Any) -> Callable[[int, int, int, bytes, int], int]:
    """Return a function that makes the system call `LANDLOCK_ADD`, as fast as ctypes allows."""
    number, integer = ctypes.c_long, ctypes.c_int
    types = (number, number, integer, integer, ctypes.c_char_p, ctypes.c_uint32)
    made: Callable[[int, int, int, bytes, int], int] = ctypes.CFUNCTYPE(*types, use_errno=True)(
        ("syscall", libc)
    )
    return made


def prctl(libc: Any, option: int, value: int) -> None:
    """Set a property of this process.

    Raises OSError.
    """
    if libc.prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0))) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def seccomp_number() -> int:
    """Return the number of ``seccomp``; 0 on a processor that the filter is not written for."""
    return _SECCOMP.get(PROCESSOR, 0)
