"""The sandbox of a worker, as plain data that is sent to the process that enforces it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuemu_flow.errors import Problem
from gpuemu_flow.quick_dataclass import dataclass

SCRATCH = "gpuemu-scratch-"
"""Prefix of the names of the folders that contain the workers' own folders."""
STRICT = "strict"
"""The mode that demands namespaces in addition to the parts of `require`."""
OFF = "off"
"""The level of an op without a sandbox."""
NONE = "none"
"""The level of a system that has neither Landlock nor seccomp."""
FAILED = 98
"""Exit code of a worker for which the requested sandbox could not be made."""
_LANDLOCK, _SECCOMP, _BWRAP, _CGROUP = "landlock", "seccomp", "bwrap", "cgroup"
_LISTS = ("hidden", "shown", "read_only", "writable")


@dataclass(frozen=True)
class Sandbox:
    """The sandbox of one program's workers.

    Attributes
    ----------
    level : str
        Parts to enforce, as `level.system_level` names them. If the process cannot enforce one of
        these parts, nothing runs.
    root : str
        The workspace, absolute.
    hidden : tuple of str
        Absolute paths of files and folders that this program must not read or write, besides the
        paths that are hidden from all programs; see `private`.
    shown : tuple of str
        Absolute paths of files that may be read although they are hidden, and written if `writable`
        contains them.
    read_only : tuple of str
        Absolute paths of files that must not be written, even in writable folders.
    writable : tuple of str
        Absolute paths that may be written, besides a scratch folder.
    required : bool
        True if nothing may run unless `level` names all parts that the configured mode demands.
    strict : bool
        True if the op's processes get namespaces and an empty home folder; see `bubblewrap`.
    closed : bool
        True if no file of the workspace may be read except those in `shown`.
    """

    level: str
    root: str
    hidden: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    required: bool = False
    strict: bool = False
    closed: bool = False

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Sandbox:
        """Rebuild from the form that `dataclasses.asdict` gives, or raise TypeError."""
        lists = {name: tuple(data[name]) for name in _LISTS if name in data}
        return cls(**{**data, **lists})


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


def has_bwrap(level: str) -> bool:
    """Tell whether a level includes namespaces."""
    return _BWRAP in level.split(", ")


def has_cgroup(level: str) -> bool:
    """Tell whether a level limits a worker together with all processes that it starts."""
    return _CGROUP in level.split(", ")


def level_of(landlock: int, *, seccomp: bool, bwrap: bool = False, cgroup: bool = False) -> str:
    """Return the name of a level that has these parts; `landlock` is a version, 0 for none."""
    parts = [f"{_LANDLOCK} {landlock}"] if landlock else []
    parts += [
        name for name, has in ((_SECCOMP, seccomp), (_BWRAP, bwrap), (_CGROUP, cgroup)) if has
    ]
    return ", ".join(parts) or NONE


def lacks(level: str) -> tuple[str, ...]:
    """Name the parts that ``require`` demands and a level lacks; none for the level ``off``."""
    if level == OFF:
        return ()
    found = () if landlock_version(level) else (_LANDLOCK,)
    return found if has_seccomp(level) else (*found, _SECCOMP)


def lacks_for(level: str, *, strict: bool) -> tuple[str, ...]:
    """Name the parts that the mode ``strict`` or ``require`` demands and a level lacks."""
    found = lacks(level)
    return (*found, _BWRAP) if strict and not has_bwrap(level) else found


def is_whole(level: str, *, strict: bool) -> bool:
    """Tell whether a level includes every part that a mode tries to use.

    The mode is ``strict`` if `strict` is true, else ``require``. A level without a cgroup is not
    whole for ``strict``, although this mode also runs without one.
    """
    return not lacks_for(level, strict=strict) and (has_cgroup(level) or not strict)


def missing_problem(level: str, *, strict: bool = False, reason: str = "") -> Problem:
    """Return the problem to report on a system that lacks parts of the required sandbox.

    Parameters
    ----------
    level : str
    strict : bool
    reason : str
        The reason why bubblewrap cannot be used; see `bubblewrap.refusal`.
    """
    mode = STRICT if strict else "require"
    missing = ", ".join(f"no {name}" for name in lacks_for(level, strict=strict))
    text = f'[sandbox] mode = "{mode}", and the system has {level}; {missing}'
    if reason:
        text += f" ({reason})"
    hint = 'run it on Linux 5.13 or later with Landlock, or set mode = "auto"'
    if strict and not lacks(level):
        hint = (
            "install bubblewrap (`apt-get install bubblewrap`) where processes may make "
            'namespaces, which many containers refuse, or set mode = "require"'
        )
    return Problem("sandbox-missing", text, hint)


def shown_level(level: str) -> str:
    """Return a level, and the parts that it lacks, in the words of a report.

    Examples are ``landlock 7, seccomp`` and ``landlock 7; no seccomp``.
    """
    names = lacks(level)
    if has_bwrap(level) and not has_cgroup(level):
        names = (*names, _CGROUP)
    missing = ", ".join(f"no {name}" for name in names)
    return f"{level}; {missing}" if missing else level
