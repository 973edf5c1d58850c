"""Parse ``NAME[1, 0:4, ...]``: only integers, slices and an ellipsis, without evaluating code."""

from __future__ import annotations

import re
from types import EllipsisType
from typing import TypeAlias

from gpuemu_flow.debug.problems import bad_slice
from gpuemu_flow.types import Shape

Index: TypeAlias = "int | slice | EllipsisType"

_WORD = re.compile(r"(?P<name>[^\[\]\s]+)(?:\s*\[(?P<parts>[^\[\]]*)\])?")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


def parse_tensors(text: str) -> list[tuple[str, tuple[Index, ...]]]:
    """Return the names in a text, each with its indices; () for a name without brackets.

    Raises
    ------
    UsageError
        ``debug-bad-slice``.
    """
    found = []
    position = 0
    text = text.strip()
    while position < len(text):
        match = _WORD.match(text, position)
        if match is None:
            raise bad_slice(text, "a bracket without its partner")
        parts = match["parts"]
        found.append((match["name"], () if parts is None else _parse_parts(match[0], parts)))
        position = match.end()
        rest = text[position:]
        if rest and not rest[0].isspace():
            lone = "a bracket without its partner"
            raise bad_slice(text, lone if rest[0] in "[]" else f"unexpected {rest[0]!r}")
        position += len(rest) - len(rest.lstrip())
    return found


def _parse_parts(text: str, parts: str) -> tuple[Index, ...]:
    if not parts.strip():
        raise bad_slice(text, "nothing between the brackets")
    indices = tuple(_parse_part(text, part.strip()) for part in parts.split(","))
    if sum(index is ... for index in indices) > 1:
        raise bad_slice(text, "more than one ellipsis")
    return indices


def _parse_part(text: str, part: str) -> Index:
    if part == "...":
        return ...
    if ":" not in part:
        return _integer(text, part)
    bounds = [_integer(text, b.strip()) if b.strip() else None for b in part.split(":")]
    if len(bounds) > 3:
        raise bad_slice(text, f"{part!r} has more than start:stop:step")
    if len(bounds) == 3 and bounds[2] == 0:
        raise bad_slice(text, "a step of 0")
    return slice(*bounds)


def _integer(text: str, part: str) -> int:
    if not _INTEGER.fullmatch(part):
        raise bad_slice(text, f"{part!r} is no integer" if part else "an empty index")
    return int(part)


def check_slice(text: str, indices: tuple[Index, ...], shape: Shape) -> None:
    """Raise an error if a tensor of this shape does not have these indices.

    Slices may exceed the shape, as in numpy. `text` is only for the message.

    Raises
    ------
    UsageError
        ``debug-bad-slice``.
    """
    given = [index for index in indices if index is not ...]
    if len(given) > len(shape):
        raise bad_slice(text, f"{len(given)} indices for the shape {list(shape)}")
    before = indices.index(...) if ... in indices else len(indices)
    sizes = (*shape[:before], *shape[len(shape) - (len(given) - before) :])
    for index, size in zip(given, sizes, strict=False):
        if isinstance(index, int) and not -size <= index < size:
            raise bad_slice(text, f"{index} is out of range for a dim of {size}")
