"""The float32 shadow of a reference: its source with float64 replaced by float32.

References often ask for float64 by name: even with float32 inputs they then compute in float64. The
shadow takes the same steps in float32, and so shows the effect of rounding. A *rounded* shadow also
rounds values to a narrow type as it computes, if requested; see `operand`.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator

from msgspec import Struct

from gpuemu_flow.model.syntax import parse_python
from gpuemu_flow.numerics.single import MAKERS

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
    """Return the ids of the expressions that cannot or must not be wrapped. These are f-strings
    (before Python 3.12 their positions are wrong), targets of assignments, patterns, decorators and
    annotations."""
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


_NAMES = {"float64": "float32", "complex128": "complex64"}
_DTYPE_STRINGS = {
    "float64": "float32",
    "complex128": "complex64",
    "double": "float32",
    "f8": "f4",
    "d": "f",
    "c16": "c8",
    "D": "F",
}
_DTYPE_ARGUMENT = {  # where a method or function takes its dtype when it is not given by name
    "astype": 0,
    "dtype": 0,
    "type": 0,
    "to": 0,
    "zeros": 1,
    "ones": 1,
    "empty": 1,
    "array": 1,
    "asarray": 1,
    "ascontiguousarray": 1,
    "frombuffer": 1,
    "full": 2,
}
_MAKER = '__import__("gpuemu_flow.numerics.single").numerics.single.MAKERS["{name}"]'
"""Expression that needs no import at the top of the file."""
_LINE_END = re.compile(rb"(?<=\n)|(?<=\r)(?!\n)")
_STRING_LITERAL = re.compile(r"""[rRuU]?(?P<quote>'|")(?P<text>[^'"\\\n]*)(?P=quote)""")


def shadow_source(source: str, wrap: str = "") -> str | None:
    """Return the source with float64 arithmetic turned into float32, and line numbers unchanged.

    These parts of the source are replaced:

    - The names ``float64`` and ``complex128``, also as attributes (``np.float64``) and in imports.
    - The attribute ``double``: ``np.double`` becomes ``np.float32``, ``x.double()`` becomes
      ``x.float()``.
    - The strings ``"float64"`` and ``"complex128"``, unless they are part of a longer string.
    - In dtype arguments, such as those of ``astype`` and ``np.zeros``: the builtin ``float``, and
      strings such as ``"double"``, ``"f8"`` and ``"<f8"``.
    - Calls of numpy's functions that make float64 by default, such as ``np.zeros(n)``: they become
      calls of functions in `single`.

    Comments, docstrings and formatting stay.

    Arithmetic on Python's own floats (``float(x)``, ``x.item()``, ``math.exp``) stays in float64;
    `envelope.shadow_is_faithful` finds out whether this affects the result.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the reference's own escapes are not our business
            tree = parse_python(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    try:
        edits = list(_Finder(source, tree).edits())
    except RecursionError:
        return None
    if not edits and not wrap:
        return None
    if wrap:
        wrapped = _apply(source, [*edits, *wrapping_edits(tree, wrap)])
        if _parses(wrapped):
            return wrapped
    return _apply(source, edits) if edits else None


def _parses(source: str) -> bool:
    """Tell whether edited source is valid Python. It is not if an edit made a ``yield`` without
    parentheses the argument of a call."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parse_python(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


class _Finder:
    """Finds the places to edit in one parsed source."""

    def __init__(self, source: str, tree: ast.Module) -> None:
        self._lines = _split_lines(source)
        self._nodes = tuple(ast.walk(tree))
        self._torch = _module_names(self._nodes, "torch")
        self._parameters = {node.arg for node in self._nodes if isinstance(node, ast.arg)}
        self._numpy = _module_names(self._nodes, "numpy") - self._parameters
        self._skipped = {
            id(inner)
            for node in self._nodes
            if isinstance(node, ast.JoinedStr)  # positions inside f-strings are wrong before 3.12
            for inner in ast.walk(node)
        }

    def edits(self) -> Iterator[Edit]:
        dtype_nodes = dict(self._dtype_expressions())
        called_bare = {
            id(node.func)
            for node in self._nodes
            if isinstance(node, ast.Call) and not node.args and not node.keywords
        }
        for node in self._nodes:
            if id(node) in self._skipped:
                continue
            if isinstance(node, ast.Name):
                yield from self._name(node, dtype_nodes.get(id(node)))
            elif isinstance(node, ast.Attribute):
                yield from self._attribute(node, called_bare=id(node) in called_bare)
            elif isinstance(node, ast.Call):
                yield from self._maker(node.func)
            elif isinstance(node, ast.ImportFrom):
                yield from self._imports(node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from self._string(node, expects_dtype=id(node) in dtype_nodes)

    def _dtype_expressions(self) -> Iterator[tuple[int, str]]:
        """Find the dtype arguments of all calls."""
        for node in self._nodes:
            if not isinstance(node, ast.Call):
                continue
            root: ast.expr = node.func
            while isinstance(root, (ast.Attribute, ast.Call)):
                root = root.value if isinstance(root, ast.Attribute) else root.func
            module = root.id if isinstance(root, ast.Name) and root.id in self._torch else ""
            text = f"{module}.float32" if module else "'float32'"
            yield from ((id(k.value), text) for k in node.keywords if k.arg == "dtype")
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            position = _DTYPE_ARGUMENT.get(called)
            if position is not None and position < len(node.args):
                # The methods ``to`` and ``type`` are taken to be those of torch tensors.
                if called in ("to", "type") and self._torch:
                    text = f"{min(self._torch)}.float32"
                yield id(node.args[position]), text

    def _name(self, node: ast.Name, as_dtype: str | None) -> Iterator[Edit]:
        if node.id in _NAMES and node.id not in self._parameters:
            yield self._replace(node, len(node.id.encode()), _NAMES[node.id])
        elif node.id == "float" and as_dtype is not None:
            yield self._replace(node, len("float"), as_dtype)

    def _attribute(self, node: ast.Attribute, *, called_bare: bool) -> Iterator[Edit]:
        new = _NAMES.get(node.attr)
        if node.attr == "double":
            new = "float" if called_bare else "float32"
        if new is None or node.end_lineno is None or node.end_col_offset is None:
            return
        end = node.end_col_offset
        yield Edit(node.end_lineno, end - len(node.attr.encode()), end, new)

    def _maker(self, called: ast.expr) -> Iterator[Edit]:
        if not isinstance(called, ast.Attribute) or called.attr not in MAKERS:
            return
        if not isinstance(called.value, ast.Name) or called.value.id not in self._numpy:
            return
        if called.lineno == called.end_lineno and called.end_col_offset is not None:
            text = _MAKER.format(name=called.attr)
            yield Edit(called.lineno, called.col_offset, called.end_col_offset, text)

    def _imports(self, node: ast.ImportFrom) -> Iterator[Edit]:
        for alias in node.names:
            if alias.name in _NAMES:
                yield self._replace(alias, len(alias.name), _NAMES[alias.name])

    def _string(self, node: ast.Constant, *, expects_dtype: bool) -> Iterator[Edit]:
        value = str(node.value)
        order = value[:1] if expects_dtype and value[:1] in "<>=|" else ""
        name = value[len(order) :]
        if name not in _DTYPE_STRINGS or not (expects_dtype or name in _NAMES):
            return
        if node.lineno != node.end_lineno or node.end_col_offset is None:
            return
        line = self._lines[node.lineno - 1]
        literal = line[node.col_offset : node.end_col_offset].decode()
        match = _STRING_LITERAL.fullmatch(literal)
        if match is None or match["text"] != value:
            return
        start = node.col_offset + len(literal[: match.start("text")].encode())
        text = order + _DTYPE_STRINGS[name]
        yield Edit(node.lineno, start, start + len(value.encode()), text)

    def _replace(self, node: ast.Name | ast.alias, length: int, text: str) -> Edit:
        return Edit(node.lineno, node.col_offset, node.col_offset + length, text)


def _module_names(nodes: Iterable[ast.AST], module: str) -> set[str]:
    """Return the names under which import statements make a module available."""
    return {
        alias.asname or module
        for node in nodes
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == module or (alias.name.startswith(f"{module}.") and not alias.asname)
    }


def _split_lines(source: str) -> list[bytes]:
    """Split source into lines as Python's parser counts them. The lines are UTF-8 bytes, because
    the parser counts columns in bytes. Unlike for ``str.splitlines``, form feeds and Unicode
    separators end no line."""
    return _LINE_END.split(source.encode())


def _apply(source: str, edits: list[Edit]) -> str:
    lines = _split_lines(source)
    # From the end, so that earlier positions stay valid; of two edits at one position, an insertion
    # is made last.
    for edit in sorted(edits, key=lambda e: (e.line, e.start, e.end), reverse=True):
        line = lines[edit.line - 1]
        lines[edit.line - 1] = line[: edit.start] + edit.text.encode() + line[edit.end :]
    return b"".join(lines).decode()
