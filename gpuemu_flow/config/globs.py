"""Globs of files: the form in which the configuration may have them, and which names they match."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from pathlib import PurePosixPath


def matches(pattern: str, name: str) -> bool:
    """Tell whether a glob of ``inputs`` matches a path; the file need not exist yet."""
    return _match(PurePosixPath(pattern).parts, PurePosixPath(name).parts)


def _match(pattern: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    """Tell whether a glob's parts match a path's parts; ``**`` stands for any number of folders."""
    reachable = {0}
    for number, part in enumerate(pattern):
        if part == "**":
            last = number == len(pattern) - 1
            top = len(parts) if last else len(parts) - 1
            reachable = set(range(min(reachable), top + 1)) if reachable else set()
        else:
            reachable = {
                place + 1
                for place in reachable
                if place < len(parts) and fnmatchcase(parts[place], part)
            }
        if not reachable:
            return False
    return len(parts) in reachable


# Glob patterns of files, as they are written in the files of a workspace.


def plain_glob(written: str) -> tuple[PurePosixPath, str]:
    """Return a glob without ``.`` and ``..``, and the reason if it is not allowed."""
    path = PurePosixPath(os.path.normpath(written))
    if not written.isprintable():
        return path, "holds control characters"
    if path.is_absolute() or ".." in PurePosixPath(written).parts:
        return path, "leads out of the workspace"
    if not path.parts:
        return path, "is the workspace itself"
    if any("**" in part and part != "**" for part in path.parts):
        return path, "has a '**' that does not stand alone between slashes"
    return path, ""
