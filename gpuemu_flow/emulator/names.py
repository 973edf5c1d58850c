"""Names that a programmer wrote, extracted from C++ symbols."""

from __future__ import annotations

import re

_LAST = re.compile(r"(\d{1,4})([A-Za-z_]\w*)\Z", re.ASCII)


def plain_function(symbol: str) -> str:
    """Return a function's plain name from its C++ symbol; return other text unchanged."""
    if not symbol.startswith("_Z"):
        return symbol
    rest, name = symbol[2:].lstrip("NKL"), symbol
    while rest[:1].isdigit():
        digits = len(rest) - len(rest.lstrip("0123456789"))
        length = int(rest[: min(digits, 4)])
        name, rest = rest[digits : digits + length], rest[digits + length :]
    return name


def plain_variable(symbol: str) -> str:
    """Return a static variable's plain name from its symbol; return other text unchanged."""
    if not symbol.startswith("_ZZ"):
        return symbol
    for start in range(len(symbol) - 1, 2, -1):
        match = _LAST.match(symbol, start)
        if match is not None and int(match.group(1)) == len(match.group(2)):
            return match.group(2)
    return symbol
