"""Import a framework once in a fork server, so that the workers forked from it need not.

Only an installed package is imported so, with nothing but installed packages and the standard
library on ``sys.path``: the code of a workspace never runs here. What the import read counts as
read by each worker, as if it had imported the package itself.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Mapping
from importlib import machinery
from pathlib import Path
from typing import Any

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.runners import libraries, variables
from gpuemu_flow.runners.api import Program
from gpuemu_flow.runners.imports import is_installed
from gpuemu_flow.runners.searches import Search, Searches

FRAMEWORKS = ("torch",)
"""Packages that start no thread when they are imported: a process with threads cannot be forked."""

_PACKAGE = __package__.partition(".")[0]
_SUFFIXES = tuple(machinery.all_suffixes())
_TASKS = Path("/proc/self/task")


class PreloadError(Exception):
    """Raised if a package cannot be imported here; this process must not fork workers any more."""


@dataclass(frozen=True)
class Preloaded:
    """The observations of an import, which count for each worker.

    Attributes
    ----------
    variables : tuple of str
        Environment variables that were read, or may have been by a library.
    searches : tuple
        Searches for modules; a worker looks for the same names in its own folders.
    """

    variables: tuple[str, ...] = ()
    searches: tuple[Search, ...] = ()


_preloaded = Preloaded()


def preloaded() -> Preloaded:
    """Return what this process, or the one that it was forked from, saw while it preloaded."""
    return _preloaded


def framework_of(program: Program) -> str:
    """Return the framework that a program's fork server is to import; empty for none.

    None is imported if a module of the workspace has the name of an installed one or one of the
    standard library: the program would get the module that the framework loaded, not its own.
    """
    if program.framework not in FRAMEWORKS or program.isolation == "spawn":
        return ""
    if program.python or program.kind == "command" or _hides_modules(program):
        return ""
    return program.framework


def identity(framework: str) -> str:
    """Return the file of an installed package, with its time and size; empty if there is none."""
    for folder in _installed_folders():
        path = f"{folder}/{framework}/__init__.py"
        try:
            found = os.stat(path)  # noqa: PTH116 - asked for each worker
        except OSError:
            continue
        return f"{path}:{found.st_mtime_ns}:{found.st_size}"
    return ""


def _hides_modules(program: Program) -> bool:
    """Return True if a folder that the program imports from has a module of a name in use."""
    given: Mapping[str, str] = {**os.environ, **program.env}
    named = filter(None, given.get("PYTHONPATH", "").split(os.pathsep))
    own = [os.path.dirname(program.path)] if program.path else []  # noqa: PTH120
    folders = {os.path.join(program.root, folder) for folder in (*own, program.root, *named)}  # noqa: PTH118
    used = _names_in_use()
    return any(
        not used.isdisjoint(_module_names(folder)) for folder in folders if not is_installed(folder)
    )


def _module_names(folder: str) -> set[str]:
    """Return the names of the modules and packages that a folder may hold."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.is_dir()) for entry in entries]
    except OSError:
        return set()
    return {
        name.partition(".")[0] for name, is_folder in found if is_folder or name.endswith(_SUFFIXES)
    }


def _installed_folders() -> list[str]:
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    folders += site.getsitepackages()
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return list(dict.fromkeys(folders))


@functools.cache
def _names_in_use() -> frozenset[str]:
    """Return the names of all modules of the standard library and of installed packages."""
    names = set(sys.stdlib_module_names)
    for folder in _installed_folders():
        names |= _module_names(folder)
    return frozenset(names - {"", _PACKAGE, "__pycache__"})


def preload(framework: str) -> None:
    """Import an installed package in this process, which is going to fork workers.

    Raises
    ------
    PreloadError
        It is not installed, it fails, its import loaded other code or started a thread.
    """
    global _preloaded  # noqa: PLW0603 - inherited by all processes that are forked
    before, path = set(sys.modules), list(sys.path)
    known_libraries = libraries.mapped()
    sys.path[:] = [entry for entry in path if is_installed(entry)]
    sys.path_importer_cache.clear()
    searches, names = Searches(), _WatchedVariables()
    try:
        origin = getattr(importlib.util.find_spec(framework), "origin", None)
        if not isinstance(origin, str) or not is_installed(origin):
            raise PreloadError(f"{framework} is not installed as a package")
        searches.install()
        with names:
            importlib.import_module(framework)
    except PreloadError:
        raise
    except BaseException as error:  # a broken package may raise anything
        raise PreloadError(f"{type(error).__name__}: {error}") from None
    finally:
        searches.remove()
        sys.path[:] = path
        sys.path_importer_cache.clear()
    _demand_installed(set(sys.modules) - before)
    if len(os.listdir(_TASKS)) > 1:  # noqa: PTH208
        raise PreloadError(f"{framework} starts threads")
    for library in libraries.mapped() - known_libraries:
        names.read.update(variables.read_by_library(library))
    _preloaded = Preloaded(tuple(sorted(names.read)), tuple(searches.asked()))


def _demand_installed(modules: set[str]) -> None:
    """Raise PreloadError if one of some modules is the code of a workspace."""
    ours = sys.modules[_PACKAGE].__path__[0] + os.sep
    for name in modules:
        origin = getattr(sys.modules.get(name), "__file__", None)
        # `multiprocessing` enters the main module, which is ours, under another name.
        if not isinstance(origin, str) or origin.startswith(ours):
            continue
        if origin.startswith("/") and not is_installed(origin):
            raise PreloadError(f"{name} was loaded from {origin}")


class _WatchedVariables:
    """Collects the names of the environment variables that are read while inside."""

    def __init__(self) -> None:
        self.read: set[str] = set()
        self._before: Any = None

    def __enter__(self) -> None:
        self._before = variables.plain_state()
        variables.watch(self.read.add, lambda _: None, ())

    def __exit__(self, *_: object) -> None:
        variables.restore(self._before)
