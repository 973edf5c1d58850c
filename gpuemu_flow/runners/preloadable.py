"""Choose the framework that a program's fork server imports before it forks workers."""

from __future__ import annotations

import functools
import os
import site
import sys
import sysconfig
from collections.abc import Mapping
from importlib import machinery

from gpuemu_flow.installed import is_installed
from gpuemu_flow.runners.api import Program

FRAMEWORKS = ("torch",)
"""Packages whose import starts no thread, since a process with threads cannot be forked."""

_PACKAGE = __package__.partition(".")[0]
_SUFFIXES = tuple(machinery.all_suffixes())


def framework_of(program: Program) -> str:
    """Return the framework that a program's fork server should import; empty for none.

    The result is empty, too, if a module in the program's folders has the same name as an installed
    or standard module. If the framework has already imported the installed or standard module, a
    program that runs in the same process gets this module instead of its own.
    """
    if program.framework not in FRAMEWORKS or program.isolation == "spawn":
        return ""
    if program.python or program.kind == "command" or _hides_modules(program):
        return ""
    return program.framework


def identity(framework: str) -> str:
    """Return the path, modification time and size of an installed package's ``__init__.py``.

    Empty if the package is not installed.
    """
    for folder in _installed_folders():
        path = f"{folder}/{framework}/__init__.py"
        try:
            found = os.stat(path)  # noqa: PTH116 - asked for each worker
        except OSError:
            continue
        return f"{path}:{found.st_mtime_ns}:{found.st_size}"
    return ""


def _hides_modules(program: Program) -> bool:
    """Return True if a module in the program's folders has the name of a library module."""
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
