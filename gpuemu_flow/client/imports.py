"""Read a Python file's import statements, and find the files of the modules that they name."""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from gpuemu_flow.syntax import parse_python

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_MOST_TEXTS = 2000


class Import(NamedTuple):
    """An import statement: ``from base import names``, or ``import base``."""

    base: str
    level: int = 0
    names: tuple[str, ...] = ()


@functools.lru_cache(maxsize=_MOST_TEXTS)
def imports_of(source: bytes | str) -> tuple[Import, ...]:
    """List a source text's imports, including those inside functions; empty if it is invalid."""
    try:
        tree = parse_python(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    found = dict[Import, None]()
    for node in _statements(tree):
        if isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            found[Import(node.module or "", node.level, names)] = None
        elif isinstance(node, ast.Import):
            found.update({Import(alias.name): None for alias in node.names})
    return tuple(found)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements, which are far fewer than all nodes."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name in _BLOCKS:
            waiting.extend(getattr(node, name, ()))


@functools.lru_cache(maxsize=_MOST_TEXTS)
def modules_of(imports: tuple[Import, ...], package: str) -> tuple[str, ...]:
    """List the full names of modules that imports may load, each once, parents first.

    In ``from base import name``, the name may belong to a value. Therefore, a yielded module need
    not exist.

    Parameters
    ----------
    imports : tuple of Import
    package : str
        Package of the importing module, for relative imports.
    """
    return tuple(dict.fromkeys(_names_of(imports, package)))


def _names_of(imports: Iterable[Import], package: str) -> Iterator[str]:
    for one in imports:
        base = _absolute(one, package)
        if base is None:
            continue
        parts = base.split(".") if base else []
        for count in range(1, len(parts) + 1):
            yield ".".join(parts[:count])
        for name in one.names:
            if name != "*" and base:
                yield f"{base}.{name}"


def _absolute(one: Import, package: str) -> str | None:
    if not one.level:
        return one.base
    parts = package.split(".") if package else []
    if one.level > len(parts):
        return None
    return ".".join([*parts[: len(parts) - one.level + 1], *filter(None, [one.base])])


def file_of(name: str) -> str | None:
    """Return the file that importing a module would load; None if there is no such file.

    Nothing is imported, not even the module's package.
    """
    found = _spec_of(name)
    return found.origin if found is not None and found.has_location else None


@functools.lru_cache(maxsize=_MOST_TEXTS)
def _spec_of(name: str) -> importlib.machinery.ModuleSpec | None:
    parent, _, _ = name.rpartition(".")
    folders: Any = None
    if parent:
        loaded = sys.modules.get(parent)
        spec = _spec_of(parent) if loaded is None else None
        folders = getattr(loaded, "__path__", None)
        folders = folders if spec is None else spec.submodule_search_locations
        if folders is None:
            return None
    try:
        return importlib.machinery.PathFinder.find_spec(name, folders)
    except (ImportError, AttributeError, ValueError, OSError):
        return None
