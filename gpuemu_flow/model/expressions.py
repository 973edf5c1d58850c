"""Expressions of sizes: integers, names of dims, + - * // % ( ), min, max, cdiv, log2, size, dim.

They are parsed and computed here, never evaluated by Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

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
