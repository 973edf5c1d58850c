"""Detect ops that are their own reference, since they would pass whatever they compute."""

from __future__ import annotations

import ast
import os

from gpuemu_flow.config.model_ops import ProgramRef
from gpuemu_flow.syntax import parse_python

_LONGEST_CHAIN = 8
_LARGEST_FILE = 1 << 20


def is_same_program(op: ProgramRef, reference: ProgramRef) -> bool:
    """Tell whether an op and its reference are the same program.

    Links are followed. Within one file, aliases of a function are followed, too: ``fast = slow``
    and ``fast = partial(slow)``. A partial with arguments counts as another function, since a flag
    may select another algorithm.

    If a function makes the program from a file (``loads``), the files are compared instead. It is
    not known which function of a file runs, so an op that loads the reference's file counts as the
    same program.
    """
    if op.loads is not None or reference.loads is not None:
        return _made_of(op) == _made_of(reference)
    if op.path is None or reference.path is None:
        return op.path is reference.path and _identity(op) == _identity(reference)
    if os.path.realpath(op.path) != os.path.realpath(reference.path):
        return False
    if not op.function or not reference.function:
        return _identity(op) == _identity(reference)
    if op.function == reference.function:
        # A flag in the arguments of a module may choose another computation.
        return op.kind != "torch" or op.argv == reference.argv
    names = _other_names(os.path.realpath(op.path))
    return _last(op.function, names) == _last(reference.function, names)


def _made_of(program: ProgramRef) -> str:
    """Return the real path of the program's file; for an installed module, the module's name."""
    path = program.loads or program.path
    return os.path.realpath(path) if path is not None else program.module


def _identity(program: ProgramRef) -> tuple[str, str, str, tuple[str, ...]]:
    """Return the properties, besides its path, that identify a program."""
    return program.kind, program.module, program.function, program.argv[1:]


def _last(name: str, names: dict[str, str]) -> str:
    for _ in range(_LONGEST_CHAIN):
        name = names.get(name, name)
    return name


def _other_names(path: str) -> dict[str, str]:
    """Map each top-level alias of a function in a file to the function's name."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a resolved path
            tree = parse_python(file.read(_LARGEST_FILE), path)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    found: dict[str, str] = {}
    for statement in tree.body:
        if not isinstance(statement, ast.Assign):
            continue
        value: ast.expr = statement.value
        if isinstance(value, ast.Call) and _is_partial(value.func) and not value.keywords:
            value = value.args[0] if len(value.args) == 1 else value
        if isinstance(value, ast.Name):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    found[target.id] = value.id
    return found


def _is_partial(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name == "partial"
