"""Record the folders that imports search, since a file added there may be imported next time."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import machinery
from typing import Any

from gpuemu_flow.runners.imports import is_installed

Search = tuple[str, tuple[str, ...] | None]
"""A module's name and the folders that were searched; None for those of ``sys.path``."""


class Searches:
    """An import finder that finds nothing, but records each search and its folders."""

    def __init__(self) -> None:
        self._asked: list[Search] = []

    def install(self) -> None:
        """Record the search of every import from now on."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Undo `install`."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def asked(self) -> Iterator[Search]:
        """Yield the searches since the last call; the folders are None for top-level modules."""
        asked, self._asked = self._asked, []
        for name, folders in asked:
            yield name, folders if "." in name else None

    def add(self, searches: Iterable[Search]) -> None:
        """Add searches of the parent process to those of this process."""
        here = _absolute(sys.path)
        self._asked += [(name, here if folders is None else folders) for name, folders in searches]

    def find_spec(self, name: str, path: Sequence[str] | None = None, _: Any = None) -> None:
        """Record one search; find nothing."""
        self._asked.append((name, _absolute(sys.path if path is None else path)))

    def missed(self) -> Iterator[str]:
        """Yield the files that the searches since the last call would have found, had they existed.

        Files in installed packages and the standard library are left out, since these change only
        as a whole. If the module was found nowhere, these files are included: a package that is
        installed later would provide it.
        """
        asked, self._asked = self._asked, []
        names: dict[str, frozenset[str]] = {}
        for name, searched in asked:
            folders = searched or ()
            spec = getattr(sys.modules.get(name), "__spec__", None)
            origin = str(getattr(spec, "origin", None) or "")
            if origin in ("built-in", "frozen"):
                continue
            tail = name.rpartition(".")[2]
            for folder in folders:
                wanted = not is_installed(folder) or (spec is None and "-packages" in folder)
                if wanted and not folder.endswith(".zip"):
                    if folder not in names:
                        names[folder] = _names(folder)
                    yield from _before(origin, folder, tail, names[folder])
                if origin.startswith((f"{folder}/{tail}.", f"{folder}/{tail}/")):
                    break


def _absolute(entries: Sequence[str]) -> tuple[str, ...]:
    """Make relative folders absolute; drop entries that only an import hook understands."""
    folders = tuple(entries)
    if all(isinstance(folder, str) and folder.startswith("/") for folder in folders):
        return folders
    here = os.getcwd()  # noqa: PTH109
    texts = [folder for folder in folders if isinstance(folder, str)]
    absolute = [os.path.normpath(os.path.join(here, text)) for text in texts]  # noqa: PTH118
    return tuple(a for a, text in zip(absolute, texts, strict=True) if not text.endswith("_hook__"))


def _before(origin: str, folder: str, tail: str, there: frozenset[str]) -> Iterator[str]:
    """Yield missing files in a folder that would be imported instead of `origin`."""
    if not there and not os.path.isdir(folder):  # noqa: PTH112
        if not os.path.lexists(folder):
            yield folder
        return
    for candidate in _candidates(folder, tail, there):
        if candidate == origin:
            return
        if candidate.rpartition("/")[2] not in there and not os.path.lexists(candidate):
            yield candidate


def _names(folder: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return frozenset()


def _candidates(folder: str, tail: str, there: frozenset[str]) -> Iterator[str]:
    """Yield the files that are looked for in one folder, in the finder's order."""
    base = f"{folder.rstrip('/')}/{tail}"
    suffixes = [
        *machinery.EXTENSION_SUFFIXES,
        *machinery.SOURCE_SUFFIXES,
        *machinery.BYTECODE_SUFFIXES,
    ]
    if tail in there:
        for suffix in suffixes:
            yield f"{base}/__init__{suffix}"
    else:
        yield base
    for suffix in suffixes:
        yield base + suffix
