"""The integers that a problem's file assigns at its top level, and other values in their place."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping

_LARGEST = 1 << 40
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.LShift: lambda a, b: a << min(b, 64),
    ast.Pow: lambda a, b: a ** min(b, 64),
}


def constants_in(tree: ast.Module) -> dict[str, int]:
    """Return the integers by name; `NAME_0`, `NAME_1`, … are the elements of a tuple or list.

    ``2048 * 2`` is one, ``2 * N`` is none: it follows from `N`.
    """
    return {name: value for name, value, _, _ in _places(tree)}


def replace_constants(tree: ast.Module, values: Mapping[str, int]) -> None:
    """Put other values in the place of those in the file."""
    for name, _, parent, at in [*_places(tree)]:
        if name in values:
            new = ast.Constant(values[name])
            if isinstance(parent, (ast.Tuple, ast.List)):
                parent.elts[at] = ast.copy_location(new, parent)
            else:
                parent.value = ast.copy_location(new, parent)


def _places(
    tree: ast.Module,
) -> Iterator[tuple[str, int, ast.Assign | ast.AnnAssign | ast.Tuple | ast.List, int]]:
    """Yield each integer's name and value, the node that holds it, and its index in a tuple."""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign):
            target: ast.expr = node.target
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        else:
            continue
        value = node.value
        if isinstance(target, ast.Tuple):  # batch, dim = 16, 1024
            names = [one.id if isinstance(one, ast.Name) else "" for one in target.elts]
        elif isinstance(target, ast.Name) and isinstance(value, (ast.Tuple, ast.List)):
            names = [f"{target.id}_{at}" for at in range(len(value.elts))]
        elif isinstance(target, ast.Name):
            size = _integer(value)
            if size is not None:
                yield target.id, size, node, 0
            continue
        else:
            continue
        if isinstance(value, (ast.Tuple, ast.List)) and len(names) == len(value.elts):
            for at, name in enumerate(names):
                size = _integer(value.elts[at])
                if name and size is not None:
                    yield name, size, value, at


def _integer(node: ast.expr | None) -> int | None:
    """Compute an expression of integers alone; None for all others."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _integer(node.left), _integer(node.right)
        if left is None or right is None or left > _LARGEST or not 0 <= right <= _LARGEST:
            return None
        if isinstance(node.op, ast.FloorDiv) and right == 0:
            return None
        value = _OPERATORS[type(node.op)](left, right)
        return value if abs(value) <= _LARGEST else None
    return None
