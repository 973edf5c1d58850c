"""Rewrite a kernel's source so that its values have the types that a compiler gives them."""

from __future__ import annotations

import ast
from typing import Any

HELPER = "_gpuemu_values"
"""Name under which a rewritten kernel finds the `Values` of `triton_types`."""
EXTREMES = {"min": "builtin_min", "max": "builtin_max"}
"""Functions of Python, and the functions that replace them in a kernel."""


def _helper(method: str, *args: ast.expr, like: ast.AST) -> Any:
    name = ast.Attribute(value=ast.Name(id=HELPER, ctx=ast.Load()), attr=method, ctx=ast.Load())
    return ast.copy_location(ast.Call(func=name, args=list(args), keywords=[]), like)


def _later(value: ast.expr) -> ast.expr:
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(args=nothing, body=value)


def _binds(node: ast.AST) -> bool:
    return any(isinstance(part, ast.NamedExpr) for part in ast.walk(node))


def transformer(base: Any) -> Any:
    """Return a class that rewrites kernels: a subclass of `base`, Triton's ``ASTTransformer``."""

    class Transformer(base):  # type: ignore[misc]
        """Rewrites a kernel's source; its values then have the types that a compiler gives them."""

        def visit_Assign(self, node: ast.Assign) -> Any:  # noqa: N802
            if len(node.targets) > 1:
                return super().visit_Assign(node)
            self.generic_visit(node)
            node.value = _helper("assigned", node.value, like=node.value)
            return node

        def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:  # noqa: N802
            self.generic_visit(node)
            if node.value is not None and "constexpr" not in ast.unparse(node.annotation):
                node.value = _helper("assigned", node.value, like=node.value)
            return node

        def visit_AugAssign(self, node: ast.AugAssign) -> Any:  # noqa: N802
            self.generic_visit(node)
            if not isinstance(node.target, ast.Name):
                return node
            before = ast.Name(id=node.target.id, ctx=ast.Load())
            after = ast.copy_location(ast.BinOp(before, node.op, node.value), node)
            value = _helper("assigned", after, like=node)
            return ast.copy_location(ast.Assign(targets=[node.target], value=value), node)

        def visit_For(self, node: ast.For) -> Any:  # noqa: N802
            self.generic_visit(node)
            call = node.iter
            if isinstance(call, ast.Call):
                called = call.func
                name = called.attr if isinstance(called, ast.Attribute) else ast.unparse(called)
                if name != "static_range":
                    made = _helper("loop", called, *call.args, like=call)
                    made.keywords = call.keywords
                    node.iter = made
            return node

        def visit_BoolOp(self, node: ast.BoolOp) -> Any:  # noqa: N802
            self.generic_visit(node)
            if _binds(node):
                return node
            name = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
            operands = [_later(value) for value in node.values]
            return _helper("logical", ast.Constant(name), *operands, like=node)

        def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:  # noqa: N802
            self.generic_visit(node)
            if not isinstance(node.op, ast.Not):
                return node
            return _helper("negated", node.operand, like=node)

        def visit_IfExp(self, node: ast.IfExp) -> Any:  # noqa: N802
            self.generic_visit(node)
            if _binds(node):
                return node
            return _helper(
                "chosen", node.test, _later(node.body), _later(node.orelse), like=node
            )  # fmt: skip

        def visit_Attribute(self, node: ast.Attribute) -> Any:  # noqa: N802
            self.generic_visit(node)
            if node.attr != "value" or not isinstance(node.ctx, ast.Load):
                return node
            return _helper("value_of", node.value, like=node)

        def visit_Call(self, node: ast.Call) -> Any:  # noqa: N802
            self.generic_visit(node)
            if isinstance(node.func, ast.Name) and node.func.id in EXTREMES:
                name = node.func.id
                made = _helper("extreme", ast.Constant(name), node.func, *node.args, like=node)
                made.keywords = node.keywords
                return made
            return node

    return Transformer
