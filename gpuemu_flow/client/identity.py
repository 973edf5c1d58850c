"""Describe a client to the daemon: its command, its process, and the function that it submits."""

from __future__ import annotations

import functools
import os
import secrets
import socket
import sys
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from gpuemu_flow.model.types import Json

MAX_TEXT = 200

REQUEST_ID: ContextVar[str] = ContextVar("gpuemu_request_id", default="")
"""Identifier for the next long request, set by callers that may want to cancel it."""


def new_id() -> str:
    """Return a new id for a request, to query its progress or to cancel it."""
    return REQUEST_ID.get() or secrets.token_hex(16)


def about_me(function: Callable[..., Any] | None = None) -> dict[str, Json]:
    """Describe this process, and the function whose outputs are submitted, if it is known."""
    about: dict[str, Json] = {
        "id": _command(),
        "name": _printable(Path(sys.argv[0] if sys.argv and sys.argv[0] else sys.executable).name)
        or "python",
        "pid": os.getpid(),
        "host": _printable(socket.gethostname()),
        "user": _printable(_user()),
    }
    while callable(wrapped := getattr(function, "func", None)):  # of `functools.partial`
        function = wrapped
    if function is not None:
        named = function if hasattr(function, "__qualname__") else type(function)
        line = getattr(getattr(function, "__code__", None), "co_firstlineno", "")
        about["origin"] = _printable(f"{named.__module__}.{named.__qualname__}:{line}")
    return about


@functools.lru_cache(maxsize=1)
def _command() -> str:
    """Return an id that all processes of one command have in common, and no later command.

    A command is a process group: what a shell runs for one line, or a whole script of CI. A forked
    child keeps its parent's id. Numbers of groups are used again, so the time at which the group's
    first process was started is a part of the id.
    """
    group = os.getpgrp()
    try:
        started = Path(f"/proc/{group}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError, ValueError):
        started = ""  # it has ended
    return _printable(f"{socket.gethostname()}:{group}:{started}")


def _user() -> str:
    # Not from the system's library, whose locks a fork meanwhile would not survive.
    return os.environ.get("LOGNAME") or os.environ.get("USER") or str(os.getuid())


def _printable(text: str) -> str:
    if text.isprintable():  # half a surrogate pair is not
        return text[-MAX_TEXT:]
    kept = "".join(c for c in text if c.isprintable() and not "\ud800" <= c <= "\udfff")
    return kept[-MAX_TEXT:]
