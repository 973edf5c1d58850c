"""Read a Python file's import statements, and find the files of the modules that they name."""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gpuemu_flow.syntax import parse_python

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_MOST_TEXTS = 2000


BY_PATH = -1
"""Value of `Import.level` for a file that is run by its path.

`Import.base` is then the path, as far as the source gives it.
"""
_BY_NAME = frozenset({"import_module", "__import__"})
_BY_PATH = frozenset({"run_path", "spec_from_file_location", "SourceFileLoader"})
_CALLS = re.compile("|".join(sorted(_BY_NAME | _BY_PATH)))


class Import(NamedTuple):
    """An import statement: ``from base import names``, or ``import base``.

    The call of a function that imports is stored in the same form; see `BY_PATH`.
    """

    base: str
    level: int = 0
    names: tuple[str, ...] = ()


@functools.lru_cache(maxsize=_MOST_TEXTS)
def imports_of(source: bytes | str) -> tuple[Import, ...]:
    """List the imports in a source text, including those in functions; empty for invalid source.

    Calls of functions that import, such as ``import_module``, are included.
    """
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
    text = source if isinstance(source, str) else source.decode("utf-8", "replace")
    if _CALLS.search(text):  # few files do so, and to look at all nodes is slow
        found.update(dict.fromkeys(_called(tree)))
    return tuple(found)


def _called(tree: ast.AST) -> Iterator[Import]:
    """Yield the imports that function calls make, if an argument gives the module or file."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = _name_of(call.func)
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        if name in _BY_NAME:
            first = arguments[0] if arguments else None
            text = first.value if isinstance(first, ast.Constant) else None
            if isinstance(text, str) and not text.startswith("."):
                yield Import(text)
        elif name in _BY_PATH:
            at = arguments[0 if name == "run_path" else 1 :][:1]
            yield Import("/".join(_texts(at)), BY_PATH)


def _name_of(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _texts(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the strings in expressions, such as those in ``Path(__file__).parent / "f.py"``."""
    for node in nodes:
        for each in ast.walk(node):
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                yield each.value


def files_by_path(imports: Iterable[Import], importer: str) -> Iterator[str]:
    """Yield the files that a source imports or runs by path, if they exist.

    Parameters
    ----------
    imports : iterable of Import
    importer : str
        File that contains the source; paths are relative to its folder or to the current folder.
    """
    for one in imports:
        if one.level == BY_PATH and one.base:
            places = (Path(importer).parent / one.base, Path(one.base).absolute())
            yield from [str(place) for place in places if place.is_file()][:1]


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements of a syntax tree, without visiting the far more numerous expressions."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name in _BLOCKS:
            waiting.extend(getattr(node, name, ()))


@functools.lru_cache(maxsize=_MOST_TEXTS)
def modules_of(imports: tuple[Import, ...], package: str) -> tuple[str, ...]:
    """List the full names of the modules that imports may load, each once, parents first.

    In ``from base import name``, the name may be that of a value. Therefore, a module that is
    listed need not exist.

    Parameters
    ----------
    imports : tuple of Import
    package : str
        Package of the importing module, to which relative imports refer.
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
    if one.level < 0:
        return None
    parts = package.split(".") if package else []
    if one.level > len(parts):
        return None
    return ".".join([*parts[: len(parts) - one.level + 1], *filter(None, [one.base])])


def file_of(name: str) -> str | None:
    """Return the file that is loaded when a module is imported; None if there is no such file.

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
