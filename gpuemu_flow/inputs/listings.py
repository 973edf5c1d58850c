"""List and describe the entries of folders, except files that tools leave there."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from gpuemu_flow.inputs.plan import look_of

_NOT_LISTED = re.compile(r"__pycache__|\.gpuemu-cache")
_NO_MODULES = re.compile(r"__pycache__|\.#.*|#.*#|.*~|.*\.sw[a-p]|4913|\.gpuemu-cache")
"""Names of files that editors and interpreters make beside sources and that are no modules."""


def entries_in(folder: str) -> frozenset[str] | None:
    """Return the names in a folder, each with its kind; None if there is no folder.

    Bytecode of sources and our own cache are left out: they come and go.
    """
    return _entries(folder, _NOT_LISTED)


def modules_in(folder: str) -> frozenset[str] | None:
    """List a folder as `entries_in` does, without files that editors make next to sources."""
    return _entries(folder, _NO_MODULES)


def is_listed(name: str, *, modules: bool) -> bool:
    """Tell whether entries with this name appear in the listing of a folder.

    The listing is that of `modules_in` if `modules` is True, else that of `entries_in`.
    """
    return not (_NO_MODULES if modules else _NOT_LISTED).fullmatch(name)


def _entries(folder: str, left_out: re.Pattern[str]) -> frozenset[str] | None:
    try:
        with os.scandir(folder) as entries:
            return frozenset(
                f"{entry.name}{_kind(entry)}"
                for entry in entries
                if not left_out.fullmatch(entry.name)
            )
    except OSError:
        return None


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "@"
    return "" if entry.is_file() else "/" if entry.is_dir() else "|"


def sizes_in(folder: str) -> dict[str, str] | None:
    """Map each entry of a folder to its kind, mode and size; None if there is no folder."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if not _NOT_LISTED.fullmatch(entry.name)]
    except OSError:
        return None
    return {name: look_of(f"{folder}/{name}", size=True) for name in names}


SHOWN: dict[str, Callable[[str], object]] = {
    "listed": entries_in,
    "modules": modules_in,
    "sized": sizes_in,
    "looked": look_of,
}
"""Functions that look at a path, by the part of `Discovered` whose entries they check."""
