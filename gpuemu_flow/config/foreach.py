"""Expand templates of ops: ``foreach`` makes one op for each combination of its values."""

from __future__ import annotations

import itertools
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from msgspec import Struct

from gpuemu_flow.config.check import MAX_TABLES
from gpuemu_flow.config.globs import plain_glob
from gpuemu_flow.config.positions import KeyPath
from gpuemu_flow.config.report import Reporter, dotted, shown
from gpuemu_flow.types import Json

MAX_EXPANSIONS = 10_000
"""Maximum number of ops that one template may make."""
MAX_WEIGHT = 32 << 20
"""Maximum number of characters and values in all ops of one template together."""

KEY = "foreach"
DTYPE = "dtype"
_PLACEHOLDER = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|\{([A-Za-z_]\w*)\}")
_NAME = re.compile(r"[A-Za-z_]\w*")
_SCALARS = (str, bool, int, float)

Table = Mapping[str, Json]


class _Variant(Struct, frozen=True):
    """One op of a template, and the values that it was made with."""

    table: Table
    values: str


class Folders(Struct):
    """Folders in which templates of ops find file names to use as values."""

    # The workspace. If it is None, no ops are made from templates that take values from file
    # names.
    root: Path | None
    # Patterns that the file names had to match; see `inputs.globs.glob_files`.
    listings: list[str] = []


def expand_templates(raw: Table, out: Reporter, folders: Folders) -> Table:
    """Return a file's tables with every op template replaced by its ops."""
    ops = raw.get("ops")
    if not isinstance(ops, list) or not any(_is_template(table) for table in ops):
        return raw
    found: list[Json] = []
    for place, table in enumerate(ops):
        where = ("ops", place)
        for variant in (
            _variants(table, where, out, folders) if _is_template(table) else [_Variant(table, "")]
        ):
            out.origins["ops", len(found)] = (where, variant.values)
            found.append(variant.table)
        if len(found) > MAX_TABLES:
            text = f"with its templates, the file has more than {MAX_TABLES} ops"
            out.problem_at("config-foreach", out.positions.line(where), text, "split the file")
            break
    return {**raw, "ops": found}


def _is_template(table: Json) -> bool:
    return isinstance(table, dict) and KEY in table


def _variants(table: Table, where: KeyPath, out: Reporter, folders: Folders) -> list[_Variant]:
    """Return the ops of one template; empty if a problem was reported."""
    here = (*where, KEY)
    lists = _lists(table[KEY], here, out, folders)
    if lists is None:
        return []
    body = {name: value for name, value in table.items() if name != KEY}
    used = set(_placeholders(body))
    unknown = sorted(used - set(lists))
    for name in unknown:
        text = f"{dotted(where)} names {{{name}}}, which {dotted(here)} does not give"
        hint = out.nearest(name, tuple(lists)) or f"add it, or write {{{{{name}}}}} for braces"
        _tell(out, where, text, hint)
    if unknown:
        return []
    if DTYPE in lists and "dtypes" not in body:
        # If nothing else depends on the dtype, the dtypes belong to one op.
        body["dtypes"] = [f"{{{DTYPE}}}"] if DTYPE in used else lists.pop(DTYPE)
    number = math.prod(map(len, lists.values()))
    if number > MAX_EXPANSIONS or number * _weight(body) > MAX_WEIGHT:
        limit = f"{MAX_EXPANSIONS} ops" if number > MAX_EXPANSIONS else f"{MAX_WEIGHT >> 20} MiB"
        text = f"{dotted(here)} stands for {number} ops, more than {limit}"
        _tell(out, here, text, "split it, or leave some values out")
        return []
    found = []
    names: set[str] = set()
    for values in itertools.product(*lists.values()):
        given = dict(zip(lists, values, strict=True))
        made = _filled(body, given)
        name = made.get("name")
        if isinstance(name, str) and name in names:
            missing = next((n for n in lists if n not in set(_placeholders(body["name"]))), "")
            text = f"{dotted(where)} stands for several ops named {shown(name)}"
            _tell(
                out, (*where, "name"), text, f"put {{{missing}}} into the name" if missing else ""
            )
            return []
        names.add(str(name))
        said = ", ".join(f"{n} = {_text(value)}" for n, value in given.items())
        found.append(_Variant(made, said))
    return found


def _tell(out: Reporter, where: KeyPath, text: str, hint: str) -> None:
    """Report a problem at the line of the template, not at the lines of its ops."""
    out.problem_at("config-foreach", out.positions.line(where), text, hint)


def _lists(
    given: Json, here: KeyPath, out: Reporter, folders: Folders
) -> dict[str, list[Json]] | None:
    """Return the values of each name in ``foreach``; None if a problem was reported."""
    if not isinstance(given, dict) or not given:
        text = f"{dotted(here)} must be a table of name = list of values"
        _tell(out, here, text, "such as { tile = [64, 128] }")
        return None
    found: dict[str, list[Json]] = {}
    for name, values in given.items():
        place = (*here, name)
        fault = ""
        if _NAME.fullmatch(name) and is_pattern(values):
            files = _files(values[FILES], place, out, folders)
            if files is None:
                return None
            found[name] = files
            continue
        if not _NAME.fullmatch(name):
            fault = "has a name that is no identifier"
        elif not isinstance(values, list) or not values:
            fault = 'is no list with a value in it, nor { files = "folder/*.py" }'
        elif not all(isinstance(value, _SCALARS) for value in values):
            fault = "holds a value that is no string, number or boolean"
        elif any(isinstance(value, float) and not math.isfinite(value) for value in values):
            fault = "holds a number that is not finite"
        if fault:
            _tell(out, place, f"{dotted(place)} {fault}", "")
            return None
        found[name] = [value for _, value in {(type(v), v): v for v in values}.items()]
    return found


def _files(written: str, place: KeyPath, out: Reporter, folders: Folders) -> list[Json] | None:
    """Return the part of each file's name that ``*`` matches; None if a problem was reported."""
    if folders.root is None:
        return []
    try:
        folders.listings.append(listing_of(written))
        found = names_matched(folders.root, written)
    except FilesError as error:
        _tell(out, place, f"{dotted(place)}: {error.message}", error.hint)
        return None
    if not found:
        text = f"{dotted(place)}: no file matches {shown(written)}, so that there is no op"
        hint = "put one there; it counts from then on"
        out.problem_at("config-foreach", out.positions.line(place), text, hint, warning=True)
    return [*found]


def _placeholders(value: Json) -> Iterator[str]:
    """Yield the names in braces from all texts in a value."""
    todo = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, str):
            yield from (m[2] for m in _PLACEHOLDER.finditer(each) if m[2])
        elif isinstance(each, dict):
            todo += [part for pair in each.items() for part in pair]
        elif isinstance(each, list):
            todo += each


def _weight(value: Json) -> int:
    total, todo = 0, [value]
    while todo:
        each = todo.pop()
        total += 1 + (len(each) if isinstance(each, str) else 0)
        if isinstance(each, dict):
            todo += [part for pair in each.items() for part in pair]
        elif isinstance(each, list):
            todo += each
    return total


def _filled(value: Json, given: Mapping[str, Json]) -> Json:
    """Return a value with each name in braces replaced by its value in `given`.

    If a whole text is one name in braces, the result is the name's value itself, for example a
    number, and not a text. The recursion is bounded, since no value nests deeper than
    `positions.MAX_DEPTH`.
    """
    if isinstance(value, str):
        match = _PLACEHOLDER.fullmatch(value)
        if match is not None and match[2]:
            return given[match[2]]
        return _PLACEHOLDER.sub(lambda m: _text(given[m[2]]) if m[2] else f"{{{m[1]}}}", value)
    if isinstance(value, dict):
        return {_text(_filled(name, given)): _filled(part, given) for name, part in value.items()}
    if isinstance(value, list):
        return [_filled(part, given) for part in value]
    return value


def _text(value: Json) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


# Take a template's values from file names: each value is the part of a name that ``*`` matches.


MOST_FILES = 10_000
MOST_LISTED = 100_000
"""Maximum number of entries in a folder."""
FILES = "files"
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
    return isinstance(value, dict) and set(value) == {FILES} and isinstance(value[FILES], str)


def listing_of(written: str) -> str:
    """Return the glob whose matches change whenever the result of `names_matched` changes.

    It is a glob for `inputs.globs.glob_files`. It also matches folders and broken links, since they
    make `names_matched` fail. `written` is the pattern in the configuration.

    Raises FilesError: A bad pattern.
    """
    return f"{_checked(written)}/"


def names_matched(root: Path, written: str) -> list[str]:
    """Return the part of each file's name that ``*`` matches, sorted.

    Names that begin with a dot are left out, since editors and systems use them for their own
    files.

    Raises FilesError: The pattern is bad or matches too many files, or a match is no regular file
    of the workspace, or its name cannot be part of an op's name. Such a match is not ignored, since
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
