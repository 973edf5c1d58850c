"""The sandbox of a worker, as plain data that is sent to the process that enforces it."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from gpuemu_flow.model.errors import Problem

SCRATCH = "gpuemu-scratch-"
"""Prefix of the names of the folders that contain the workers' own folders."""
OFF = "off"
"""The level of an op without a sandbox."""
NONE = "none"
"""The level of a system that has neither Landlock nor seccomp."""
FAILED = 98
"""Exit code of a worker for which the requested sandbox could not be made."""
_LANDLOCK, _SECCOMP = "landlock", "seccomp"


class Sandbox(Struct, frozen=True, forbid_unknown_fields=True):
    """The sandbox of one program's workers."""

    level: str
    root: str
    hidden: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    required: bool = False
    closed: bool = False
    # A file that lists the references of all ops, which are hidden but for those in `shared`.
    references: str = ""
    shared: tuple[str, ...] = ()


class Launch(Struct, frozen=True):
    """How `launch` starts a command that writes into `folder`. `seen_at` holds the descriptors of a
    `listener.Recording`, and `locale` the variable LC_CTYPE."""

    sandbox: Sandbox | None = None
    folder: str = ""
    seen_at: tuple[int, ...] = ()
    locale: str = ""


def landlock_version(level: str) -> int:
    """Return the version of Landlock that a level names; 0 if it names none."""
    for word in level.split(", "):
        name, _, number = word.partition(" ")
        if name == _LANDLOCK:
            return int(number)
    return 0


def has_seccomp(level: str) -> bool:
    """Tell whether a level includes the filter of system calls."""
    return _SECCOMP in level.split(", ")


def level_of(landlock: int, *, seccomp: bool) -> str:
    """Return the name of a level that has these parts; `landlock` is a version, 0 for none."""
    parts = [f"{_LANDLOCK} {landlock}"] if landlock else []
    return ", ".join([*parts, *([_SECCOMP] if seccomp else [])]) or NONE


def lacks(level: str) -> tuple[str, ...]:
    """Name the parts that ``require`` demands and a level lacks; none for the level ``off``."""
    if level == OFF:
        return ()
    found = () if landlock_version(level) else (_LANDLOCK,)
    return found if has_seccomp(level) else (*found, _SECCOMP)


def missing_problem(level: str) -> Problem:
    """Return the problem to report on a system that lacks parts of the required sandbox."""
    missing = ", ".join(f"no {name}" for name in lacks(level))
    text = f'[sandbox] mode = "require", and the system has {level}; {missing}'
    hint = 'run it on Linux 5.13 or later with Landlock, or set mode = "auto"'
    return Problem("sandbox-missing", text, hint)


def shown_level(level: str) -> str:
    """Return a level, and the parts that it lacks, in the words of a report. Examples are
    ``landlock 7, seccomp`` and ``landlock 7; no seccomp``."""
    missing = ", ".join(f"no {name}" for name in lacks(level))
    return f"{level}; {missing}" if missing else level


def is_below(path: str, places: Iterable[str]) -> bool:
    """Tell whether a path is one of several paths, or is below one of them."""
    return any(path == place or path.startswith(f"{place.rstrip('/')}/") for place in places)
