"""Find the expressions in a reference's source whose values have to be rounded.

A rounded shadow is a copy of the reference that computes in float32, and passes these values to
`operand.rounded`, which rounds them to a narrow type. See `shadow`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from msgspec import Struct

OPEN, CLOSE = '__import__("gpuemu_flow.numerics.operand").numerics.operand.rounded(', ")"
"""Text around a wrapped value. It needs no import at the top, so that line numbers stay."""

_ALL = 99
_OPERANDS = {  # functions and methods: which of their positional arguments are multiplied
    **dict.fromkeys(("matmul", "dot", "vdot", "inner", "vecdot", "matvec", "vecmat"), (0, 2)),
    **dict.fromkeys(("tensordot", "mm", "bmm", "mv", "chain_matmul", "multi_dot"), (0, 2)),
    **dict.fromkeys(("linear", "bilinear", "convolve", "correlate"), (0, 2)),
    **dict.fromkeys(("convolve2d", "correlate2d"), (0, 2)),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "conv"), (0, 2)),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), (0, 2)),
    **dict.fromkeys(("dot_general", "batch_matmul", "conv_general_dilated"), (0, 2)),
    **dict.fromkeys(("einsum", "contract"), (0, _ALL)),
    "scaled_dot_product_attention": (0, 3),
}
_ADDED = ("addmm", "baddbmm", "addbmm", "addmv")
"""Functions that multiply their last two arguments and add the product to the first."""
_KEYWORDS = (
    "a", "b", "x1", "x2", "v", "input", "other", "mat", "mat1", "mat2", "vec", "vec2", "batch1",
    "batch2", "tensor", "tensor1", "tensor2", "weight", "lhs", "rhs", "query", "key", "value",
)  # fmt: skip
_VIEWS = (
    "reshape", "view", "ravel", "flatten", "transpose", "swapaxes", "squeeze", "unsqueeze",
    "expand_dims", "broadcast_to", "permute", "moveaxis", "atleast_1d", "atleast_2d", "asarray",
    "asanyarray", "ascontiguousarray", "contiguous", "sliding_window_view", "as_strided",
    "expand", "numpy", "from_numpy", "super", "zeros", "empty", "ones", "full", "zeros_like",
    "empty_like", "ones_like", "full_like",
)  # fmt: skip
"""Calls whose result shares memory with something, or holds nothing to round."""
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.MatMult)


class Edit(Struct, frozen=True):
    """An edit that replaces bytes ``start:end`` of one source line in UTF-8."""

    line: int
    start: int
    end: int
    text: str


def wrapping_edits(tree: ast.Module, wrap: str) -> Iterator[Edit]:
    """Yield the edits that put expressions of a source into calls of `operand.rounded`."""
    steps = wrap == "steps"
    left_alone = _left_alone(tree)
    wrapped: set[int] = set()
    for node in ast.walk(tree):
        if id(node) in left_alone:
            continue
        places = list(_operands(node))
        if steps and isinstance(node, ast.expr) and _is_step(node):
            places.append(node)
        for place in places:
            if id(place) not in wrapped and id(place) not in left_alone:
                wrapped.add(id(place))
                yield from _around(place)


def _operands(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        yield from (node.left, node.right)
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.MatMult):
        yield node.value
    elif isinstance(node, ast.Call):
        name = _name(node)
        if name in _ADDED:
            given = node.args[-2:]
        elif name in _OPERANDS:
            if isinstance(node.func, ast.Attribute):
                yield node.func.value  # x.dot(y), where x may be a module: modules are not wrapped
            given = node.args[slice(*_OPERANDS[name])]
        else:
            return
        yield from (a for a in given if not isinstance(a, ast.Starred))
        yield from (k.value for k in node.keywords if k.arg in _KEYWORDS)


def _is_step(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, _ARITHMETIC)
    return isinstance(node, ast.Call) and _name(node) not in _VIEWS


def _name(call: ast.Call) -> str:
    """Return the last part of a called function's name; empty if it has none."""
    called = call.func
    return called.attr if isinstance(called, ast.Attribute) else str(getattr(called, "id", ""))


def _left_alone(tree: ast.Module) -> set[int]:
    """Return the ids of the expressions that cannot or must not be wrapped.

    These are f-strings (before Python 3.12 their positions are wrong), targets of assignments,
    patterns, decorators and annotations.
    """
    roots: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            roots.append(node)
        elif isinstance(node, (ast.Assign, ast.Delete)):
            roots += node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.For, ast.comprehension)):
            roots.append(node.target)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            roots += node.decorator_list
        elif isinstance(node, ast.match_case):
            roots.append(node.pattern)
    return {id(inner) for root in roots for inner in ast.walk(root)}


def _around(node: ast.expr) -> Iterator[Edit]:
    if node.end_lineno is None or node.end_col_offset is None:
        return
    yield Edit(node.lineno, node.col_offset, node.col_offset, OPEN)
    yield Edit(node.end_lineno, node.end_col_offset, node.end_col_offset, CLOSE)
