"""Find the file and the name under which the function of a reference is defined."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from gpuemu_flow.config.model import ProgramRef
from gpuemu_flow.inputs.sources import SourceIndex
from gpuemu_flow.syntax import parse_python

_LONGEST_CHAIN = 8
_INVALID = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)


def definition_of(program: ProgramRef, sources: SourceIndex) -> tuple[Path, str] | None:
    """Return the file and the name that a program's function is imported from.

    Imports of the workspace's modules, and aliases of the function, are followed.

    Returns
    -------
    tuple of Path and str, or None
        None if the function is not imported from a file of the workspace.
    """
    if program.path is None or not program.function:
        return None
    start = path = program.path
    name = program.function
    for _ in range(_LONGEST_CHAIN):
        found = _next(path, name, start.parent, sources)
        if found is None:
            break
        path, name = found
    return None if path == start else (path, name)


def _next(path: Path, name: str, folder: Path, sources: SourceIndex) -> tuple[Path, str] | None:
    """Follow one alias or import; None if the name is defined in the file, or is not known."""
    first, _, rest = name.partition(".")
    try:
        source = path.read_bytes()
        if re.search(rb"^(?:async +def|def|class) +%b\b" % first.encode(), source, re.MULTILINE):
            return None
        tree = parse_python(source, str(path))
    except _INVALID:
        return None
    found = None
    for node in _statements(tree.body):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            if any(isinstance(target, ast.Name) and target.id == first for target in node.targets):
                found = path, ".".join(filter(None, (node.value.id, rest)))
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == first:
                    files = sources.imported(node.module or "", node.level, path, folder)
                    whole = ".".join(filter(None, (alias.name, rest)))
                    found = (files[-1], whole) if files else None
        elif isinstance(node, ast.Import) and rest:
            for alias in node.names:
                if alias.asname == first or (alias.asname is None and alias.name == first):
                    files = sources.imported(alias.name, 0, path, folder)
                    found = (files[-1], rest) if files else None
    return found


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module that are outside of functions and classes."""
    for node in body:
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            branches = [*getattr(node, "handlers", []), *getattr(node, "cases", [])]
            for part in (node, *branches):
                for name in ("body", "orelse", "finalbody"):
                    yield from _statements(getattr(part, name, []))
