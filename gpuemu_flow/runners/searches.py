"""Record searches for modules: a new file in a searched folder may be imported next time.

A program may also search for a module without importing it, by ``importlib.util.find_spec``. The
file that is found is then recorded, too, since the program has learned that it exists. Searches for
distributions by ``importlib.metadata`` are recorded in the same way.
"""

from __future__ import annotations

import os
import re
import site
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import machinery
from typing import Any

from gpuemu_flow.installed import is_installed

Search = tuple[str, tuple[str, ...] | None]
"""A module's name and the folders that were searched; None for those of ``sys.path``.

A name that ends in ``.dist-info`` is that of a distribution.
"""

_INFO = ".dist-info"
_NO_FOLDER = re.compile(r"__editable__\..*_hook__")
"""Matches entries of ``sys.path`` of editable installs, which only an import hook understands."""


class Searches:
    """An import finder that finds nothing, but records each search and its folders."""

    def __init__(self) -> None:
        self._searches: list[Search] = []
        self._present: list[str] = []
        self._native: Any = None

    def install(self) -> None:
        """Record every import from now on, and every direct call of `PathFinder.find_spec`."""
        sys.meta_path.insert(0, self)
        native = machinery.PathFinder.find_spec

        def find_spec(
            _: Any, name: str, path: Sequence[str] | None = None, target: Any = None
        ) -> Any:
            self.find_spec(name, path)
            return native(name, path, target)

        self._native = vars(machinery.PathFinder)["find_spec"]
        _set_finder(classmethod(find_spec))

    def remove(self) -> None:
        """Undo `install`."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            _set_finder(self._native)

    def drain(self) -> Iterator[Search]:
        """Yield the searches since the last call, each as a module's name and the searched folders.

        For a top-level module, None stands for the folders, which are those of ``sys.path``.
        """
        searches, self._searches = self._searches, []
        for name, folders in searches:
            yield name, folders if "." in name.removesuffix(_INFO) else None

    def add(self, searches: Iterable[Search]) -> None:
        """Add searches that the parent process recorded; `drain` returned them there."""
        here = _absolute(sys.path)
        self._searches += [
            (name, here if folders is None else folders) for name, folders in searches
        ]

    def find_spec(self, name: str, path: Sequence[str] | None = None, _: Any = None) -> None:
        """Record one search; find nothing."""
        search = name, _absolute(sys.path if path is None else path)
        if not self._searches or self._searches[-1] != search:  # an import asks `PathFinder`, too
            self._searches.append(search)

    def find_distributions(self, context: Any) -> Iterable[Any]:
        """Record that a distribution is searched for; find nothing."""
        if context.name:
            name = re.sub(r"[-_.]+", "_", context.name).lower()
            self._searches.append((name + _INFO, _absolute(context.path)))
        return ()

    def missed(self) -> Iterator[str]:
        """Yield the files that the searches since the last call would have found, had they existed.

        Files in installed packages and the standard library are left out, since a package changes
        only as a whole. But if a module was found nowhere, files in the folders of installed
        packages are included: a package that is installed later would provide the module.

        For a distribution that was searched for, yield paths that end in ``NAME.dist-info``,
        without the version, whether or not the distribution is installed.
        """
        searches, self._searches = self._searches, []
        names: dict[str, frozenset[str]] = {}
        for name, searched in searches:
            folders = searched or ()
            if name.endswith(_INFO):
                yield from (
                    f"{f}/{name}" for f in folders if "-packages" in f or not is_installed(f)
                )
                continue
            spec = getattr(sys.modules.get(name), "__spec__", None)
            origin = str(getattr(spec, "origin", None) or "")
            if origin in ("built-in", "frozen"):
                continue
            if spec is not None and not origin:
                parts = getattr(spec, "submodule_search_locations", None) or ()
                self._present += [str(part) for part in parts if not is_installed(str(part))]
            tail = name.rpartition(".")[2]
            for folder in folders:
                wanted = not is_installed(folder) or (spec is None and "-packages" in folder)
                if wanted and not folder.endswith(".zip"):
                    if folder not in names:
                        names[folder] = _names(folder)
                    for candidate, is_there in _candidates(folder, tail, names[folder]):
                        if candidate == origin:
                            break
                        if not is_there:
                            yield candidate
                        elif spec is None:
                            self._present.append(candidate)
                            origin = candidate
                            break
                if origin.startswith((f"{folder}/{tail}.", f"{folder}/{tail}/")):
                    break

    def present(self) -> list[str]:
        """Return the files of modules that were searched for and found, but not imported.

        The folders of a namespace package (without an ``__init__`` file) are returned even if it
        was imported.

        Call `missed` first, since it collects the paths that this method returns. A second call
        returns only paths that `missed` has collected in the meantime.
        """
        present, self._present = self._present, []
        return present


def at_start() -> Iterator[str]:
    """Yield the missing files that the interpreter would import when it starts, if they existed."""
    folders = [path for path in _absolute(sys.path) if path.startswith("/")]
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    for name in ("sitecustomize", *(["usercustomize"] if site.ENABLE_USER_SITE else [])):
        origin = str(getattr(sys.modules.get(name), "__file__", None) or "")
        for folder in folders:
            if origin.startswith(f"{folder}/{name}"):
                break
            if folder in named or "-packages" in folder:
                ends = ("", ".py")
                yield from (p for end in ends if not os.path.lexists(p := f"{folder}/{name}{end}"))


def _absolute(entries: Sequence[str]) -> tuple[str, ...]:
    """Make relative folders absolute; drop entries that only an import hook understands."""
    folders = tuple(entries)
    if all(isinstance(folder, str) and folder.startswith("/") for folder in folders):
        return folders
    here = os.getcwd()  # noqa: PTH109
    texts = [folder for folder in folders if isinstance(folder, str)]
    absolute = [os.path.normpath(os.path.join(here, text)) for text in texts]  # noqa: PTH118
    pairs = zip(absolute, texts, strict=True)
    return tuple(path for path, text in pairs if not _NO_FOLDER.fullmatch(text))


def _set_finder(method: Any) -> None:
    """Set `method` as ``find_spec`` of `PathFinder`, the finder that searches ``sys.path``."""
    finder: Any = machinery.PathFinder
    finder.find_spec = method


def _names(folder: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return frozenset()


def _candidates(folder: str, tail: str, there: frozenset[str]) -> Iterator[tuple[str, bool]]:
    """Yield the paths where an import looks for a module in one folder, in the import's order.

    Parameters
    ----------
    folder : str
    tail : str
        The module's name without its package.
    there : frozenset of str
        The names in the folder.

    Yields
    ------
    str
        The path. If `folder` does not exist, it is the only path. If `folder` contains a folder
        with the module's name, this inner folder is the last path: without an ``__init__`` file, it
        is a part of a namespace package.
    bool
        True if the path exists.
    """
    if not there and not os.path.isdir(folder):  # noqa: PTH112
        if not os.path.lexists(folder):
            yield folder, False
        return
    base = f"{folder.rstrip('/')}/{tail}"
    suffixes = [
        *machinery.EXTENSION_SUFFIXES,
        *machinery.SOURCE_SUFFIXES,
        *machinery.BYTECODE_SUFFIXES,
    ]
    if tail in there:
        for suffix in suffixes:
            path = f"{base}/__init__{suffix}"
            yield path, os.path.lexists(path)
    else:
        yield base, False
    for suffix in suffixes:
        # A name that appeared since the folder was listed counts, too.
        yield base + suffix, tail + suffix in there or os.path.lexists(base + suffix)
    if tail in there:
        yield base, True
