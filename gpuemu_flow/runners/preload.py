"""Import a framework once in a fork server, instead of in each worker forked from it.

The code of a workspace never runs here: only an installed package is imported, and ``sys.path``
holds nothing but installed packages and the standard library. Each worker is treated as if it had
read the files that the import read.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path

from gpuemu_flow.installed import is_installed
from gpuemu_flow.runners.searches import Search, Searches

_PACKAGE = __package__.partition(".")[0]
_TASKS = Path("/proc/self/task")


class PreloadError(Exception):
    """Raised if a package cannot be imported here; this process must not fork workers any more."""


_searches: tuple[Search, ...] = ()


def preloaded_searches() -> tuple[Search, ...]:
    """Return the module searches that `preload` made in this process, or in its parent process.

    Each worker repeats these searches in the folders of its own program, where `preload` did not
    look. The result is empty if nothing was preloaded.
    """
    return _searches


def preload(framework: str) -> None:
    """Import an installed package in this process, which is going to fork workers.

    Raises
    ------
    PreloadError
        The package is not installed, or its import failed, loaded other code or started a thread.
    """
    global _searches  # noqa: PLW0603 - inherited by all processes that are forked
    before, path = set(sys.modules), list(sys.path)
    sys.path[:] = [entry for entry in path if is_installed(entry)]
    sys.path_importer_cache.clear()
    searches = Searches()
    try:
        origin = getattr(importlib.util.find_spec(framework), "origin", None)
        if not isinstance(origin, str) or not is_installed(origin):
            raise PreloadError(f"{framework} is not installed as a package")
        searches.install()
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
    _searches = tuple(searches.drain())


def _demand_installed(modules: set[str]) -> None:
    """Raise PreloadError if any of the modules belongs to a workspace."""
    ours = sys.modules[_PACKAGE].__path__[0] + os.sep
    for name in modules:
        origin = getattr(sys.modules.get(name), "__file__", None)
        # `multiprocessing` enters the main module, which is ours, under another name.
        if not isinstance(origin, str) or origin.startswith(ours):
            continue
        if origin.startswith("/") and not is_installed(origin):
            raise PreloadError(f"{name} was loaded from {origin}")
