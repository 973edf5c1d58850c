"""Questions whether there is a file, by the standard library's functions for it.

``os.stat`` raises no audit event, and stays as it is, for it is found in `os.supports_fd` and the
like. The functions of ``os.path`` and of ``pathlib`` look it up in their module's ``os`` at each
call: they get an ``os`` that tells.
"""

from __future__ import annotations

import genericpath
import os
import pathlib
import posixpath
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

_READLINK = os.readlink


class _Telling(ModuleType):
    """Stand for ``os`` in a module that asks for files."""

    def __init__(self, tell: Callable[[Any], None]) -> None:
        super().__init__("os", os.__doc__)

        def stat(path: Any, *more: Any, **named: Any) -> os.stat_result:
            with suppress(Exception):  # what is watched goes on as if it were not
                tell(path)
            return os.stat(path, *more, **named)  # noqa: PTH116

        def lstat(path: Any, *more: Any, **named: Any) -> os.stat_result:
            with suppress(Exception):
                tell(path)
            return os.lstat(path, *more, **named)

        def readlink(path: Any, *more: Any, **named: Any) -> Any:
            with suppress(Exception):
                tell(path)
            return _READLINK(path, *more, **named)

        self.stat = stat
        self.lstat = lstat
        self.readlink = readlink

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("stat", "lstat", "readlink") and name not in self.__dict__:
            super().__setattr__(name, value)
        else:
            setattr(os, name, value)


def watch(tell: Callable[[Any], None]) -> None:
    """Tell of every path that is asked for from now on.

    Parameters
    ----------
    tell : callable
        Called with a path as it was given, before it is looked for.
    """
    telling = _Telling(tell)
    os.readlink = telling.readlink
    os.supports_dir_fd.add(os.readlink)
    for module in (genericpath, posixpath, pathlib):
        space = vars(module)
        if space.get("os") is os:
            space["os"] = telling
