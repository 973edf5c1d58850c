"""Read sources: parse Python, one at a time; signatures in C; constants that are compared with.

Read the expressions of sizes in a configuration, too.
"""

from __future__ import annotations

import ast
import math
import re
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from threading import Lock

from msgspec import Struct

_ONE_AT_A_TIME = Lock()
_MOST_ATTEMPTS = 100


def parse_python(source: str | bytes, filename: str = "<unknown>") -> ast.Module:
    """Return the syntax tree of a Python source. Raises SyntaxError, ValueError, RecursionError,
    MemoryError: The source does not parse. CPython keeps the recursion depth of the tree's
    construction per interpreter, not per thread, up to and including some 3.11 and 3.12 releases
    (python/cpython issue 106905): two threads that parse at once can get a SystemError for a
    correct source. The daemon parses in many threads, which take turns by a lock. Threads of a
    client's own program may parse without this lock, so a source that causes a SystemError is
    parsed again."""
    for _ in range(_MOST_ATTEMPTS):
        with _ONE_AT_A_TIME, suppress(SystemError):
            return ast.parse(source, filename)
    return ast.parse(source, filename)


@lru_cache(maxsize=64)
def tree_of(source: bytes) -> ast.Module:
    """Return the syntax tree of a source, for those who only look at it: a file is parsed once,
    whoever asks. Raises what `parse_python` raises."""
    return parse_python(source)


MOST_CONSTANTS = 8
TRIED_ANYWAY = 8
"""Whole numbers up to this size are values of the strategy `integers`."""
_LIMITING = frozenset(
    ("clip", "clamp", "clamp_min", "clamp_max", "minimum", "maximum", "fmin", "fmax", "min", "max",
     "where", "threshold", "softplus", "hardtanh")
)  # fmt: skip
_MAY_COMPARE = re.compile(rb"[<>]|[=!]=|clip|clamp|m[axin]{2}imum|m(?:ax|in)\b|thresh|tanh|plus")
_FLOAT = rb"([-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]|f\b))(?:[eE][-+]?\d+)?)"
_C_CONSTANTS = re.compile(
    rb"(?:[<>]=?|[=!]=)\s*\(?" + _FLOAT + rb"|" + _FLOAT + rb"f?\s*(?:[<>]=?|[=!]=)(?![<>])"
    rb"|f?m(?:ax|in)f?\([^;()]*,\s*" + _FLOAT + rb"|f?m(?:ax|in)f?\(\s*" + _FLOAT
)
_PTX_LIMITING = rb"(?:setp|min|max)\.[^;]*"
_PTX_FLOAT = rb"\b0[fFdD]([0-9a-fA-F]{16}|[0-9a-fA-F]{8})\b"
_PTX_CONSTANTS = re.compile(_PTX_LIMITING + _PTX_FLOAT)
_PTX_MOVED = re.compile(rb"mov\.[fb](?:32|64)\s+(%\w+),\s*" + _PTX_FLOAT)


@lru_cache(maxsize=256)  # files of several ops
def constants_of(source: bytes, *, suffix: str) -> list[float]:
    """Return the numbers that a source compares values with, or limits them to.

    At such a number a wrong comparison shows. At most `MOST_CONSTANTS` are returned, those that are
    no whole numbers first, small ones last. A source that does not parse has none.
    """
    if not _MAY_COMPARE.search(source):
        return []
    if suffix == ".py":
        try:
            found = list(_python_constants(tree_of(source)))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return []
    elif suffix == ".ptx":
        words = _PTX_CONSTANTS.findall(source)
        words += [
            word
            for register, word in _PTX_MOVED.findall(source)
            if re.search(_PTX_LIMITING + register + rb"\b", source)
        ]
        formats = {8: ">f", 16: ">d"}
        found = [struct.unpack(formats[len(w)], bytes.fromhex(w.decode()))[0] for w in words]
    elif suffix in (".cu", ".cuh", ".cpp", ".c", ".cc", ".h"):
        found = [float(text) for match in _C_CONSTANTS.findall(source) for text in match if text]
    else:
        return []
    telling = [
        number
        for number in dict.fromkeys(found)
        if math.isfinite(number) and 1e-30 < abs(number) < 1e30
    ]
    order = sorted(telling, key=lambda number: (number == int(number), tried_anyway(number)))
    return order[:MOST_CONSTANTS]


def tried_anyway(number: float) -> bool:
    """Tell whether a number occurs among the values of a case without being asked for."""
    return number == int(number) and abs(number) <= TRIED_ANYWAY


def _python_constants(tree: ast.Module) -> Iterator[float]:
    named: dict[str, float] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], _number(node.value, {})
            if isinstance(target, ast.Name) and value is not None:
                named[target.id] = value
        elif isinstance(node, ast.arguments):
            named_last = [*node.posonlyargs, *node.args][len(node.args) - len(node.defaults) :]
            for argument, default in zip(named_last, node.defaults, strict=False):
                value = _number(default, {})
                named.update({} if value is None else {argument.arg: value})
    for node in ast.walk(tree):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Call):
            function = node.func
            called = function.attr if isinstance(function, ast.Attribute) else ""
            called = function.id if isinstance(function, ast.Name) else called
            if called in _LIMITING:
                parts = [*node.args, *(keyword.value for keyword in node.keywords)]
        numbers = (_number(part, named) for part in parts)
        yield from (number for number in numbers if number is not None)


def _number(node: ast.expr, named: dict[str, float]) -> float | None:
    """Return the number that an expression is: a literal, its negative, a name, or a cast of it."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _number(node.operand, named)
        return None if value is None else -value
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        return _number(node.args[0], named)  # np.float32(20)
    if isinstance(node, ast.Name):
        return named.get(node.id)
    literal = node.value if isinstance(node, ast.Constant) else None
    if not isinstance(literal, (int, float)) or isinstance(literal, bool):
        return None
    return float(literal) if abs(literal) < 1 << 63 else None


# Read the signatures of functions in C and CUDA.

_WORD = r"[A-Za-z_]\w*"
C_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_NUMBERS = {
    "char": "int8", "signed char": "int8", "unsigned char": "uint8", "int8_t": "int8",
    "uint8_t": "uint8", "bool": "bool", "short": "int16", "int16_t": "int16",
    "uint16_t": "uint16", "unsigned short": "uint16", "int": "int32", "int32_t": "int32",
    "unsigned": "uint32", "unsigned int": "uint32", "uint32_t": "uint32", "long": "int64",
    "long long": "int64", "int64_t": "int64", "size_t": "uint64", "uint64_t": "uint64",
    "unsigned long": "uint64", "unsigned long long": "uint64", "float": "float32",
    "double": "float64", "half": "float16", "__half": "float16", "__nv_bfloat16": "bfloat16",
    "nv_bfloat16": "bfloat16",
}  # fmt: skip


class CParameter(Struct, frozen=True):
    """A parameter of a function or kernel in C: a pointer, or a number."""

    name: str
    dtype: str
    pointer: bool
    constant: bool


def read_signature(source: str, function: str) -> list[CParameter] | None:
    """Return a function's parameters as its definition in C names them; None if there is none."""
    text = C_COMMENT.sub(" ", source)
    found = re.search(rf"\b{re.escape(function)}\s*\(([^()]*)\)\s*\{{", text)
    if found is None:
        return None
    parameters = []
    for said in filter(None, (part.strip() for part in found[1].split(","))):
        named = re.fullmatch(rf"(.+?[\s*])({_WORD})\s*(\[\s*\d*\s*\])?", said, re.S)
        if said == "void":
            continue
        if named is None:  # without a name, as by float*
            return None
        words = re.findall(rf"{_WORD}|\*", re.sub(r"__restrict__|\brestrict\b", "", named[1]))
        pointer = "*" in words or named[3] is not None
        kind = " ".join(w for w in words if w not in ("const", "*"))
        constant = "const" in words[: words.index("*")] if "*" in words else False
        parameters.append(CParameter(named[2], _NUMBERS.get(kind, ""), pointer, constant))
    return parameters


# Expressions of sizes: integers, names of dims, + - * // % ( ), min, max, cdiv, log2, size, dim.


MAX_TEXT = 500
MAX_DEPTH = 40
_LARGEST = 1 << 63

OPERATORS = frozenset("+-*/%(),")
"""Characters that occur in expressions but not in names."""

_TOKEN = re.compile(r"\s*(\d{1,19}|[A-Za-z_]\w{0,127}|//|[-+*%(),])", re.ASCII)

Shapes = Mapping[str, tuple[int, ...]]


class ExpressionError(ValueError):
    """Error for an expression that is invalid or whose value cannot be computed."""


def check_expression(text: str | int) -> None:
    """Check the syntax of an expression, but not whether its names exist. Raises
    ExpressionError."""
    _Parser(str(text), None, {}).whole()


def names_in(text: str | int) -> frozenset[str]:
    """Return the names of dims that an expression uses. Raises ExpressionError."""
    parser = _Parser(str(text), None, {})
    parser.whole()
    return frozenset(parser.seen)


def compute(text: str | int, names: Mapping[str, int], shapes: Shapes) -> int:
    """Compute an expression. Raises ExpressionError: A name is unknown, a divisor is zero, or a
    value exceeds 63 bits."""
    return _Parser(str(text), names, shapes).whole()


def solve(equations: Collection[tuple[str, int]], names: Mapping[str, int]) -> dict[str, int]:
    """Find the values of names from expressions whose values are known. A name is found if one
    value fits all expressions that hold only it besides `names`, and if these grow with it."""
    found: dict[str, int] = {}
    ranges: dict[str, tuple[int, int]] = {}
    for text, value in equations:
        unknown = names_in(text) - names.keys()
        if len(unknown) == 1:
            (name,) = unknown
            least = _least(text, value, name, names)
            most = _least(text, value + 1, name, names) - 1
            low, high = ranges.get(name, (least, most))
            ranges[name] = max(low, least), min(high, most)
    for name, (low, high) in ranges.items():
        if low == high:
            found[name] = low
    return found | (solve(equations, {**names, **found}) if found else {})


def _least(text: str, value: int, name: str, names: Mapping[str, int]) -> int:
    """Return the least size for which an expression that grows with it reaches a value."""
    low, high = 0, 1 << 40
    while low < high:
        middle = (low + high) // 2
        try:
            is_reached = compute(text, {**names, name: middle}, {}) >= value
        except ExpressionError:
            is_reached = middle > 0
        if is_reached:
            high = middle
        else:
            low = middle + 1
    return low


def is_made_of(text: str, names: Collection[str]) -> bool:
    """Tell whether a text is an expression with an operator, and uses only names in `names`."""
    if OPERATORS.isdisjoint(text):
        return False
    try:
        return names_in(text) <= set(names)
    except ExpressionError:
        return False


class _Parser:
    def __init__(self, text: str, names: Mapping[str, int] | None, shapes: Shapes) -> None:
        self._names, self._shapes, self._text = names, shapes, text
        if len(text) > MAX_TEXT:
            raise ExpressionError(f"an expression of more than {MAX_TEXT} characters")
        self._tokens: list[str] = []
        self.seen: set[str] = set()
        position = 0
        while position < len(text.rstrip()):
            match = _TOKEN.match(text, position)
            if match is None:
                raise ExpressionError(f"{text!r}: {text[position:].strip()[:20]!r} is not known")
            self._tokens.append(match.group(1))
            position = match.end()
        self._next = 0

    def whole(self) -> int:
        value = self._sum(0)
        if self._next < len(self._tokens):
            raise ExpressionError(f"{self._text!r}: {self._tokens[self._next]!r} is not expected")
        return value

    def _take(self) -> str:
        token = self._tokens[self._next] if self._next < len(self._tokens) else ""
        self._next += 1
        return token

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _expect(self, token: str) -> None:
        if self._take() != token:
            raise ExpressionError(f"{self._text!r}: {token!r} is missing")

    def _bounded(self, value: int) -> int:
        if not -_LARGEST <= value < _LARGEST:
            raise ExpressionError(f"{self._text!r} is beyond 63 bits")
        return value

    def _sum(self, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise ExpressionError(f"{self._text!r} is nested too deep")
        value = self._product(depth)
        while self._peek() in ("+", "-"):
            sign = 1 if self._take() == "+" else -1
            value = self._bounded(value + sign * self._product(depth))
        return value

    def _product(self, depth: int) -> int:
        value = self._factor(depth)
        while self._peek() in ("*", "//", "%"):
            operator, other = self._take(), self._factor(depth)
            if operator == "*":
                value = self._bounded(value * other)
            elif self._names is None:
                value = 1
            elif other == 0:
                raise ExpressionError(f"{self._text!r} divides by zero")
            else:
                value = value // other if operator == "//" else value % other
        return value

    def _factor(self, depth: int) -> int:
        word = self._take()
        if word == "-":
            return -self._factor(depth + 1)
        if word == "(":
            value = self._sum(depth + 1)
            self._expect(")")
            return value
        if word.isdigit():
            return self._bounded(int(word))
        if word in _FUNCTIONS and self._peek() == "(":
            return self._of_numbers(word, depth)
        if word in ("size", "dim") and self._peek() == "(":
            return self._of_tensor(word, depth)
        return self._dim(word)

    def _of_numbers(self, word: str, depth: int) -> int:
        self._take()
        count, function = _FUNCTIONS[word]
        given = [self._sum(depth + 1)]
        for _ in range(count - 1):
            self._expect(",")
            given.append(self._sum(depth + 1))
        self._expect(")")
        return 1 if self._names is None else self._bounded(function(*given))

    def _dim(self, name: str) -> int:
        if not name or not (name[0].isalpha() or name[0] == "_"):
            raise ExpressionError(f"{self._text!r} ends, or has {name!r}, where a value must stand")
        self.seen.add(name)
        if self._names is None:
            return 1
        if name not in self._names:
            known = ", ".join(sorted(self._names)) or "none"
            raise ExpressionError(f"{self._text!r}: no dim {name!r}; dims: {known}")
        return self._names[name]

    def _of_tensor(self, what: str, depth: int) -> int:
        self._expect("(")
        tensor = self._take()
        axis = 0
        if what == "dim":
            self._expect(",")
            axis = self._sum(depth + 1)
        self._expect(")")
        if self._names is None:
            return 1
        if tensor not in self._shapes:
            raise ExpressionError(f"{self._text!r}: no input {tensor!r}")
        shape = self._shapes[tensor]
        if what == "size":
            total = 1
            for extent in shape:
                total *= extent
            return self._bounded(total)
        if not -len(shape) <= axis < len(shape):
            raise ExpressionError(f"{self._text!r}: {tensor} has {len(shape)} axes")
        return shape[axis]


def _ceiling(a: int, b: int) -> int:
    if b == 0:
        raise ExpressionError("cdiv divides by zero")
    return -(-a // b)


def _logarithm(a: int) -> int:
    if a < 1:
        raise ExpressionError(f"log2 of {a}")
    return a.bit_length() - 1


_FUNCTIONS: dict[str, tuple[int, Callable[..., int]]] = {
    "min": (2, min), "max": (2, max), "cdiv": (2, _ceiling), "log2": (1, _logarithm),
}  # fmt: skip
"""Functions of numbers: how many they take."""
