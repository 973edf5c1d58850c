"""Files that a CUDA source includes, found without running a preprocessor."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_INCLUDE = re.compile(
    rb'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\r\n]{1,1024})"|<([^>\r\n]{1,1024})>)', re.M
)
_FOLDER_OPTIONS = ("-I", "--include-path", "-isystem", "--system-include")
_FILE_OPTIONS = ("-include", "--pre-include")
MAX_FILES = 10_000
"""Largest number of files of one closure, more than any kernel's source includes."""


def include_closure(start: Path, flags: Iterable[str], root: Path) -> list[str]:
    """Return the source and all files that it includes from its folder or from ``-I`` folders.

    All ``#include`` lines count, even under conditions that do not hold. The toolkit's own headers
    are not on these paths; the compiler's version stands for them.

    Parameters
    ----------
    start : Path
    flags : iterable of str
        Flags of the compiler; include folders and forced includes are taken from them.
    root : Path
        The workspace; folders in `flags` are relative to it.

    Returns
    -------
    list of str
        Paths, relative to `root` if they lie inside of it; sorted.
    """
    folders, named = _options(flags, root)
    found: set[Path] = set()
    pending = [start, *named]
    while pending and len(found) < MAX_FILES:
        path = pending.pop()
        if path in found:
            continue
        try:
            text = path.read_bytes()
        except (OSError, ValueError):
            continue
        found.add(path)
        for quoted, angled in _INCLUDE.findall(text):
            name = (quoted or angled).decode("utf-8", "surrogateescape")
            places = [path.parent, *folders] if quoted else folders
            for folder in places:
                candidate = _normal(folder / name)
                if candidate.is_file():
                    pending.append(candidate)
                    break
    return sorted({relative(path, root) for path in (*found, start)})


def relative(path: Path, root: Path) -> str:
    """Return a path in the form of keys and messages: relative to the workspace if inside."""
    if path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    return path.as_posix()


def _normal(path: Path) -> Path:
    """Return a path without ``..`` but with its links, as the compiler would show it."""
    import os.path  # noqa: PLC0415 - pathlib has no such function

    return Path(os.path.normpath(path))


def _options(flags: Iterable[str], root: Path) -> tuple[list[Path], list[Path]]:
    """Return include folders and forced includes that compiler flags name."""
    folders: list[Path] = []
    files: list[Path] = []
    waiting: list[Path] | None = None
    for flag in flags:
        if waiting is not None:
            waiting.extend(_normal(root / part) for part in flag.split(","))
            waiting = None
            continue
        for options, target in ((_FOLDER_OPTIONS, folders), (_FILE_OPTIONS, files)):
            for option in options:
                if flag == option:
                    waiting = target
                elif flag.startswith(f"{option}="):
                    target.extend(_normal(root / p) for p in flag[len(option) + 1 :].split(","))
                elif option == "-I" and flag.startswith("-I"):
                    target.append(_normal(root / flag[2:]))
    return folders, files
