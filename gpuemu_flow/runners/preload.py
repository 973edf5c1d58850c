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

_PACKAGE = __package__.partition(".")[0]
_TASKS = Path("/proc/self/task")


class PreloadError(Exception):
    """Raised if a package cannot be imported here; this process must not fork workers any more."""


_names: frozenset[str] = frozenset()


def preloaded_names() -> frozenset[str]:
    """Return the top-level modules that `preload` imported, or looked for in vain.

    It did so in this process or in its parent process, and not in a program's own folders.
    """
    return _names


class _NotFound:
    """The last import finder, which is asked only for modules that no other one has found."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        self.names.add(name)


def preload(framework: str) -> None:
    """Import an installed package in this process, which is going to fork workers.

    Raises PreloadError: The package is not installed, or its import failed, loaded other code or
    started a thread.
    """
    global _names  # noqa: PLW0603 - inherited by all processes that are forked
    before, path = set(sys.modules), list(sys.path)
    sys.path[:] = [entry for entry in path if is_installed(entry)]
    sys.path_importer_cache.clear()
    missing = _NotFound()
    try:
        origin = getattr(importlib.util.find_spec(framework), "origin", None)
        if not isinstance(origin, str) or not is_installed(origin):
            raise PreloadError(f"{framework} is not installed as a package")
        sys.meta_path.append(missing)
        importlib.import_module(framework)
    except PreloadError:
        raise
    except BaseException as error:  # a broken package may raise anything
        raise PreloadError(f"{type(error).__name__}: {error}") from None
    finally:
        if missing in sys.meta_path:
            sys.meta_path.remove(missing)
        sys.path[:] = path
        sys.path_importer_cache.clear()
    new = set(sys.modules) - before
    _demand_installed(new)
    if len(os.listdir(_TASKS)) > 1:  # noqa: PTH208
        raise PreloadError(f"{framework} starts threads")
    _names = frozenset(name for name in new | missing.names if "." not in name)


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
