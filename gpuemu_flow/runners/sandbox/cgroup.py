"""Limit each worker, with all processes that it starts, by a control group (cgroup v2).

Groups with limits cannot be made inside a group that holds processes, except the root group. So
workers' groups are made next to the group of this process, or inside it if it is the root group.
Their parent group must delegate the controllers `memory` and `pids`.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from gpuemu_flow.runners.limits import LOAD_ALLOWANCE

MOST_PROCESSES = 4096
"""Maximum number of processes and threads of one worker with all that it starts."""
_CONTROLLERS = {"memory", "pids"}
_PREFIX = "gpuemu-"
_ATTEMPTS = 200
_PAUSE = 0.005
_numbers = itertools.count()
_lock = threading.Lock()


class ControlGroup:
    """The control group of one worker.

    Parameters
    ----------
    folder : Path
        Folder of the group, which must not exist yet.
    limits : mapping of str to int
        Limits by their file names in the group, such as ``pids.max``.

    Raises
    ------
    OSError
    """

    def __init__(self, folder: Path, limits: Mapping[str, int]) -> None:
        self._folder = folder
        folder.mkdir()
        try:
            for name, value in limits.items():
                _write(folder / name, str(value))
        except OSError:
            self.end()
            raise

    def add(self, pid: int) -> None:
        """Put a process into the group, with all processes that it starts from now on.

        Raises
        ------
        OSError
        """
        _write(self._folder / "cgroup.procs", str(pid))

    def end(self) -> None:
        """Kill the processes left in the group, and remove the group."""
        with suppress(OSError):  # before Linux 5.14
            _write(self._folder / "cgroup.kill", "1")
        for _ in range(_ATTEMPTS):
            try:
                self._folder.rmdir()
            except FileNotFoundError:
                return
            except OSError:  # killed processes take a while to end
                time.sleep(_PAUSE)
            else:
                return


def _write(path: Path, text: str) -> None:
    """Write to one of a control group's files, without creating a missing one."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


@cache
def home() -> Path | None:
    """Return the folder in which workers' groups can be made; None if this system has none."""
    mounted = _mount_point()
    own = _own_group()
    if mounted is None or own is None:
        return None
    here = mounted / own.lstrip("/")
    found = here if own == "/" else here.parent
    try:
        delegated = set((found / "cgroup.subtree_control").read_text().split())
        if not delegated >= _CONTROLLERS:
            return None
        # Where the common ancestor cannot be written, no process can be moved.
        if not os.access(found / "cgroup.procs", os.W_OK):
            return None
        _clear(found)
        probe = ControlGroup(found / f"{_PREFIX}{os.getpid()}-probe", limits_of(0))
    except OSError:
        return None
    probe.end()
    return found


def limits_of(memory_limit: int | None) -> dict[str, int]:
    """Return the limits of a worker's group, by the names of the files that set them.

    Parameters
    ----------
    memory_limit : int or None
        The program's memory limit in bytes, to which an allowance for imports is added; None for no
        limit on memory.
    """
    limits = {"pids.max": MOST_PROCESSES}
    if memory_limit is not None:
        limits["memory.max"] = memory_limit + LOAD_ALLOWANCE
    return limits


def open_group(memory_limit: int | None) -> ControlGroup:
    """Return a new group for one worker.

    Raises
    ------
    OSError
    """
    around = home()
    if around is None:
        raise OSError("there is no control group to make others in")
    with _lock:
        number = next(_numbers)
        if number == 0:
            atexit.register(_clear, around, os.getpid())
    return ControlGroup(around / f"{_PREFIX}{os.getpid()}-{number}", limits_of(memory_limit))


def _clear(around: Path, own: int = 0) -> None:
    """Remove those workers' groups inside the group `around` that are no longer needed.

    These are the groups made by processes that have ended, for example after a run was killed, and
    the groups made by the process with the id `own`. A group that still holds processes is not
    removed, since the system refuses to do so.
    """
    with suppress(OSError):
        for folder in around.glob(f"{_PREFIX}*-*"):
            maker = folder.name.removeprefix(_PREFIX).partition("-")[0]
            if maker == str(own) or not Path("/proc", maker).exists():
                with suppress(OSError):
                    folder.rmdir()


def _mount_point() -> Path | None:
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split()
        if len(fields) > 2 and fields[2] == "cgroup2":
            return Path(fields[1])
    return None


def _own_group() -> str | None:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    return next((line[3:] for line in lines if line.startswith("0::/")), None)
