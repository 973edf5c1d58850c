"""Read the tolerances that a test compares with, for users who want to keep them."""

from __future__ import annotations

import ast

from gpuemu_flow.problems.asserted_found import Comparison, Test
from gpuemu_flow.problems.asserted_parameters import group_of
from gpuemu_flow.problems.asserted_problem import AssertedProblem
from gpuemu_flow.problems.asserted_values import Expander, NotUnderstoodError, dtype_of
from gpuemu_flow.types import Json

_NAMES = ("atol", "rtol")
_BY_DTYPE = {"float16": (1e-5, 1e-3), "bfloat16": (1e-5, 1.6e-2), "float32": (1e-5, 1.3e-6),
             "float64": (1e-7, 1e-7)}  # fmt: skip
"""Absolute and relative tolerances of ``torch.testing.assert_close``."""


def tolerances_of(
    comparison: Comparison, compared: AssertedProblem, test: Test
) -> tuple[dict[str, Json], str]:
    """Return the tolerances of a comparison in `test` for each dtype of `compared`, and a note.

    If a tolerance cannot be determined, no tolerances are returned, and the note says why.
    Otherwise the note is empty.
    """
    found: dict[str, Json] = {}
    for dtype in compared.dtypes:
        default = _default(comparison, dtype)
        values = []
        for at, name in enumerate(_NAMES):
            node = comparison.tolerances.get(name)
            try:
                value = default[at] if node is None else _value(node, dtype, test)
            except NotUnderstoodError as error:
                return {}, f"its tolerance is not told by its text: {error}"
            values.append(value)
        found[dtype] = dict(zip(_NAMES, values, strict=True))
    return found, ""


def _default(comparison: Comparison, dtype: str) -> tuple[float, float]:
    function = comparison.function
    if function.endswith("equal") or function == "abs().max()":
        return 0.0, 0.0
    if function.startswith("np") and function.endswith("assert_allclose"):
        return 0.0, 1e-7
    if function.endswith("assert_close"):
        return (0.0, 0.0) if comparison.tolerances else _BY_DTYPE.get(dtype, (0.0, 0.0))
    return 1e-8, 1e-5


def _value(node: ast.expr, dtype: str, test: Test) -> float:
    expander = Expander(ast.Module(test.node.body, []))
    if isinstance(node, ast.Name):
        group = group_of(test.groups, node.id)
        if group is not None:
            at = group.names.index(node.id)
            rows = [row for row in group.rows if dtype in map(dtype_of, row)] or group.rows
            values = {_number(row[at], expander) for row in rows}
            return max(values)
    if isinstance(node, ast.IfExp):
        for each in ast.walk(node.test):
            if isinstance(each, ast.expr) and dtype_of(each):
                same = dtype_of(each) == dtype
                equal = not any(isinstance(one, ast.NotEq) for one in ast.walk(node.test))
                return _value(node.body if same is equal else node.orelse, dtype, test)
    return _number(node, expander)


def _number(node: ast.expr, expander: Expander) -> float:
    value = expander.plain(node)
    if type(value) not in (int, float) or not 0 <= value < 1e30:
        raise NotUnderstoodError(f"no tolerance: {ast.unparse(node)[:80]}")
    return float(value)
