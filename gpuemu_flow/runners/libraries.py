"""List the machine-code files that this process has loaded, and detect new ones cheaply."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

_MAPS = Path("/proc/self/maps")


class _ObjectInfo(ctypes.Structure):
    """The C structure dl_phdr_info of link.h."""

    _fields_ = (
        ("addr", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.c_void_p),
        ("count", ctypes.c_uint16),
        ("adds", ctypes.c_ulonglong),
        ("subs", ctypes.c_ulonglong),
    )


_VISIT = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(_ObjectInfo), ctypes.c_size_t, ctypes.c_void_p
)


@cache
def _counter() -> Callable[[], int]:
    """Return a function whose result changes whenever a library is loaded.

    If the system does not count the libraries, the result is always 0.
    """
    try:
        libc = ctypes.CDLL(None)
        if sys.platform == "darwin":
            count = libc._dyld_image_count
            return lambda: int(count())
        walk = libc.dl_iterate_phdr
    except (OSError, AttributeError):
        return lambda: 0
    loads = [0]

    def first(info: ctypes._Pointer[_ObjectInfo], _size: int, _data: int | None) -> int:
        loads[0] = info.contents.adds
        return 1  # no need to see the others

    visit = _VISIT(first)

    def number() -> int:
        walk(visit, None)
        return loads[0]

    return number


def mapped() -> set[str]:
    """List the absolute paths of the files that are mapped into this process."""
    if sys.platform == "darwin":
        return _dyld_images()
    try:
        lines = _MAPS.read_bytes().splitlines()
    except OSError:
        return set()
    found = set()
    for line in lines:
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith(b"/") and fields[3] != b"00:00":
            found.add(fields[5].decode("utf-8", "surrogateescape").removesuffix(" (deleted)"))
    return {path for path in found if not path.startswith(("/memfd:", "/dev/", "/SYSV"))}


def _dyld_images() -> set[str]:
    try:
        libc = ctypes.CDLL(None)
        name = libc._dyld_get_image_name
        name.restype = ctypes.c_char_p
        names = [name(index) for index in range(libc._dyld_image_count())]
    except (OSError, AttributeError):
        return set()
    return {path.decode("utf-8", "surrogateescape") for path in names if path}


class Loaded:
    """Tracker of the libraries that this process has loaded."""

    def __init__(self) -> None:
        self._count = _counter()
        self._last = -1

    def changed(self) -> bool:
        """Tell whether libraries may have been loaded since the last call of this method."""
        before, self._last = self._last, self._count()
        return before != self._last

    def paths(self) -> set[str]:
        """Return the paths of all loaded files of machine code."""
        return mapped()
