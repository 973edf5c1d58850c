"""Read one file: bytes, encoding, TOML syntax, positions and types."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

import tomli
from msgspec import Struct

from gpuemu_flow.config.check import MAX_TABLES, check_table
from gpuemu_flow.config.fields import names_of
from gpuemu_flow.config.parse_rules import ExpectedFiles
from gpuemu_flow.config.paths import plain_glob
from gpuemu_flow.config.report import (
    MAX_DEPTH,
    MAX_TOKEN,
    KeyPath,
    Reporter,
    dotted,
    scan,
    shortened,
    shown,
)
from gpuemu_flow.config.tables import Changeable, File
from gpuemu_flow.model.errors import Problem, UsageError, did_you_mean
from gpuemu_flow.model.types import Json

MAX_BYTES = 4 << 20

_UTF16 = (b"\xff\xfe", b"\xfe\xff")


class ConfigSource(Struct):
    """One configuration file as it was read."""

    # Absolute.
    path: Path
    # Problems found so far.
    out: Reporter
    # SHA-256 in hex of the bytes that were read; empty when the file does not exist.
    digest: str = ""
    # Checked keys that the file contains, under their main names.
    tree: dict[str, Json] = {}
    # Patterns of the file names from which the templates of this file take their values.
    listings: tuple[str, ...] = ()


def check_file(raw: Mapping[str, Json], out: Reporter) -> dict[str, Json]:
    checked: dict[str, Json] = check_table(File, raw, (), out)
    return checked


def read_source(
    path: Path,
    shown_as: str,
    edited: str | None = None,
    *,
    check: Callable[[Mapping[str, Json], Reporter], dict[str, Json]] = check_file,
    root: Path | None = None,
) -> ConfigSource:
    """Read and check one configuration file. A missing file is no problem: the result is then
    empty."""
    source = ConfigSource(path, Reporter(shown_as))
    data = _read_bytes(source) if edited is None else _sized(_encoded(edited), source.out)
    if data is None:
        return source
    source.digest = hashlib.sha256(data).hexdigest()
    text = _decode(data, source.out)
    if text is None:
        return source
    raw = parse_toml(text, source.out)
    if raw is not None:
        folders = Folders(root)
        source.tree = check(expand_templates(raw, source.out, folders), source.out)
        source.listings = tuple(dict.fromkeys(folders.listings))
    return source


def _read_bytes(source: ConfigSource) -> bytes | None:
    try:
        # Opening a named pipe would wait for a writer for ever.
        descriptor = os.open(source.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                source.out.add("config-unreadable", (), "the configuration is not a regular file")
                return None
            data = file.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        text = f"the configuration cannot be read: {error.strerror or error}"
        source.out.add("config-unreadable", (), text, "check the owner and the mode of the file")
        return None
    return _sized(data, source.out)


def _encoded(edited: str) -> bytes:
    """Encode an editor's text as UTF-8. Surrogates, which UTF-8 does not allow, are encoded too.
    `_decode` reports them as an error."""
    return edited.encode("utf-8", "surrogatepass")


def _sized(data: bytes, out: Reporter) -> bytes | None:
    if len(data) > MAX_BYTES:
        text = f"the configuration has more than {MAX_BYTES >> 20} MiB"
        out.add("config-too-large", (), text, "is this the right file?")
        return None
    return data


def _decode(data: bytes, out: Reporter) -> str | None:
    if data.startswith(_UTF16):
        out.add("config-encoding", (), "the file is UTF-16", "save it as UTF-8")
        return None
    if data.startswith(b"\xef\xbb\xbf"):
        out.problem_at("config-encoding", 1, "the file begins with a byte order mark",
                       "save it as UTF-8 without BOM")  # fmt: skip
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = data[error.start]
        fault = f"byte 0x{byte:02x} is not UTF-8"
        out.problem_at("config-encoding", line, fault, "save the file as UTF-8")
        return None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        out.problem_at("config-encoding", line, "the file holds a NUL character", "remove it")
        return None
    return text


def parse_toml(text: str, out: Reporter) -> dict[str, Json] | None:
    """Parse TOML text into tables, which are not checked; return None if the syntax is wrong.
    Problems are added to `out`, and ``out.positions`` is set to the lines of the text's keys."""
    found = scan(text)
    out.positions = found
    if found.too_deep:
        fault = f"keys or brackets nest deeper than {MAX_DEPTH}"
        out.problem_at("config-syntax", found.too_deep, fault)
        return None
    if found.too_long:
        fault = f"a key or number has more than {MAX_TOKEN} characters"
        out.problem_at("config-syntax", found.too_long, fault)
        return None
    try:
        return tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        _syntax_problem(error, text, out)
    except (ValueError, RecursionError, OverflowError) as error:
        out.problem_at("config-syntax", 0, shortened(str(error)))
    return None


def _syntax_problem(error: tomli.TOMLDecodeError, text: str, out: Reporter) -> None:
    line, hint = error.lineno, f"column {error.colno}"
    if error.pos >= len(text):
        line, hint = text.rstrip().count("\n") + 1, ""
        if out.positions.unclosed:
            line = out.positions.unclosed
            hint = "what is opened here is never closed"
    message = error.msg.removesuffix(".")
    out.problem_at("config-syntax", line, f"not valid TOML: {shortened(message)}", hint)


def merged(sources: Sequence[ConfigSource]) -> dict[str, Json]:
    """Merge the checked keys of sources, given from the highest priority to the lowest. Tables are
    merged recursively. Any other value, such as an array of tables, is taken whole from the file of
    highest priority that defines it."""
    out: dict[str, Json] = {}
    for source in reversed(sources):
        _over(out, source.tree)
    return out


def _over(low: dict[str, Json], high: dict[str, Json]) -> None:
    for name, value in high.items():
        below = low.get(name)
        if isinstance(value, dict):
            table = dict(below) if isinstance(below, dict) else {}
            _over(table, value)
            low[name] = table
        else:
            low[name] = value


def definer(sources: Sequence[ConfigSource], path: KeyPath, default: ConfigSource) -> ConfigSource:
    for source in sources:
        node: Json = source.tree
        for part in path:
            if not isinstance(node, dict):  # inside an array, which comes from one source
                return source
            if part not in node:
                break
            node = node[part]
        else:
            return source
    return default


# Expand templates of ops: ``foreach`` makes one op for each combination of its values.


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
    # Patterns that the file names had to match; see `build.files.glob_files`.
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
    """Return a value with each name in braces replaced by its value in `given`. If a whole text is
    one name in braces, the result is the name's value itself, for example a number, and not a text.
    The recursion is bounded, since no value nests deeper than `positions.MAX_DEPTH`."""
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
    return isinstance(value, dict) and set(value) == {FILES} and isinstance(value[FILES], str)


def listing_of(written: str) -> str:
    """Return the glob whose matches change whenever the result of `names_matched` changes. It is a
    glob for `build.files.glob_files`. It also matches folders and broken links, since they make
    `names_matched` fail. `written` is the pattern in the configuration. Raises FilesError: A bad
    pattern."""
    return f"{_checked(written)}/"


def names_matched(root: Path, written: str) -> list[str]:
    """Return the part of each file's name that ``*`` matches, sorted. Names that begin with a dot
    are left out, since editors and systems use them for their own files. Raises FilesError: The
    pattern is bad or matches too many files, or a match is no regular file of the workspace, or its
    name cannot be part of an op's name. Such a match is not ignored, since its op would then be
    missing without notice."""
    pattern = _checked(written)
    folder = root.joinpath(*pattern.parts[:-1])
    beginning, _, end = pattern.name.partition("*")
    if not Path(os.path.realpath(folder)).is_relative_to(root):
        text = f"{shown(str(pattern.parent))} leads out of the workspace through a link"
        raise FilesError(text, "move the folder inside")
    try:
        names = os.listdir(folder)  # noqa: PTH208 - their names alone
    except FileNotFoundError:
        return []
    except OSError as error:
        text = f"{shown(str(pattern.parent))} cannot be listed: {error.strerror or error}"
        raise FilesError(text, "check its mode and owner") from None
    found = []
    for name in names:
        value = name[len(beginning) : len(name) - len(end)]
        fits = name.startswith(beginning) and name.endswith(end) and value and name[0] != "."
        if not fits or len(name) < len(beginning) + len(end):
            continue
        where, path = shown(str(pattern.parent / name)), folder / name
        if not _VALUE.fullmatch(value):
            hint = "rename it: letters, digits, '_', '-' and '.', at most 100"
            raise FilesError(f"the file {where} has a name that no op can have", hint)
        if not Path(os.path.realpath(path)).is_relative_to(root):
            raise FilesError(f"{where} leads out of the workspace through a link", "copy it here")
        if not path.is_file():
            raise FilesError(f"{where} is no regular file", "fix it, or move it elsewhere")
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


# Read the files that ``include`` names: further ops, kernels and rules.

MAX_FILES = 10_000
_CACHE = ".gpuemu-cache"
ARRAYS = ("ops", "rules", "kernels")


class IncludedFiles(Struct):
    """Files that a configuration includes."""

    # The files, in the order of `patterns` and then by name.
    sources: list[ConfigSource] = []
    # Globs relative to the workspace, including those in templates.
    patterns: tuple[str, ...] = ()


def read_included(project: ConfigSource) -> IncludedFiles:
    """Read all files that the project's file includes; report those that cannot be read."""
    given = project.tree.get("include", [])
    root = Path(os.path.realpath(project.path.parent))
    patterns: list[str] = []
    found: dict[Path, None] = {}
    for place, written in enumerate(given):
        where = ("include", place)
        pattern = _pattern(written, where, project.out)
        if pattern:
            patterns.append(pattern)
            found.update(dict.fromkeys(_matches(root, pattern, where, project)))
    if len(found) > MAX_FILES:
        text = f"include matches {len(found)} files, more than {MAX_FILES}"
        project.out.add("config-include", ("include",), text, "put more tables into one file")
        found = {}
    shown_in = Path(project.out.file).parent
    sources = [
        read_source(path, str(shown_in / path.relative_to(root)), check=_check, root=root)
        for path in found
    ]
    patterns += [pattern for source in (project, *sources) for pattern in source.listings]
    return IncludedFiles(sources, tuple(dict.fromkeys(patterns)))


def _pattern(written: str, where: KeyPath, out: Reporter) -> str:
    path, fault = plain_glob(written)
    if fault:
        text = f"{dotted(where)} = {shown(written)} {fault}"
        out.add("config-include", where, text, "name files of the workspace")
        return ""
    return path.as_posix()


def _matches(root: Path, pattern: str, where: KeyPath, project: ConfigSource) -> list[Path]:
    """Return the files that a glob matches; report links out of `root`, and a missing file. A glob
    with wildcards that matches nothing is reported as well."""
    out, found = project.out, []
    own = root / project.path.name
    for path in sorted(root.glob(pattern)):
        if path == own or _CACHE in path.relative_to(root).parts or path.is_dir():
            continue
        if not Path(os.path.realpath(path)).is_relative_to(root):
            text = f"{dotted(where)}: {shown(path.name)} leads out of the workspace through a link"
            out.add("config-include", where, text, "move it inside")
            continue
        found.append(path)
    if not found and not _WILDCARDS & set(pattern):
        text = f"{dotted(where)} = {shown(pattern)} is no file"
        out.add("config-include", where, text, "correct it, or remove it")
    elif not found:
        ExpectedFiles(root).tell_of_none(pattern, where, out)
    return found


def _check(raw: Mapping[str, Json], out: Reporter) -> dict[str, Json]:
    """Check the tables of an included file, which may hold only arrays of tables."""
    allowed = {}
    for name, value in raw.items():
        if name in names_of(File) and name not in ARRAYS:
            text = f"{shown(name)} stands in a file that is included"
            hint = "such a file holds [[ops]], [[kernels]] and [[rules]]: write it into gpuemu.toml"
            out.add("config-include", (name,), text, hint)
        else:
            allowed[name] = value
    return check_file(allowed, out)


# Changes that one command makes to the configuration: ``--profile`` and ``--config``.

MAX_SETTING = 10_000
_KEY = re.compile(r"[A-Za-z0-9_-]{1,200}(\.[A-Za-z0-9_-]{1,200})*")
_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


class ConfigChanges(Struct, frozen=True):
    """Changes that one command makes to the configuration."""

    # Name of a table in ``[profiles]``; empty for none.
    profile: str = ""
    # Texts of the form ``key.of.a.table=value``; later ones take precedence.
    settings: tuple[str, ...] = ()


NO_CHANGES = ConfigChanges()


def layers(sources: Sequence[ConfigSource], changes: ConfigChanges) -> list[ConfigSource]:
    """Return the changes as configuration sources, from the highest priority to the lowest. Raises
    UsageError: ``unknown-profile``; ``bad-setting`` for a text that is not ``key=value``; for an
    unknown key or a wrong value, the same errors as in a configuration file."""
    found = []
    if changes.settings:
        found.append(_of_settings(sources[0], changes.settings))
    if changes.profile:
        found.append(_of_profile(sources, changes.profile))
    return found


def _of_profile(sources: Sequence[ConfigSource], name: str) -> ConfigSource:
    known = merged(sources).get("profiles") or {}
    if name not in known:
        message = f"there is no profile {shortened(name)!r}"
        hint = did_you_mean(name, list(known)) if known else f"write a table [profiles.{name}]"
        raise UsageError(Problem("unknown-profile", message, shortened(hint)))
    own = sources[0].out
    out = Reporter(own.file, own.positions)
    for section in known[name]:
        out.aliases[(section,)] = ("profiles", name, section)
    return ConfigSource(sources[0].path, out, tree=known[name])


def _of_settings(project: ConfigSource, settings: Sequence[str]) -> ConfigSource:
    raw: dict[str, Json] = {}
    for setting in settings:
        _put(raw, setting)
    out = Reporter("--config")
    tree = check_table(Changeable, raw, (), out)
    problems = out.collected(strict=True)
    if problems:
        raise UsageError(*problems)
    return ConfigSource(project.path, out, tree=tree)


def _put(raw: dict[str, Json], setting: str) -> None:
    """Store one setting, such as ``table.key=value``, in the tree of tables `raw`."""
    key, equals, text = (part.strip() for part in setting[:MAX_SETTING].partition("="))
    path = key.split(".")
    if not equals or not _KEY.fullmatch(key) or len(path) > MAX_DEPTH:
        raise _bad(setting, "is not of the form table.key=value")
    value = _value(setting, text)
    table = raw
    for place, part in enumerate(path[:-1]):
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise _bad(setting, f"sets a key of {dotted(tuple(path[: place + 1]))}, a value")
    table[path[-1]] = value


def _value(setting: str, text: str) -> Json:
    if len(setting) > MAX_SETTING:
        raise _bad(setting, f"has more than {MAX_SETTING} characters")
    if _BARE.fullmatch(text) and text not in ("true", "false", "inf", "nan"):
        return text
    if "\n" in text or "\r" in text:
        raise _bad(setting, "holds a line break")
    try:
        found = tomli.loads(f"value = {text}")
    except (ValueError, RecursionError, OverflowError):
        raise _bad(setting, 'has no value of TOML: 4, 0.5, true, word, ["a", "b"]') from None
    return found["value"]


def _bad(setting: str, fault: str) -> UsageError:
    hint = "for instance --config validation.cases=100"
    return UsageError(Problem("bad-setting", f"--config {shortened(setting)!r} {fault}", hint))
