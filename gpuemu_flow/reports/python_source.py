"""Write values as Python source, so that text in names and messages never becomes code."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Json

LINE_LENGTH = 80


@dataclass(frozen=True)
class PythonSource:
    """A value that is already Python source, and is written unchanged instead of as a literal."""

    code: str


def literal(value: Json, margin: str = "") -> str:
    """Return ASCII Python source that evaluates to a value; special characters are escaped.

    Tables and lists that are too long for a line have one element per line, indented by `margin`.

    Raises
    ------
    TypeError
        The value is not a JSON value.
    """
    if isinstance(value, PythonSource):
        return value.code
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    if value is None or isinstance(value, (bool, int, float, str)):
        return ascii(value)
    deeper = margin + "    "
    if isinstance(value, (list, tuple)):
        return _joined("[]", [literal(element, deeper) for element in value], margin)
    if isinstance(value, Mapping):
        items = [f"{literal(key)}: {literal(member, deeper)}" for key, member in value.items()]
        return _joined("{}", items, margin)
    raise TypeError(f"a {type(value).__name__} cannot be written into a test")


def _joined(brackets: str, items: Sequence[str], margin: str) -> str:
    line = f"{brackets[0]}{', '.join(items)}{brackets[1]}"
    if len(margin) + len(line) <= LINE_LENGTH and "\n" not in line:
        return line
    inner = "".join(f"{margin}    {item},\n" for item in items)
    return f"{brackets[0]}\n{inner}{margin}{brackets[1]}"
