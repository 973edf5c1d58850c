"""Take a template's values from file names: each value is the part of a name that ``*`` matches."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path, PurePosixPath

from gpuemu_flow.config.patterns import plain_glob
from gpuemu_flow.config.report import shown
from gpuemu_flow.types import Json

MOST_FILES = 10_000
MOST_LISTED = 100_000
"""Maximum number of entries in a folder."""
KEY = "files"
_VALUE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_WILDCARDS = frozenset("*?[")


class FilesError(Exception):
    """Raised if file names cannot be values of a template; it has a message and a hint."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def is_pattern(value: Json) -> bool:
    """Tell whether a value of ``foreach`` is a table with only the key ``files``."""
    return isinstance(value, dict) and set(value) == {KEY} and isinstance(value[KEY], str)


def listing(written: str) -> str:
    """Return the glob whose matches change whenever the result of `values_of` changes.

    It is a glob for `inputs.globs.glob_files`. It also matches folders and broken links, since they
    make `values_of` fail. `written` is the pattern in the configuration.

    Raises
    ------
    FilesError
        A bad pattern.
    """
    return f"{_checked(written)}/"


def values_of(root: Path, written: str) -> list[str]:
    """Return the part of each file's name that ``*`` matches, sorted.

    Names that begin with a dot are left out, since editors and systems use them for their own
    files.

    Raises
    ------
    FilesError
        The pattern is bad or matches too many files, or a match is no regular file of the
        workspace, or its name cannot be part of an op's name. Such a match is not ignored, since
        its op would then be missing without notice.
    """
    pattern = _checked(written)
    folder = root.joinpath(*pattern.parts[:-1])
    beginning, _, end = pattern.name.partition("*")
    if not Path(os.path.realpath(folder)).is_relative_to(root):
        text = f"{shown(str(pattern.parent))} leads out of the workspace through a link"
        raise FilesError(text, "move the folder inside")
    found = []
    for name in _names(folder, pattern):
        value = name[len(beginning) : len(name) - len(end)]
        fits = name.startswith(beginning) and name.endswith(end) and value and name[0] != "."
        if not fits or len(name) < len(beginning) + len(end):
            continue
        where = str(pattern.parent / name)
        _check_name(where, value)
        _check_file(root, folder / name, where)
        found.append(value)
        if len(found) > MOST_FILES:
            text = f"{shown(str(pattern))} matches more than {MOST_FILES} files"
            raise FilesError(text, "move some of them to another folder")
    return sorted(found)


def _checked(written: str) -> PurePosixPath:
    pattern, fault = plain_glob(written)
    if not fault and (pattern.name.count("*") != 1 or _WILDCARDS & set(pattern.name) != {"*"}):
        fault = "needs one '*' in the name of the file, and no other wildcard"
    if not fault and _WILDCARDS & set(str(pattern.parent)):
        fault = "has a wildcard in the name of a folder"
    if fault:
        raise FilesError(f"{shown(written)} {fault}", 'such as "candidates/*.py"')
    return pattern


def _names(folder: Path, pattern: PurePosixPath) -> list[str]:
    names = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) > MOST_LISTED:
                    text = f"{shown(str(pattern.parent))} holds more than {MOST_LISTED} files"
                    raise FilesError(text, "move those away that are no candidates")
    except FileNotFoundError:
        return []
    except OSError as error:
        text = f"{shown(str(pattern.parent))} cannot be listed: {error.strerror or error}"
        raise FilesError(text, "check its mode and owner") from None
    return names


def _check_name(where: str, value: str) -> None:
    if not _VALUE.fullmatch(value):
        text = f"the file {shown(where)} has a name that no op can have"
        raise FilesError(text, "rename it: letters, digits, '_', '-' and '.', at most 100")


def _check_file(root: Path, path: Path, where: str) -> None:
    if not Path(os.path.realpath(path)).is_relative_to(root):
        text = f"{shown(where)} leads out of the workspace through a link"
        raise FilesError(text, "copy the file here")
    try:
        mode = path.stat().st_mode
    except OSError as error:
        text = f"{shown(where)} cannot be looked at: {error.strerror or error}"
        raise FilesError(text, "fix or remove it") from None
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "no regular file"
        raise FilesError(f"{shown(where)} is {kind}", "move it elsewhere")
