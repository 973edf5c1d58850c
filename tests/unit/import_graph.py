"""Every import of the package as data, read from the syntax trees without importing anything."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import gpuemu_flow

PACKAGE = "gpuemu_flow"
ROOT = Path(gpuemu_flow.__file__).parent


@dataclass(frozen=True)
class Import:
    """One import.

    Attributes
    ----------
    module : str
        The module that holds it, such as ``gpuemu_flow.build.run``.
    target : str
        The module that it names: the longest dotted name that is a module of ours, else as
        written.
    line : int
    eager : bool
        It runs when `module` is imported; false inside functions.
    type_checking : bool
        It stands under ``if TYPE_CHECKING``.
    """

    module: str
    target: str
    line: int
    eager: bool
    type_checking: bool

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def source_files(root: Path = ROOT) -> dict[str, Path]:
    """Return the file of each module by the module's name."""
    found = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            if name.endswith(".py"):
                path = Path(folder, name)
                parts = [PACKAGE, *path.relative_to(root).with_suffix("").parts]
                found[".".join(parts).removesuffix(".__init__")] = path
    return found


def every_node(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree, in no order: `ast.walk` for many trees, at half its cost.

    The marks ``Load``, ``Store`` and ``Del`` are left out.
    """
    left = [tree]
    while left:
        node = left.pop()
        yield node
        for value in node.__dict__.values():
            if value.__class__ is list:
                left += [part for part in value if isinstance(part, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                left.append(value)


def read_imports(files: dict[str, Path], modules: Iterable[str] | None = None) -> list[Import]:
    """All imports of `modules`, by default of all `files`, ordered by module and line."""
    found: list[Import] = []
    for module in sorted(files if modules is None else modules):
        path = files[module]
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for node, eager, type_checking in _walk(tree, eager=True, type_checking=False):
            for name in _targets(node, package, files):
                found.append(Import(module, name, node.lineno, eager, type_checking))
    return found


def _walk(
    node: ast.AST, *, eager: bool, type_checking: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child, eager and not type_checking, type_checking
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for part in child.body:
                wrapped = ast.Module(body=[part], type_ignores=[])
                yield from _walk(wrapped, eager=eager, type_checking=True)
            for part in child.orelse:
                wrapped = ast.Module(body=[part], type_ignores=[])
                yield from _walk(wrapped, eager=eager, type_checking=type_checking)
        else:
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from _walk(child, eager=eager and not inside, type_checking=type_checking)


def _targets(
    node: ast.Import | ast.ImportFrom, package: str, files: dict[str, Path]
) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        parts = package.split(".")
        anchor = ".".join(parts[: len(parts) - node.level + 1])
        base = f"{anchor}.{base}".rstrip(".")
    for alias in node.names:
        name = f"{base}.{alias.name}"
        yield name if name in files else base


def cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected groups of more than one node, or with an edge to themselves (Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in sorted(edges.get(node, ())):
            if other not in order:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            group = []
            while not group or group[-1] != node:
                group.append(stack.pop())
            if len(group) > 1 or node in edges.get(node, ()):
                found.append(sorted(group))

    for node in sorted(edges):
        if node not in order:
            visit(node)
    return found
