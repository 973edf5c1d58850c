"""Observe calls that test the existence and type of files: ``os.stat``, ``os.access`` and so on.

These calls raise no audit event. Therefore functions that record each call replace them in ``os``
and ``posix``, and in sets such as ``os.supports_fd``. The import system keeps the originals: it
makes such calls often, and it is observed in another way.
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
"""Audit events of further calls that fail if the file does not exist.

The last argument of each event is the call's ``dir_fd``.
"""
_SETS = (
    os.supports_dir_fd,
    os.supports_effective_ids,
    os.supports_fd,
    os.supports_follow_symlinks,
)


_plain = ModuleType("posix", posix.__doc__)
"""The functions as they are before anything is watched.

They are copied once, in the fork server. A copy in each worker would write to the functions' memory
(reference counts), which the worker could then no longer share with the fork server.
"""
vars(_plain).update(vars(posix))


class _Folder(threading.local):
    descriptor: int | None = None


_folder = _Folder()


def folder_of_open() -> int | None:
    """Return the ``dir_fd`` of the ``os.open`` that this thread is executing, or None."""
    return _folder.descriptor


def watch(tell: Callable[[Any, int | None], None]) -> None:
    """Report every path whose existence or type is tested from now on.

    Parameters
    ----------
    tell : callable
        Called before each test with the path as the program passed it, and with the ``dir_fd`` of
        the call or None.
    """
    importing: Any = external
    importing._os = _plain
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
        try:  # the program must not notice an error in here
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
