"""File queries of gpuemu-flow itself, which the observer does not attribute to the program."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator
from stat import S_ISLNK
from types import FunctionType, ModuleType
from typing import Any

stat, lstat, readlink = os.stat, os.lstat, os.readlink
"""The functions before the observer replaces them."""


def _copies() -> dict[str, Any]:
    """Return a copy of ``posixpath``'s namespace, whose functions call only copied functions.

    Replacing functions of ``os`` or ``posixpath`` later does not affect the copies.
    """
    plain = ModuleType("os")
    vars(plain).update(vars(os))
    space = {**vars(posixpath), "os": plain}
    for name, value in vars(posixpath).items():
        if isinstance(value, FunctionType) and value.__globals__ is vars(posixpath):
            copy = FunctionType(value.__code__, space, name, value.__defaults__, value.__closure__)
            copy.__kwdefaults__ = value.__kwdefaults__
            space[name] = copy
    return space


_realpath = _copies()["realpath"]


def realpath(path: str) -> str:
    """Return a path with all links followed; see `os.path.realpath`."""
    return str(_realpath(path))


def real_paths(paths: Iterable[str]) -> Iterator[str]:
    """Yield paths as `realpath` returns them, looking at each folder once only."""
    folders = dict[str, str]()
    for path in paths:
        folder, _, name = path.rpartition("/")
        if not folder.startswith("/") or name in ("", ".", ".."):
            yield realpath(path)
            continue
        if folder not in folders:
            folders[folder] = realpath(folder)
        found = f"{folders[folder].rstrip('/')}/{name}"
        yield realpath(found) if _is_link(found) else found


def _is_link(path: str) -> bool:
    try:
        return S_ISLNK(lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def exists(path: str) -> bool:
    """Tell whether a path leads to something; see `os.path.exists`."""
    try:
        stat(path)
    except (OSError, ValueError):
        return False
    return True


def lexists(path: str) -> bool:
    """Tell whether there is a file or a link of that name; see `os.path.lexists`."""
    try:
        lstat(path)
    except (OSError, ValueError):
        return False
    return True
