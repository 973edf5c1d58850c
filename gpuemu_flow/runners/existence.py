"""Observe calls that test the existence and kind of files: ``os.stat``, ``os.access`` and so on.

These calls raise no audit event. Functions that record each call replace them in ``os`` and
``posix``, where the standard library finds them, and in the sets of `os` that list the abilities of
functions. The import system, which makes such calls often and is observed in another way, keeps the
originals.
"""

from __future__ import annotations

import functools
import importlib._bootstrap_external as external
import os
import posix
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

_ASKING = ("stat", "lstat", "access", "readlink", "statvfs", "pathconf")
EVENTS = ("os.listxattr", "os.getxattr")
EVENTS_WITH_FOLDER = ("os.chmod", "os.chown", "os.utime")
"""Audit events of further calls that fail where there is no file; the last argument is a folder."""
_SETS = (
    os.supports_dir_fd,
    os.supports_effective_ids,
    os.supports_fd,
    os.supports_follow_symlinks,
)


class _Folder(threading.local):
    descriptor: int | None = None


_folder = _Folder()


def folder_of_open() -> int | None:
    """Return the descriptor of the folder that this thread's ``os.open`` was given."""
    return _folder.descriptor


def watch(tell: Callable[[Any, int | None], None]) -> None:
    """Report every path that is asked for from now on.

    Parameters
    ----------
    tell : callable
        Called with a path as it was given, before it is looked for, and with the descriptor of the
        folder that it is meant to start from, if any.
    """
    plain = ModuleType("posix", posix.__doc__)
    vars(plain).update(vars(posix))
    importing: Any = external
    importing._os = plain
    for name in _ASKING:
        _replace(name, _telling(getattr(posix, name), tell))
    _replace("open", _opening(posix.open))


def _replace(name: str, function: Callable[..., Any]) -> None:
    native = getattr(posix, name)
    for known in _SETS:
        if native in known:
            known.add(function)
    for module in (posix, os):
        setattr(module, name, function)


def _telling(native: Callable[..., Any], tell: Callable[[Any, int | None], None]) -> Any:
    @functools.wraps(native)
    def asked(*arguments: Any, **named: Any) -> Any:
        try:  # what is watched goes on as if it were not
            tell(arguments[0] if arguments else named["path"], named.get("dir_fd"))
        except Exception:  # noqa: S110
            pass
        return native(*arguments, **named)

    return asked


def _opening(native: Callable[..., Any]) -> Any:
    @functools.wraps(native)
    def opened(*arguments: Any, **named: Any) -> Any:
        descriptor = named.get("dir_fd")
        if descriptor is None:
            return native(*arguments, **named)
        before, _folder.descriptor = _folder.descriptor, descriptor
        try:
            return native(*arguments, **named)
        finally:
            _folder.descriptor = before

    return opened
