"""Read values from a test's text: lists, numbers, dtypes and sizes; nothing is run."""

from __future__ import annotations

import ast
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import DTYPES, Json

MOST_ROWS = 2_000
LARGEST = 1 << 40
FRAMEWORKS = ("torch", "numpy", "np", "jnp", "jax", "tl", "ml_dtypes")
_DTYPE_WORDS = {"half": "float16", "float": "float32", "double": "float64", "long": "int64",
                "int": "int32", "bool_": "bool"}  # fmt: skip
_OPERATORS: dict[type, tuple[str, Callable[[int, int], int]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod),
}


class NotUnderstoodError(Exception):
    """Raised for code that cannot be interpreted without running it; its message says why."""


def last_name(node: ast.expr) -> str:
    """Return the last part of a dotted name; empty for other expressions."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def first_name(node: ast.AST) -> str:
    """Return the name that a chain of attributes, calls and subscripts begins with."""
    while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def dtype_of(node: ast.expr) -> str:
    """Return the dtype that an expression such as ``torch.float16`` names; empty for no dtype."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value if node.value in DTYPES else ""
    if isinstance(node, ast.Attribute) and first_name(node) in FRAMEWORKS:
        name = _DTYPE_WORDS.get(node.attr, node.attr)
        return name if name in DTYPES else ""
    return ""


class Expander:
    """Evaluator of the constants of one file."""

    def __init__(self, tree: ast.Module) -> None:
        self._constants: dict[str, ast.expr] = {}
        for node in tree.body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target = node.targets[0]
                if isinstance(target, ast.Name):
                    self._constants[target.id] = node.value
        self._depth = 0

    def constant(self, name: str) -> ast.expr | None:
        """Return the expression that the file's top level assigns to a name, or None."""
        return self._constants.get(name)

    def elements(self, node: ast.expr) -> list[ast.expr]:
        """Return the elements of a list, a comprehension, a ``range`` or a ``product``.

        Raises
        ------
        NotUnderstoodError
        """
        self._depth += 1
        try:
            if self._depth > 50:
                raise NotUnderstoodError("its values refer to each other")
            found = list(itertools.islice(self._elements(node), MOST_ROWS + 1))
        finally:
            self._depth -= 1
        if len(found) > MOST_ROWS:
            raise NotUnderstoodError(f"more than {MOST_ROWS} values")
        return found

    def _elements(self, node: ast.expr) -> Iterator[ast.expr]:
        if isinstance(node, (ast.List, ast.Tuple)):
            for one in node.elts:
                if isinstance(one, ast.Starred):
                    yield from self.elements(one.value)
                else:
                    yield one
        elif isinstance(node, ast.Name) and node.id in self._constants:
            yield from self.elements(self._constants[node.id])
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            yield from self.elements(node.left)
            yield from self.elements(node.right)
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            yield from self._comprehended(node.elt, node.generators)
        elif isinstance(node, ast.Call):
            yield from self._listed(node)
        else:
            raise NotUnderstoodError(f"no list that can be read: {ast.unparse(node)[:80]}")

    def _listed(self, node: ast.Call) -> Iterator[ast.expr]:
        name = last_name(node.func)
        if name in ("list", "tuple", "sorted"):
            yield from self.elements(node.args[0]) if node.args else ()
        elif name == "range":
            numbers = [self.plain(one) for one in node.args]
            if not 1 <= len(numbers) <= 3 or not all(type(one) is int for one in numbers):
                raise NotUnderstoodError("a range of no numbers")
            if numbers[2:] == [0] or len(range(*numbers)) > MOST_ROWS:
                raise NotUnderstoodError("a range without end")
            yield from (ast.Constant(one) for one in range(*numbers))
        elif name == "product":
            lists = [self.elements(one) for one in node.args]
            if math.prod(map(len, lists)) > MOST_ROWS:
                raise NotUnderstoodError(f"more than {MOST_ROWS} values")
            for row in itertools.product(*lists):
                yield ast.Tuple(list(row), ast.Load())
        else:
            raise NotUnderstoodError(f"no list that can be read: {ast.unparse(node)[:80]}")

    def _comprehended(
        self, element: ast.expr, generators: list[ast.comprehension]
    ) -> Iterator[ast.expr]:
        if not generators:
            yield element
            return
        first, rest = generators[0], generators[1:]
        if first.ifs:
            raise NotUnderstoodError("a comprehension with a condition")
        for value in self.elements(first.iter):
            names = _matched(first.target, value, self)
            later = [
                ast.comprehension(one.target, replaced(one.iter, names), one.ifs, one.is_async)
                for one in rest
            ]
            yield from self._comprehended(replaced(element, names), later)

    def plain(self, node: ast.expr) -> Json:
        """Return an expression's value: a number, text, boolean, None, or a tuple of these.

        Raises
        ------
        NotUnderstoodError
        """
        if isinstance(node, ast.Constant):
            if node.value is None or type(node.value) in (bool, int, float, str):
                return node.value
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self.plain(node.operand)
            if type(value) in (int, float):
                return -value
        elif isinstance(node, (ast.Tuple, ast.List)):
            return tuple(self.plain(one) for one in self.elements(node))
        elif isinstance(node, ast.Name) and node.id in self._constants and self._depth < 50:
            self._depth += 1
            try:
                return self.plain(self._constants[node.id])
            finally:
                self._depth -= 1
        elif isinstance(node, ast.BinOp):
            return self._computed(node)
        raise NotUnderstoodError(f"no plain value: {ast.unparse(node)[:80]}")

    def _computed(self, node: ast.BinOp) -> Json:
        a, b = self.plain(node.left), self.plain(node.right)
        numbers = type(a) is int and type(b) is int
        if isinstance(node.op, ast.Pow) and numbers and 0 <= b < 40 and abs(a) < 1 << 10:
            return a**b
        if isinstance(node.op, ast.LShift) and numbers and 0 <= b < 40:
            return a << b
        known = _OPERATORS.get(type(node.op))
        if known is None or not numbers or max(abs(a), abs(b)) > LARGEST:
            raise NotUnderstoodError(f"no plain value: {ast.unparse(node)[:80]}")
        try:
            return known[1](a, b)
        except ZeroDivisionError:
            raise NotUnderstoodError("a division by zero") from None


def _matched(target: ast.expr, value: ast.expr, expander: Expander) -> dict[str, ast.expr]:
    if isinstance(target, ast.Name):
        return {target.id: value}
    if isinstance(target, ast.Tuple):
        parts = expander.elements(value)
        if len(parts) == len(target.elts):
            pairs = zip(target.elts, parts, strict=True)
            return {k: v for one, part in pairs for k, v in _matched(one, part, expander).items()}
    raise NotUnderstoodError("a comprehension that cannot be read")


def replaced(node: ast.expr, names: Mapping[str, ast.expr]) -> ast.expr:
    """Return a copy of an expression, in which names are replaced by the expressions in `names`."""

    class Replacer(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return names.get(node.id, node)

    copy = ast.parse(ast.unparse(node), mode="eval").body
    found: ast.expr = Replacer().visit(copy)
    return found


@dataclass(frozen=True)
class SizedTensor:
    """A tensor whose sizes are known.

    Attributes
    ----------
    shape : tuple of (int or str)
        Sizes, or expressions of dims.
    """

    shape: tuple[int | str, ...]


Size = int | str | tuple["int | str", ...] | SizedTensor | None


@dataclass
class KnownSizes:
    """Known sizes of the variables in a test, collected as its statements are read in order."""

    expander: Expander
    known: dict[str, Size] = field(default_factory=dict)

    def of(self, node: ast.expr) -> Size:
        """Return an expression's value: a size, several sizes or a tensor; None if unknown."""
        found: Size = None
        if isinstance(node, ast.Constant):
            found = node.value if type(node.value) is int else None
        elif isinstance(node, ast.Name):
            found = self.known[node.id] if node.id in self.known else self._constant(node)
        elif isinstance(node, (ast.Tuple, ast.List)):
            found = self._tuple(node)
        elif isinstance(node, ast.BinOp):
            found = self._binary(node)
        elif isinstance(node, ast.Attribute) and node.attr == "shape":
            owner = self.of(node.value)
            found = owner.shape if isinstance(owner, SizedTensor) else None
        elif isinstance(node, ast.Subscript):
            found = self._subscript(node)
        elif isinstance(node, ast.Call):
            found = self._call(node)
        return found

    def _constant(self, node: ast.Name) -> Size:
        try:
            value = self.expander.plain(node)
        except NotUnderstoodError:
            return None
        if type(value) is int:
            return value
        ints = isinstance(value, tuple) and all(type(one) is int for one in value)
        return value if ints else None

    def _tuple(self, node: ast.Tuple | ast.List) -> Size:
        found: list[int | str] = []
        for one in node.elts:
            inner = self.of(one.value if isinstance(one, ast.Starred) else one)
            if isinstance(one, ast.Starred) and isinstance(inner, tuple):
                found += inner
            elif isinstance(inner, (int, str)):
                found.append(inner)
            else:
                return None
        return tuple(found)

    def _binary(self, node: ast.BinOp) -> Size:
        a, b = self.of(node.left), self.of(node.right)
        if isinstance(node.op, ast.Add) and isinstance(a, tuple) and isinstance(b, tuple):
            return a + b
        known = _OPERATORS.get(type(node.op))
        if known is None or not isinstance(a, (int, str)) or not isinstance(b, (int, str)):
            return None
        if isinstance(a, int) and isinstance(b, int):
            try:
                return known[1](a, b)
            except ZeroDivisionError:
                return None
        return f"{_grouped(a)}{known[0]}{_grouped(b)}"

    def _subscript(self, node: ast.Subscript) -> Size:
        owner = self.of(node.value)
        if not isinstance(owner, tuple):
            return None
        try:
            if isinstance(node.slice, ast.Slice):
                parts = (node.slice.lower, node.slice.upper, node.slice.step)
                return owner[slice(*(self.expander.plain(one) if one else None for one in parts))]
            return owner[self.expander.plain(node.slice)]
        except (NotUnderstoodError, TypeError, IndexError, ValueError):
            return None

    def _call(self, node: ast.Call) -> Size:
        name = last_name(node.func)
        if isinstance(node.func, ast.Attribute):
            owner = self.of(node.func.value)
            if isinstance(owner, SizedTensor):
                return _method(owner, name, [self.of(one) for one in node.args])
        given = [self.of(one) for one in node.args]
        if name in ("min", "max", "cdiv") and all(isinstance(one, (int, str)) for one in given):
            return f"{name}({', '.join(map(str, given))})"
        if name in ("Size", "int") and len(given) == 1:
            return given[0]
        if name == "len" and given and isinstance(given[0], (tuple, SizedTensor)):
            shape = given[0]
            return len(shape) if isinstance(shape, tuple) else shape.shape[0]
        like = name.endswith("_like") and given and isinstance(given[0], SizedTensor)
        return given[0] if like else None


_SAME = {"clone", "detach", "contiguous", "to", "cuda", "cpu", "half", "float", "double",
         "bfloat16", "requires_grad_", "copy", "astype", "abs", "normal_", "uniform_"}  # fmt: skip
"""Methods whose result has the shape of the tensor."""


def _method(owner: SizedTensor, name: str, given: list[Size]) -> Size:
    if name in ("size", "dim"):
        if name == "dim":
            return len(owner.shape)
        if not given:
            return owner.shape
        at = given[0]
        fits = isinstance(at, int) and -len(owner.shape) <= at < len(owner.shape)
        return owner.shape[at] if fits and isinstance(at, int) else None
    if name == "numel":
        return "*".join(map(_grouped, owner.shape)) or 1
    return owner if name in _SAME else None


def _grouped(value: int | str) -> str:
    text = str(value)
    return text if text.isidentifier() or text.isdigit() else f"({text})"
