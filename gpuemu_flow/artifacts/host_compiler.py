"""Find the host compilers that nvcc may start, with digests that show when one has changed."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

HOST_COMPILERS = ("gcc", "g++")
"""Programs that nvcc starts from ``PATH`` on Linux, unless a flag names another program."""
_FOLDER_OPTIONS = ("-ccbin", "--compiler-bindir")
_MOST_READ = 64 << 20


def host_compilers(
    flags: Sequence[str], root: Path, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the sha256 of each program that nvcc may start as its host compiler, by path.

    Parameters
    ----------
    flags : sequence of str
        nvcc's flags; ``-ccbin`` gives a compiler, or the folder of a compiler.
    root : Path
        The workspace; a path in `flags` is relative to it.
    environment : mapping, optional
        Environment variables, of which ``PATH`` is used; `os.environ` by default.
    """
    path = (os.environ if environment is None else environment).get("PATH", "")
    named = _named(flags)
    if not named:
        places = [shutil.which(name, path=path) for name in HOST_COMPILERS]
    elif (root / named).is_dir():
        places = [str(root / named / name) for name in HOST_COMPILERS]
    else:
        places = [str(root / named) if os.sep in named else shutil.which(named, path=path)]
    digests = {place: _digest(place) for place in places if place is not None}
    return {place: digest for place, digest in digests.items() if digest}


def _named(flags: Sequence[str]) -> str:
    """Return the compiler or folder that the last ``-ccbin`` flag gives; empty if there is none."""
    named = ""
    for flag, following in zip(flags, (*flags[1:], ""), strict=False):
        option, equals, value = flag.partition("=")
        if option in _FOLDER_OPTIONS:
            named = value if equals else following
    return named


def _digest(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return hashlib.sha256(file.read(_MOST_READ)).hexdigest()
    except OSError:
        return ""
