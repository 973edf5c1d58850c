"""Landlock: a list of allowed files, which the kernel enforces on a process and its children."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable, Mapping
from typing import Any

from gpuemu_flow.runners.sandbox import syscalls
from gpuemu_flow.runners.sandbox.listings import LOOK

# linux/landlock.h
_EXECUTE, _WRITE_FILE, _READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_CHAR, _MAKE_DIR = 1 << 4, 1 << 5, 1 << 6, 1 << 7
_MAKE_REG, _MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK = 1 << 8, 1 << 9, 1 << 10, 1 << 11
_MAKE_SYM, _REFER, _TRUNCATE, _IOCTL_DEV = 1 << 12, 1 << 13, 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_SINCE = {1: _MAKE_SYM | (_MAKE_SYM - 1), 2: _REFER, 3: _TRUNCATE, 5: _IOCTL_DEV}
_TCP = 0b11  # bind and connect
_SCOPES = 0b11  # abstract Unix sockets, signals
_QUIETLY = 1  # denials are not written to the system's log
_RULE = struct.Struct("<Qi")
_PATH = 1

READ = _READ_FILE | _EXECUTE
"""Rights to read files; listing folders is `READ_DIR`."""
WRITE = (
    READ | READ_DIR | _WRITE_FILE | _TRUNCATE | _REFER | _REMOVE_DIR | _REMOVE_FILE
    | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO | _MAKE_SYM
)  # fmt: skip
"""All rights except that of making devices."""
DEVICE = _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV


def version() -> int:
    """Return the version of Landlock that the system has; 0 if it has none."""
    if not syscalls.seccomp_number():  # call numbers are known only for the filter's processors
        return 0
    try:
        found = syscalls.syscall(syscalls.library(), syscalls.LANDLOCK_CREATE, None, 0, 1)
    except (OSError, AttributeError):
        return 0
    return max(0, found)


class Ruleset:
    """A list of allowed files under construction; everything else is denied."""

    def __init__(self, libc: Any, known: int) -> None:
        self._libc = libc
        self._known = known
        self._handled = 0
        for since, rights in _SINCE.items():
            self._handled |= rights if since <= known else 0
        words = [self._handled]
        words += [_TCP] if known >= 4 else []
        words += [_SCOPES] if known >= 6 else []
        attributes = struct.pack(f"<{len(words)}Q", *words)
        self._fd = syscalls.syscall(
            libc, syscalls.LANDLOCK_CREATE, ctypes.c_char_p(attributes), len(attributes), 0
        )
        self._add = syscalls.adds_rules(libc)

    def allow(
        self, paths: Iterable[str], rights: int, opened: Mapping[str, int] | None = None
    ) -> None:
        """Allow everything at or below each path; skip paths that do not exist or are links.

        There may be thousands of paths: to hide one file, all other files of its folder are
        allowed.
        """
        of_files = rights & self._handled & _OF_FILES
        wide = rights & self._handled
        kept = {} if opened is None else opened
        for path in paths:
            fd = kept.get(path, -1)
            if fd < 0:
                try:
                    fd = os.open(path, LOOK)
                except OSError:
                    continue
            here = of_files
            if wide != of_files and stat.S_ISDIR(os.fstat(fd).st_mode):
                here = wide
            # A rule for a link would allow only the link itself and not its target.
            if here and self._add(syscalls.LANDLOCK_ADD, self._fd, _PATH, _RULE.pack(here, fd), 0):
                syscalls.fail()
            if path not in kept:
                os.close(fd)

    def enforce(self) -> None:
        """Enforce the list on this thread and its children; ``NO_NEW_PRIVS`` must be set before.

        Raises OSError.
        """
        flags = _QUIETLY if self._known >= 7 else 0
        syscalls.syscall(self._libc, syscalls.LANDLOCK_RESTRICT, self._fd, flags)
        self.close()

    def close(self) -> None:
        """Close the list; processes on which it was enforced stay restricted."""
        os.close(self._fd)
