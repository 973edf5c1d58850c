"""Files that a CUDA source includes, found without running a preprocessor."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct, field

_INCLUDE = re.compile(
    rb'^[ \t]*#[ \t]*include(?:_next)?[ \t]*(?:"([^"\r\n]{1,1024})"|<([^>\r\n]{1,1024})>)', re.M
)
_HAS_INCLUDE = re.compile(
    rb'\b__has_include(?:_next)?[ \t]*\([ \t]*(?:"([^"\r\n]{1,1024})"|<([^>\r\n]{1,1024})>)'
)
_FOLDER_OPTIONS = ("-I", "--include-path", "-isystem", "--system-include")
_FILE_OPTIONS = ("-include", "--pre-include")
_OPTIONS_FILES = ("-optf", "--options-file")
_HEADERS = frozenset((
    "", ".cuh", ".def", ".h", ".hh", ".hpp", ".hxx", ".inc", ".inl", ".ipp", ".tcc",
))  # fmt: skip
"""Suffixes of file names in the ``#include`` lines of the toolkit's headers."""
MAX_FILES = 10_000
"""Largest number of files that are followed from one source, more than any kernel includes."""
_MAX_OPTIONS_FILES = 16


class Includes(Struct, frozen=True):
    """The files that a source includes, and the paths where new files could change this list.

    All paths are relative to the workspace if they lie inside of it.
    """

    files: list[str]
    absent: list[str] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)


def find_includes(start: Path, flags: Iterable[str], root: Path) -> Includes:
    """Find the files that a source includes from its folder or from ``-I`` folders.

    All ``#include`` lines and uses of ``__has_include`` count, even under conditions that do not
    hold. The toolkit's own headers are not listed; in keys, the compiler's version stands for them.
    """
    folders, named = _options(flags, root)
    found: set[Path] = set()
    absent: set[Path] = set()
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
        for quoted, angled in (*_INCLUDE.findall(text), *_HAS_INCLUDE.findall(text)):
            name = (quoted or angled).decode("utf-8", "surrogateescape")
            for folder in [path.parent, *folders] if quoted else folders:
                candidate = _normal(folder / name)
                if candidate.is_file():
                    pending.append(candidate)
                    break
                absent.add(candidate)
    searched = [folder for folder in folders if folder.is_relative_to(root)]
    headers, below = _headers_below(searched, root)
    return Includes(
        sorted({relative(path, root) for path in (*found, start)}),
        sorted(relative(path, root) for path in absent),
        headers,
        below,
    )


def _headers_below(folders: Iterable[Path], root: Path) -> tuple[list[str], list[str]]:
    """List the possible headers below some folders, and all folders searched; both sorted."""
    headers: set[str] = set()
    below: set[str] = set()
    for top in folders:
        for folder, inner, names in os.walk(top):
            inner[:] = [name for name in inner if not name.startswith((".", "__pycache__"))]
            place = relative(Path(folder), root)
            below.add(place)
            headers.update(f"{place}/{name}" for name in names if Path(name).suffix in _HEADERS)
            if len(below) + len(headers) > MAX_FILES:
                break
    return sorted(headers), sorted(below)


def relative(path: Path, root: Path) -> str:
    """Return a path in the form of keys and messages: relative to the workspace if inside."""
    if path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    return path.as_posix()


def _normal(path: Path) -> Path:
    """Return a path without ``..``, but with its links unresolved, as the compiler shows it."""
    return Path(os.path.normpath(path))


def _options(flags: Iterable[str], root: Path) -> tuple[list[Path], list[Path]]:
    """Return the include folders and the files that compiler flags name, as two lists."""
    folders: list[Path] = []
    files: list[Path] = []
    waiting: list[Path] | None = None
    for flag in _with_files_of_options(flags, root, files):
        files += _files_in(flag, root)
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


def _with_files_of_options(flags: Iterable[str], root: Path, files: list[Path]) -> Iterator[str]:
    """Yield flags, including those in nvcc's options files; add these files to `files`."""
    pending = list(reversed([*flags]))
    while pending:
        flag = pending.pop()
        option, equals, names = flag.partition("=")
        if option not in _OPTIONS_FILES or not (equals or pending):
            yield flag
            continue
        for name in reversed((names if equals else pending.pop()).split(",")):
            path = _normal(root / name)
            if path in files or len(files) >= _MAX_OPTIONS_FILES:
                continue
            try:
                text = path.read_text("utf-8", "surrogateescape")
            except (OSError, ValueError):
                continue
            files.append(path)
            pending += reversed(text.split())


def _files_in(flag: str, root: Path) -> Iterator[Path]:
    """Split a flag at ``=``, ``,`` and ``@``; yield the parts that are files of the workspace."""
    for word in re.split(r"[=,@]", flag):
        path = _normal(root / word)
        if word and path.is_relative_to(root) and path.is_file():
            yield path
