"""List the entries of folders, except files that tools leave there."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from gpuemu_flow.inputs.plan import look_of

_NOT_LISTED = re.compile(r"__pycache__|\.gpuemu-cache")


def entries_in(folder: str) -> frozenset[str] | None:
    """Return the names in a folder, each with its kind; None if there is no folder.

    Bytecode of sources and our own cache are left out: they come and go.
    """
    try:
        with os.scandir(folder) as entries:
            return frozenset(
                f"{entry.name}{_kind(entry)}" for entry in entries if is_listed(entry.name)
            )
    except OSError:
        return None


def is_listed(name: str) -> bool:
    """Tell whether entries with this name appear in the results of `entries_in`."""
    return not _NOT_LISTED.fullmatch(name)


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "@"
    return "" if entry.is_file() else "/" if entry.is_dir() else "|"


def _target(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return ""


SHOWN: dict[str, Callable[[str], object]] = {
    "links": _target,
    "listed": entries_in,
    "looked": look_of,
}
"""Functions that look at a path, by the part of `Discovered` whose entries they check."""
