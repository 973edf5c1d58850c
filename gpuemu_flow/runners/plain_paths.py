"""Questions of our own about files, which no observer takes for the program's."""

from __future__ import annotations

import os
import posixpath
from types import FunctionType
from typing import Any


def _copies() -> dict[str, Any]:
    """Return the names of ``posixpath``, its functions bound to this copy of them.

    What later replaces ``os`` in the module does not reach the copies.
    """
    space = dict(vars(posixpath))
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


def exists(path: str) -> bool:
    """Return whether a path leads to something; see `os.path.exists`."""
    try:
        os.stat(path)  # noqa: PTH116 - pathlib asks by way of the observer
    except (OSError, ValueError):
        return False
    return True


def lexists(path: str) -> bool:
    """Return whether there is a file or a link of that name; see `os.path.lexists`."""
    try:
        os.lstat(path)
    except (OSError, ValueError):
        return False
    return True
