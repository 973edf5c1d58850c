"""Find functions that a configuration names but that their files do not define."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gpuemu_flow.config.model import Config
from gpuemu_flow.config.model_ops import OpConfig, ProgramRef
from gpuemu_flow.config.report import shown
from gpuemu_flow.errors import Problem, did_you_mean
from gpuemu_flow.syntax import parse_python
from gpuemu_flow.types import IN_PROCESS

LARGEST = 4 << 20
"""Maximum size in bytes of a file to examine."""

_UNTOLD = frozenset(("exec", "eval", "globals", "locals", "vars", "setattr", "__getattr__"))
"""Names with which a module may define further names that its syntax does not show."""


class _Names(NamedTuple):
    """All names that occur in a file, and the names of its functions."""

    used: frozenset[str]
    functions: tuple[str, ...]


def missing_functions(config: Config) -> Iterator[Problem]:
    """Yield an error for each function that its file cannot define. Nothing is imported or run."""
    known: dict[Path, _Names | None] = {}
    told: set[tuple[int, str]] = set()
    for op in config.ops:
        for ref in _functions(op):
            if ref.path is None or not ref.function.isidentifier() or (ref.line, ref.text) in told:
                continue
            if ref.path not in known:
                known[ref.path] = _names_of(ref.path)
            names = known[ref.path]
            if names is not None and ref.function not in names.used:
                told.add((ref.line, ref.text))
                text = f"there is no function {shown(ref.function)} in {ref.relative}"
                hint = did_you_mean(ref.function, names.functions)
                yield Problem("config-no-function", text, hint, ref.file, ref.line)


def _functions(op: OpConfig) -> Iterator[ProgramRef]:
    for ref in (op.op, op.reference, *op.compares, *op.generators.values()):
        if ref is not None and ref.kind in IN_PROCESS:
            yield ref


def _names_of(path: Path) -> _Names | None:
    """Return the names that occur in a module.

    Return None if the file cannot be parsed, or if the module may define names that do not occur in
    its text.
    """
    try:
        with path.open("rb") as file:
            source = file.read(LARGEST + 1)
        if len(source) > LARGEST:
            return None
        tree = parse_python(source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            if node.name == "*":
                return None
            names.add(node.asname or node.name.split(".", maxsplit=1)[0])
        elif isinstance(node, ast.Attribute) and node.attr in ("__dict__", "modules"):
            return None
    if names & _UNTOLD:
        return None
    functions = (node.name for node in tree.body if isinstance(node, ast.FunctionDef))
    return _Names(frozenset(names), tuple(functions))
