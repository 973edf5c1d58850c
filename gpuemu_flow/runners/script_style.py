"""Distinguish scripts that speak the protocol from those that define a function to be called."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

from gpuemu_flow.syntax import parse_python

_READERS = ("stdin", "__stdin__", "fileinput")
_STDIN_PATHS = ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
_OPENERS = ("open", "fdopen", "read", "FileIO", "readv")
_DEFINING = (
    ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign,
    ast.Try, ast.Pass,
)  # fmt: skip


def _called_name(node: ast.Call) -> str:
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _reads_stdin(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        name = _called_name(node)
        first = node.args[0] if node.args else None
        opened = isinstance(first, ast.Constant) and first.value == 0
        return (name == "input" and isinstance(node.func, ast.Name)) or (
            name in _OPENERS and opened
        )
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value in _STDIN_PATHS
    names = [getattr(node, "attr", ""), getattr(node, "id", "")]
    if isinstance(node, ast.alias):
        names.append(node.name)
    return any(name in _READERS for name in names)


def _only_defines(node: ast.stmt) -> bool:
    """Tell whether a top-level statement only defines names."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)  # a docstring
    if isinstance(node, ast.If):
        names = {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}
        return "__name__" not in names and all(map(_only_defines, node.body + node.orelse))
    return isinstance(node, _DEFINING)


@lru_cache(maxsize=4)
def function_to_call(source: bytes, path: str) -> str:
    """Return the name of the function to call in a script; empty for a protocol script.

    A function is called if the script only defines things, never mentions standard input, and has a
    function named ``reference``, ``op`` or ``kernel``, or named like the file. The first of these
    names that exists is returned. A script with a ``__main__`` block is a protocol script, since
    the block may call a helper module that reads the request.

    Raises SyntaxError, ValueError: The source does not parse.
    """
    tree = parse_python(source, path)
    if not all(map(_only_defines, tree.body)) or any(map(_reads_stdin, ast.walk(tree))):
        return ""
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    wanted = ("reference", "op", "kernel", Path(path).stem)
    return next((name for name in wanted if name in defined), "")
