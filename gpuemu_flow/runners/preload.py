"""Import a framework once in a fork server, so that the workers forked from it need not.

Only an installed package is imported so, with nothing but installed packages and the standard
library on ``sys.path``: the code of a workspace never runs here. What the import read counts as
read by each worker, as if it had imported the package itself.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.runners import libraries, variables
from gpuemu_flow.runners.imports import is_installed
from gpuemu_flow.runners.searches import Search, Searches

_PACKAGE = __package__.partition(".")[0]
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
    """Return the observations of the import in this process, or in the one it was forked from."""
    return _preloaded


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
