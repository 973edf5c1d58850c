"""Import the parts of doit that we use, without its command line.

doit's ``__init__`` imports the command line and all plugins, which would double the import time.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

_NEVER_CALLED = {"multiprocessing": ("Process", "Queue"), "pdb": ()}
"""Modules, with the names imported from them, that doit needs only to debug tasks and to run them
in processes. To import them takes as long as to import our parts of doit."""


@contextmanager
def _as_a_mere_folder(package: str) -> Iterator[None]:
    """Inside the context, let modules of a package be imported without running its ``__init__``.

    At the end, its modules are removed from `sys.modules`. Code that imports the package later in
    this process, such as under pytest, thus gets the whole package.
    """
    spec = None if package in sys.modules else importlib.util.find_spec(package)
    if spec is None:
        yield
        return
    sys.modules[package] = importlib.util.module_from_spec(spec)
    try:
        yield
    finally:
        for name in [n for n in sys.modules if n.partition(".")[0] == package]:
            del sys.modules[name]


class _NeverCalled:
    """Stands for a class that doit imports but never uses."""


@contextmanager
def _without_unused_modules() -> Iterator[None]:
    """Inside the context, replace the modules in `_NEVER_CALLED` by empty ones.

    Modules that are imported inside keep the empty ones; later imports get the real ones.
    """
    # Another thread could import one of them meanwhile, to use it.
    missing = set(_NEVER_CALLED) - set(sys.modules) if threading.active_count() == 1 else ()
    for module in missing:
        sys.modules[module] = empty = ModuleType(module)
        vars(empty).update(dict.fromkeys(_NEVER_CALLED[module], _NeverCalled))
    try:
        yield
    finally:
        for module in missing:
            del sys.modules[module]


with _as_a_mere_folder("doit"), _without_unused_modules():
    from doit.action import BaseAction
    from doit.control import TaskControl
    from doit.dependency import Dependency, DependencyStatus
    from doit.exceptions import BaseFail, TaskError, TaskFailed, UnmetDependency
    from doit.reporter import ZeroReporter
    from doit.runner import MThreadRunner
    from doit.task import Stream, Task

__all__ = [
    "BaseAction",
    "BaseFail",
    "Dependency",
    "DependencyStatus",
    "MThreadRunner",
    "Stream",
    "Task",
    "TaskControl",
    "TaskError",
    "TaskFailed",
    "UnmetDependency",
    "ZeroReporter",
]
