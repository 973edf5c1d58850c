"""Find the tensors that a test makes, and turn the calls that make them into inputs."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field

from gpuemu_flow.problems.asserted_values import (
    KnownSizes,
    NotUnderstoodError,
    Size,
    SizedTensor,
    dtype_of,
    first_name,
    last_name,
)
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import DTYPES, Json

GIVEN = "_given"
FOLLOWS = "follows"
_CHAIN = {"to", "cuda", "cpu", "half", "float", "double", "bfloat16", "contiguous", "type",
          "astype", "requires_grad_", "normal_", "uniform_", "clone"}  # fmt: skip
_CAST = {"half": "float16", "float": "float32", "double": "float64", "bfloat16": "bfloat16"}
_NORMAL = {"randn", "randn_like", "normal", "standard_normal"}
_UNIT = {"rand", "rand_like", "random", "random_sample", "uniform"}
_WHOLE = {"randint", "randint_like", "integers"}
_CONSTANT = {"ones", "zeros", "ones_like", "zeros_like"}
_UNWRITTEN = {"empty", "empty_like"}
_SIZED_LAST = {"normal", "uniform"}
"""Functions whose bounds come before the size, in numpy and torch."""
_BUFFERS = {"empty", "empty_like", "zeros", "zeros_like", "full", "full_like", "new_empty",
            "new_zeros", "ones_like", "ones", "empty_strided"}  # fmt: skip


@dataclass(frozen=True)
class MadeTensor:
    """A tensor that a test makes.

    Attributes
    ----------
    name : str
    line : int
    axes : tuple of (int or str)
    dtype : str
        ``follows`` if the dtype is a parameter of the test.
    rules : mapping of str to JSON
        Range or kind of the tensor's values.
    library : str
        ``torch``, ``numpy`` or ``jax``.
    constant : bool
        True if the tensor is all ones or zeros in the test.
    """

    name: str
    line: int
    axes: tuple[int | str, ...]
    dtype: str
    rules: Mapping[str, Json] = field(default_factory=dict)
    library: str = "torch"
    constant: bool = False


@dataclass
class StatementReader:
    """Reader of one test's statements, in order.

    Attributes
    ----------
    sizes : KnownSizes
    dtypes : mapping of str to str
        Maps each name to the dtype that the name stands for, or to `FOLLOWS`.
    fixed : set of str
        Names of constant tensors that do not become inputs.
    taken : set of str
        Names that no input may have.
    written : set of str
        Names that the test writes into.
    """

    sizes: KnownSizes
    dtypes: dict[str, str]
    fixed: AbstractSet[str]
    taken: set[str]
    written: AbstractSet[str] = frozenset()
    made: list[MadeTensor] = field(default_factory=list)
    local: dict[str, int] = field(default_factory=dict)

    def read(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Replace the calls that make tensors by inputs, and record the tensors in `made`.

        Returns
        -------
        list of ast.stmt
            The changed statements; those in `body` are changed, too.
        """
        return [self._statement(one) for one in body]

    def _statement(self, node: ast.stmt) -> ast.stmt:
        if isinstance(node, (ast.With, ast.If, ast.For)):
            node.body = self.read(node.body)
            if not isinstance(node, ast.With):
                node.orelse = self.read(node.orelse)
            return node
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Try, ast.While)):
            return node
        target = ""
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            self._assign(node.targets[0], node.value)
            target = node.targets[0].id if isinstance(node.targets[0], ast.Name) else ""
        changed: ast.stmt = _Taker(self, target).visit(node)
        return changed

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.sizes.known[target.id] = self._size(value)
            found = dtype_of(value)
            if found:
                self.dtypes[target.id] = found
        elif isinstance(target, ast.Tuple):
            parts: Sequence[Size]
            whole = self.sizes.of(value)
            if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
                parts = [self._size(one) for one in value.elts]
            elif isinstance(whole, tuple) and len(whole) == len(target.elts):
                parts = whole
            else:
                parts = [None] * len(target.elts)
            for one, part in zip(target.elts, parts, strict=True):
                if isinstance(one, ast.Name):
                    self.sizes.known[one.id] = part

    def _size(self, value: ast.expr) -> Size:
        found = self.sizes.of(value)
        if found is not None:
            return found
        chain = _unwrapped(value)
        if chain is not None:
            shape = _shape(chain.base, self.sizes)
            return SizedTensor(shape) if shape is not None else None
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            # The call of a method that may keep the shape of a tensor whose shape is known.
            owner = self._size(value.func.value)
            self.sizes.known[GIVEN] = owner
            name = ast.Name(GIVEN, ast.Load())
            call = ast.Call(ast.Attribute(name, value.func.attr, ast.Load()), value.args, [])
            return self.sizes.of(call)
        if isinstance(value, ast.BinOp):
            parts = [self._size(value.left), self._size(value.right)]
            shapes = {one.shape for one in parts if isinstance(one, SizedTensor)}
            return SizedTensor(shapes.pop()) if len(shapes) == 1 else None
        return self._size(value.operand) if isinstance(value, ast.UnaryOp) else None

    def take(self, node: ast.Call, target: str) -> ast.expr | None:
        """Record the tensor that a call makes, and return the input that replaces the call.

        Returns None if the call makes no tensor, or one that does not become an input.

        Parameters
        ----------
        node : ast.Call
        target : str
            The variable to which the test assigns the tensor; empty if there is none. The input
            gets the same name, with ``_`` appended if the name is taken.
        """
        chain = _unwrapped(node)
        if chain is None:
            return None
        name = last_name(chain.base.func)
        constant = name in _CONSTANT
        if constant and (not target or target in self.fixed or target in self.written):
            return None
        if name in _UNWRITTEN and not chain.filled:
            return None
        shape = _shape(chain.base, self.sizes)
        if shape is None:
            if constant:
                return None
            text = f"sizes that are not told by parameters: {ast.unparse(node)[:80]}"
            raise NotUnderstoodError(text)
        library = _library(chain.base)
        dtype = self._dtype(chain, name, library)
        if constant and (not dtype or (dtype != FOLLOWS and DTYPES[dtype].kind != "float")):
            return None
        rules = self._rules(chain, name)
        wanted = target or f"input{len(self.made)}"
        while wanted in self.taken:
            wanted += "_"
        self.taken.add(wanted)
        self.made.append(MadeTensor(wanted, node.lineno, shape, dtype, rules, library, constant))
        text = f"{GIVEN}[{wanted!r}]" + chain.after
        return ast.copy_location(ast.parse(text, mode="eval").body, node)

    def _dtype(self, chain: _Chain, name: str, library: str) -> str:
        default = "float64" if library == "numpy" else "float32"
        if name in _WHOLE or name == "randperm":
            default = "int32" if library == "jax" else "int64"
        elif name.endswith("_like") and chain.base.args:
            source = first_name(chain.base.args[0])
            default = next((one.dtype for one in self.made if one.name == source), default)
        for one in chain.dtypes:
            if isinstance(one, ast.Name):
                found = self.dtypes.get(one.id, "")
            else:
                found = one if isinstance(one, str) else dtype_of(one)
            if not found and isinstance(one, ast.Attribute) and one.attr == "dtype":
                source = first_name(one)
                found = next((made.dtype for made in self.made if made.name == source), "")
            if found:
                default = found
        return default

    def _rules(self, chain: _Chain, name: str) -> dict[str, Json]:
        call = chain.filling or chain.base
        name = last_name(call.func)
        if name in _CONSTANT:
            return {"kind": "positive"} if name.startswith("ones") else {}
        if name == "randperm":
            return {"kind": "permutation"}
        if name in _WHOLE:
            return {"range": self._bounds(call)}
        if name in _UNIT or name == "uniform_":
            low, high = self._ends(call) if name in ("uniform", "uniform_") else (0.0, 1.0)
            return {"range": [low, high]}
        return {}

    def _ends(self, call: ast.Call) -> tuple[float, float]:
        """Return the bounds of a uniform draw.

        A bound that is missing or cannot be computed is 0 (lower) or 1 (upper).
        """
        first = 0 if last_name(call.func) == "uniform_" or _library(call) == "numpy" else 9
        names = {key.arg: key.value for key in call.keywords}
        low, high = call.args[first : first + 2] if len(call.args) > first + 1 else (None, None)
        low = low or names.get("low") or names.get("a") or names.get("minval")
        high = high or names.get("high") or names.get("b") or names.get("maxval")
        ends = []
        for node, default in ((low, 0.0), (high, 1.0)):
            try:
                value = self.sizes.expander.plain(node) if node is not None else default
            except NotUnderstoodError:
                value = default
            ends.append(float(value) if type(value) in (int, float) else default)
        return (ends[0], ends[1]) if ends[0] < ends[1] else (0.0, 1.0)

    def _bounds(self, call: ast.Call) -> list[Json]:
        given = list(call.args)
        if last_name(call.func) == "randint_like":
            given = given[1:]
        if _library(call) == "jax":
            given = given[2:]
        names = {key.arg: key.value for key in call.keywords}
        positional = 2
        if _library(call) == "torch" and last_name(call.func) == "randint":
            positional = 1 if len(given) == 2 or (len(given) == 1) else 2
        numbers = given[:positional]
        if _library(call) == "numpy" and len(numbers) == 2 and "size" not in names:
            # randint(high, size) or randint(low, high[, size]).
            numbers = numbers if len(given) > 2 else numbers[:1]
        low: ast.expr | None = names.get("low") or names.get("minval")
        high: ast.expr | None = names.get("high") or names.get("maxval")
        if len(numbers) == 2:
            low, high = numbers
        elif numbers:
            high = high or numbers[0] if low is None or high is None else high
        if high is None and low is not None:
            low, high = None, low
        least = self._end(low) if low is not None else 0
        most = self._end(high) if high is not None else None
        if least is None or most is None:
            raise NotUnderstoodError(f"bounds that cannot be read: {ast.unparse(call)[:80]}")
        return [least, most - 1 if isinstance(most, int) else f"{most}-1"]

    def _end(self, node: ast.expr) -> int | str | None:
        found = self.sizes.of(node)
        if isinstance(found, (int, str)):
            return found
        try:
            value = self.sizes.expander.plain(node)
        except NotUnderstoodError:
            return None
        return value if type(value) is int else None


@dataclass
class _Chain:
    """A call that makes a tensor, and the methods that are called on the tensor."""

    base: ast.Call
    dtypes: list[ast.expr | str] = field(default_factory=list)
    filling: ast.Call | None = None
    after: str = ""

    @property
    def filled(self) -> bool:
        return self.filling is not None


def _unwrapped(node: ast.expr) -> _Chain | None:
    methods: list[ast.Call] = []
    inner: ast.expr = node
    while (
        isinstance(inner, ast.Call)
        and isinstance(inner.func, ast.Attribute)
        and inner.func.attr in _CHAIN
        and isinstance(inner.func.value, ast.Call)
    ):
        methods.insert(0, inner)
        inner = inner.func.value
    if not isinstance(inner, ast.Call) or not _makes(inner):
        return None
    chain = _Chain(inner)
    names = {key.arg: key.value for key in inner.keywords}
    if "dtype" in names:
        chain.dtypes.append(names["dtype"])
    elif _library(inner) == "jax" and len(inner.args) > 2 and last_name(inner.func) == "normal":
        chain.dtypes.append(inner.args[2])
    if "requires_grad" in names:
        chain.after = f".requires_grad_({ast.unparse(names['requires_grad'])})"
    for method in methods:
        name = last_name(method.func)
        if name in _CAST:
            chain.dtypes.append(_CAST[name])
        elif name in ("to", "astype", "type"):
            chain.dtypes += [*method.args, *(key.value for key in method.keywords)]
        elif name in ("normal_", "uniform_"):
            chain.filling = method
        elif name == "requires_grad_":
            chain.after = f".requires_grad_({', '.join(map(ast.unparse, method.args))})"
    return chain


def _makes(node: ast.Call) -> bool:
    name, library = last_name(node.func), _library(node)
    if not library:
        return False
    if name in (_NORMAL | _UNIT | _WHOLE) or name == "randperm":
        plain_torch = library == "torch" and name in ("random", "uniform", "integers")
        return not plain_torch
    return library == "torch" and name in (_CONSTANT | _UNWRITTEN)


def _library(node: ast.Call) -> str:
    text = ast.unparse(node.func)
    if text.startswith(("torch.",)) and text.count(".") == 1:
        return "torch"
    if text.startswith(("np.random.", "numpy.random.")):
        return "numpy"
    if text.startswith(("jax.random.", "random.normal", "random.uniform", "random.randint")):
        return "jax"
    owner = first_name(node.func)
    return "numpy" if owner in ("rng", "rs", "generator") and text.count(".") == 1 else ""


def _shape(call: ast.Call, sizes: KnownSizes) -> tuple[int | str, ...] | None:
    """Return the sizes of the tensor that a call makes; None if the text does not tell them."""
    name, library = last_name(call.func), _library(call)
    names = {key.arg: key.value for key in call.keywords}
    for key in ("size", "shape"):
        if key in names:
            return _sizes_of([names[key]], sizes)
    given = list(call.args)
    if name.endswith("_like"):
        found = sizes.of(given[0]) if given else None
        return found.shape if isinstance(found, SizedTensor) else None
    if library == "jax":
        given = given[1:2]
    elif name == "randint" and library == "torch":
        given = given[-1:]
    elif name in ("randint", "integers") or (name in _SIZED_LAST):
        given = given[-1:] if len(given) > 1 else []
    elif name in ("standard_normal", "random", "random_sample"):
        given = given[:1]
    return _sizes_of(given, sizes)


def _sizes_of(given: Sequence[ast.expr], sizes: KnownSizes) -> tuple[int | str, ...] | None:
    found = sizes.of(ast.Tuple(list(given), ast.Load()))
    if isinstance(found, tuple):
        return found
    if len(given) == 1:
        found = sizes.of(given[0])
        return found if isinstance(found, tuple) else None
    return None


class _Taker(ast.NodeTransformer):
    """Transformer that replaces calls that make tensors by inputs."""

    def __init__(self, reader: StatementReader, target: str) -> None:
        self._reader = reader
        self._target = target

    def visit_Call(self, node: ast.Call) -> ast.AST:
        found = self._reader.take(node, self._target)
        if found is not None:
            return found
        self._target = ""
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if _constant_in(node):
            self._target = ""
        return self.generic_visit(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node


def _constant_in(node: ast.AST) -> bool:
    calls = (one for one in ast.walk(node) if isinstance(one, ast.Call))
    return any(last_name(one.func) in _CONSTANT for one in calls)


def buffers_of(body: Sequence[ast.stmt]) -> set[str]:
    """Return the names of empty or constant tensors, which calls may use as output buffers."""
    found = set()
    for node in walk_all(body):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            chain: ast.expr = node.value
            while isinstance(chain, ast.Call) and last_name(chain.func) in _CHAIN:
                chain = chain.func.value if isinstance(chain.func, ast.Attribute) else chain.func
            if isinstance(chain, ast.Call) and last_name(chain.func) in _BUFFERS:
                found |= {one.id for one in node.targets if isinstance(one, ast.Name)}
    return found


def written_names(body: Sequence[ast.stmt]) -> set[str]:
    """Return the names of objects that statements may change.

    Objects may be changed by a call whose result is not used, an in-place method, an ``out=``
    argument, an assignment to a subscript or an attribute, or an operator such as ``+=``.
    """
    found = set()
    for node in walk_all(body):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            names = {one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)}
            method = last_name(node.value.func)
            skipped = method in ("backward", "requires_grad_", "print") or "assert" in method
            found |= set() if skipped else names
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign):
            targets = [node.target]
        found |= {first_name(one) for one in targets if not isinstance(one, (ast.Name, ast.Tuple))}
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        if isinstance(node, ast.keyword) and node.arg == "out":
            found.add(first_name(node.value))
        if isinstance(node, ast.Call) and last_name(node.func).endswith("_"):
            found.add("" if last_name(node.func) == "requires_grad_" else first_name(node.func))
    return found - {""}


def walk_all(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """Yield every node of several statements."""
    for one in body:
        yield from ast.walk(one)
