"""Read sources: parse Python, one at a time; signatures in C; constants that are compared with."""

from __future__ import annotations

import ast
import math
import re
import struct
from collections.abc import Iterator
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
