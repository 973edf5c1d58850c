"""The types of values in a Triton kernel, where its interpreter uses plain Python values.

A GPU's compiler gives every argument and every loop variable a type, and from then on follows
Triton's rules of promotion. The interpreter would use a Python float instead, a float64 to which
the rules do not apply: wrong kernels would pass, and correct ones would crash.
"""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from gpuemu_flow.emulator.host.torch_cuda import Patch

_RANGES = ("range", "_new_range")


class Typed(Struct, frozen=True):
    """An argument that carries a type because its value alone does not determine it."""

    value: Any
    type: Any


class Values:
    """Functions that a rewritten kernel calls where Python's values differ from a GPU's."""

    def __init__(self, interpreter: Any, torch: Any) -> None:
        self._interpreter = interpreter
        self._torch = torch
        self._language = interpreter.tl
        self._semantic = interpreter.interpreter_semantic
        self._convert = interpreter._implicit_cvt

    def patches(self) -> list[Patch]:
        """Return the attributes of Triton's interpreter to replace, and their new values."""
        rewriter = self._interpreter.FunctionRewriter
        return [
            (self._interpreter, HELPER, self),
            (self._interpreter, "_implicit_cvt", self.argument),
            (rewriter, "ast_transformer", transformer(self._interpreter.ASTTransformer)()),
        ]

    # --- arguments

    def typed(self, function: Any, options: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
        """Return the arguments by name, a `Typed` where the value does not determine the type."""
        fixed = options.get("do_not_specialize") or ()
        fixed = [fixed] if isinstance(fixed, (str, int)) else list(fixed)
        names = list(inspect.signature(function).parameters)
        unspecialised = {names[n] if isinstance(n, int) else n for n in fixed}
        annotations = inspect.get_annotations(function)
        return {
            name: self._typed_one(value, annotations.get(name), name in unspecialised)
            for name, value in given.items()
        }

    def _typed_one(self, value: Any, annotation: Any, unspecialised: bool) -> Any:
        if isinstance(value, (bool, int, float)):
            wanted = self._annotated(annotation)
            if wanted is not None:
                return Typed(value, wanted)
            if unspecialised and type(value) is int:
                return Typed(value, None)
        if hasattr(value, "data_ptr") and not self._holds_storage(value):
            return Typed(value.data_ptr(), self._kind_of(value))  # made to look like a tensor
        return value

    def _holds_storage(self, value: Any) -> bool:
        jit = self._interpreter.triton.runtime.jit
        if isinstance(value, jit.TensorWrapper):
            value = value.base
        return isinstance(value, self._torch.Tensor)

    def _kind_of(self, value: Any) -> Any:
        name = self._interpreter.triton.runtime.jit.mangle_type(value)
        return self._language.str_to_ty(name, None)

    def _annotated(self, annotation: Any) -> Any:
        name = annotation if isinstance(annotation, str) else getattr(annotation, "name", None)
        found = getattr(self._language, str(name).rpartition(".")[2], None)
        found = found or {t.name: t for t in _scalars(self._language)}.get(str(name))
        return found if isinstance(found, self._language.dtype) and found.is_numeric() else None

    def argument(self, value: Any) -> Any:
        """Convert an argument of a launch for the kernel, as the compiler would specialise it."""
        if isinstance(value, Typed):
            if value.type is None:
                return self._convert(value.value)
            return self._scalar(value.value, value.type)
        if isinstance(value, float):
            return self._scalar(value, self._language.float32)
        if type(value) is int and value == 1:
            return value  # a constant of the compiled kernel
        return self._convert(value)

    def _scalar(self, value: Any, kind: Any) -> Any:
        if kind.is_ptr():
            handle = self._interpreter.TensorHandle(np.array([value], np.uint64), kind)
            return self._language.tensor(handle, kind)
        array = np.array([value]).astype(self._numpy(kind))
        if kind == self._language.bfloat16:
            return self._semantic.scalar_constant(value, kind)
        return self._language.tensor(self._interpreter.TensorHandle(array, kind), kind)

    def _numpy(self, kind: Any) -> Any:
        return self._interpreter._get_np_dtype(kind)

    # --- what the source of a kernel says

    def assigned(self, value: Any) -> Any:
        """Convert a value that is assigned to a variable: numbers become typed scalars."""
        value = self._plain(value)
        if isinstance(value, tuple):
            return type(value)(*map(self.assigned, value)) if hasattr(value, "_fields") else tuple(
                map(self.assigned, value)
            )  # fmt: skip
        return self._semantic.to_tensor(value, False)

    def _plain(self, value: Any) -> Any:
        return value.value if isinstance(value, self._language.constexpr) else value

    def _is_tensor(self, value: Any) -> bool:
        return isinstance(value, self._language.tensor)

    def loop(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the values of the loop ``for x in function(*args, **kwargs)``. If `function` is
        Python's or Triton's ``range``, the values are scalars of a kernel. Their type follows from
        the types of the bounds and the step."""
        if function is not builtins.range and getattr(function, "__name__", "") not in _RANGES:
            return function(*args, **kwargs)
        bounds = [kwargs[n] for n in ("arg1", "arg2", "step") if n in kwargs]
        bounds = [self._plain(value) for value in (*args, *bounds) if value is not None]
        return self._counted([int(value) for value in bounds], self._loop_type(bounds))

    def _loop_type(self, bounds: list[Any]) -> Any:
        kinds = [self._semantic.to_tensor(value).dtype for value in (*bounds, 0)]
        for kind in kinds:
            if not kind.is_int():
                raise TypeError(f"bounds and step of a loop must be integers, not {kind}")
        found = kinds[0]
        for kind in kinds[1:]:
            found = self._semantic.integer_promote_impl(found, kind)
        return found

    def _counted(self, bounds: list[int], kind: Any) -> Iterator[Any]:
        numpy_kind = self._numpy(kind)
        for value in range(*bounds):
            handle = self._interpreter.TensorHandle(np.array([value], numpy_kind), kind)
            yield self._language.tensor(handle, kind)

    def logical(self, name: str, *values: Callable[[], Any]) -> Any:
        """Return ``and`` or ``or`` of operands: element by element where they are tensors."""
        dynamic: list[Any] = []
        value: Any = None
        for operand in values:
            value = operand()
            if self._is_tensor(value):
                dynamic.append(value)
            elif bool(value) is (name == "logical_or"):
                return value
        if not dynamic:
            return value
        result = dynamic.pop()
        while dynamic:
            result = getattr(dynamic.pop(), name)(result)
        return result

    def value_of(self, holder: Any) -> Any:
        """Return ``holder.value``, or `holder` itself if it has none."""
        return holder.value if hasattr(holder, "value") else holder

    def negated(self, value: Any) -> Any:
        """Return ``not`` of an operand, element by element where it is a tensor."""
        return value.__not__() if self._is_tensor(value) else not value

    def chosen(self, test: Any, first: Callable[[], Any], second: Callable[[], Any]) -> Any:
        """Return ``first if test else second``, as a tensor if `test` is a tensor."""
        value = first() if test else second()
        return self._semantic.to_tensor(value, False) if self._is_tensor(test) else value

    def extreme(self, name: str, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Return Python's ``min`` or ``max``, extended to a kernel's tensors."""
        if function is getattr(builtins, name) and any(map(self._is_tensor, args)):
            own = getattr(self._language.core, EXTREMES[name], None)
            if own is not None:
                return own(*args, **{**kwargs, "_semantic": self._semantic})
        return function(*args, **kwargs)


def _scalars(language: Any) -> list[Any]:
    return [v for v in vars(language).values() if isinstance(v, language.dtype)]


# Rewrite a kernel's source so that its values have the types that a compiler gives them.


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
