"""Match names with the globs of the configuration, without looking at any file."""

from __future__ import annotations

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
