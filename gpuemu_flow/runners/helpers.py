"""Explain failures that come from the processes and programs that an op starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import TracebackType

SPAWNED = (
    "processes that `multiprocessing` spawns cannot import the op's own file: have them run a "
    "function of a module that it imports, or take the start method `fork`"
)
_MANAGED = (
    "a `Manager` talks over sockets, which an op may not open: share by `multiprocessing.Array`, "
    "`shared_memory`, a queue or a pipe"
)
_FORK_SERVER = (
    "the start method `forkserver`, the default from Python 3.14 on, needs sockets, which an op "
    'may not open: take `multiprocessing.get_context("fork")`'
)
_STARTED = (
    "a program that an op starts is kept from the same as the op: it reads no credentials and no "
    "folder of version control (`git`), opens no sockets, and writes the temporary folder and what "
    "`[sandbox] writable` names"
)
_OF_SPAWNED = "--multiprocessing-fork"
_TRACKER = "from multiprocessing.resource_tracker import main"


def spawns(group: int) -> bool:
    """Tell whether a worker's process group holds processes that `multiprocessing` spawned.

    If the processes of a pool die when they start, the pool keeps restarting them, and possibly
    none is alive at this moment. Therefore, the resource tracker of `multiprocessing`, which
    outlives them, counts as well.
    """
    for pid in _processes():
        try:
            if os.getpgid(pid) == group and _is_spawned(pid):
                return True
        except OSError:
            continue
    return False


def _processes() -> Iterator[int]:
    try:
        names = os.listdir("/proc")  # noqa: PTH208
    except OSError:
        return
    yield from (int(name) for name in names if name.isdecimal())


def _is_spawned(pid: int) -> bool:
    with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
        words = os.fsdecode(file.read(4096)).split("\0")
    return _OF_SPAWNED in words or any(word.startswith(_TRACKER) for word in words)


def hint_for(error: BaseException, *, fenced: bool) -> str:
    """Return a hint for errors of `multiprocessing` and `subprocess`; empty if none applies."""
    pools = sys.modules.get("concurrent.futures.process")
    if isinstance(error, getattr(pools, "BrokenProcessPool", ())):
        return SPAWNED if _has_tracker() else ""
    if not fenced:
        return ""
    if isinstance(error, EOFError) and _came_from(error.__traceback__, "multiprocessing.managers"):
        return _MANAGED
    if isinstance(error, OSError) and _came_from(error.__traceback__, "multiprocessing.forkserver"):
        return _FORK_SERVER
    programs = sys.modules.get("subprocess")
    return _STARTED if isinstance(error, getattr(programs, "SubprocessError", ())) else ""


def _has_tracker() -> bool:
    """Tell whether this process has started the resource tracker that spawning needs."""
    tracker = getattr(
        sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None
    )
    return getattr(tracker, "_pid", None) is not None


def _came_from(trace: TracebackType | None, module: str) -> bool:
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == module:
            return True
        trace = trace.tb_next
    return False
