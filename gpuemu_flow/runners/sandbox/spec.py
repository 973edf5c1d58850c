"""The sandbox of a worker, as plain data that travels to the process that enforces it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuemu_flow.errors import Problem
from gpuemu_flow.quick_dataclass import dataclass

SCRATCH = "gpuemu-scratch-"
"""Start of the names of folders below which workers have folders of their own."""
MODES = ("off", "auto", "require")
OFF = "off"
"""The level of an op that nothing keeps from anything."""
NONE = "none"
"""The level of a system that has neither Landlock nor seccomp."""
FAILED = 98
"""Exit code of a worker that could not be fenced as was asked."""
_LANDLOCK, _SECCOMP = "landlock", "seccomp"
_LISTS = ("hidden", "shown", "kept", "writable")


@dataclass(frozen=True)
class Sandbox:
    """The sandbox of one program's workers.

    Attributes
    ----------
    level : str
        Parts to be enforced; if one cannot be, nothing runs. See `level.system_level`.
    root : str
        The workspace, absolute.
    hidden : tuple of str
        Absolute paths of files and folders that are neither read nor written, besides those that
        no program may read.
    shown : tuple of str
        Absolute paths of files that are read in spite of that.
    kept : tuple of str
        Absolute paths of files that are not written, even if folders around them are.
    writable : tuple of str
        Absolute paths that are written, beside a scratch folder.
    required : bool
        True if nothing may run when the level lacks a part.
    """

    level: str
    root: str
    hidden: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    required: bool = False

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Sandbox:
        """Rebuild from the form that `dataclasses.asdict` gives; TypeError when it is not that."""
        lists = {name: tuple(data[name]) for name in _LISTS if name in data}
        return cls(**{**data, **lists})


def landlock_version(level: str) -> int:
    """Return the version of Landlock that a level names; 0 without."""
    for word in level.split(", "):
        name, _, number = word.partition(" ")
        if name == _LANDLOCK:
            return int(number)
    return 0


def has_seccomp(level: str) -> bool:
    """Tell whether a level includes the filter of system calls."""
    return _SECCOMP in level.split(", ")


def level_of(landlock: int, *, seccomp: bool) -> str:
    """Return the name of a level."""
    parts = [f"{_LANDLOCK} {landlock}"] if landlock else []
    parts += [_SECCOMP] if seccomp else []
    return ", ".join(parts) or NONE


def lacks(level: str) -> tuple[str, ...]:
    """Name the parts that a level lacks."""
    if level == OFF:
        return ()
    found = () if landlock_version(level) else (_LANDLOCK,)
    return found if has_seccomp(level) else (*found, _SECCOMP)


def missing_problem(level: str) -> Problem:
    """Make the problem for a system that lacks parts of the required sandbox."""
    text = f'[sandbox] mode = "require", and the system has {shown_level(level)}'
    hint = 'run it on Linux 5.13 or later with Landlock, or set mode = "auto"'
    return Problem("sandbox-missing", text, hint)


def shown_level(level: str) -> str:
    """Return the words for a level in a report, such as ``landlock 7, seccomp``."""
    missing = ", ".join(f"no {name}" for name in lacks(level))
    return f"{level}; {missing}" if missing else level
