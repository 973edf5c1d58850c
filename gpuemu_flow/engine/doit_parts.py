"""Import the parts of doit that we use, without its command line.

doit's ``__init__`` imports the command line and all plugins, which would double the import time.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _as_a_mere_folder(package: str) -> Iterator[None]:
    """Import modules of a package without its ``__init__``; unregister them when the context ends.

    Then a later import by other code in this process, such as under pytest, gets the whole package.
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


with _as_a_mere_folder("doit"):
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
