"""Declarations: ``.reg`` statements, variables with their sizes, and entry directives."""

from __future__ import annotations

import math
import re

from gpuemu_flow.artifacts.ptx.model import (
    LaunchBounds,
    RegisterDeclaration,
    Variable,
    element_bytes,
)
from gpuemu_flow.artifacts.ptx.numbers import parse_integer
from gpuemu_flow.artifacts.ptx.opcode import VECTOR_WIDTHS

MAX_NAMES = 100_000
"""Largest number of names read from one declaration; a hostile file may declare millions."""

_MAX_BYTES = 1 << 62
_SPECIFIERS = re.compile(r"\s*\.(\w+)(?:::\w+)?(\s*\([^)]*\)|\s+\d+(?=\s))?", re.ASCII)
_DECLARATOR = re.compile(r"\s*([\w$%.]+)\s*((?:\[[^\]]*\]\s*){0,8})", re.ASCII)
_RANGE = re.compile(r"\s*([\w$%]+)\s*<\s*(\d{1,9})\s*>\s*\Z", re.ASCII)
_DIMENSION = re.compile(r"\[\s*([^\]\s]*)\s*\]", re.ASCII)
_LINKAGE = frozenset({"extern", "visible", "weak", "common"})
_VARIABLE_SPACES = frozenset({"shared", "local", "global", "const", "param"})
_BOUND = re.compile(
    r"\.(maxntid|reqntid|minnctapersm|maxnctapersm|maxnreg|reqnctapercluster)\s+"
    r"(\d{1,9}(?:\s*,\s*\d{1,9}){0,2})",
    re.ASCII,
)


def parse_registers(statement: str) -> list[RegisterDeclaration]:
    """Parse a ``.reg`` statement without its ``;``, such as ``.reg .v4 .f32 v, %r<3>``."""
    type_name, lanes, position = "", 1, 0
    match = _SPECIFIERS.match(statement)
    while match is not None:
        segment = match.group(1)
        if segment in VECTOR_WIDTHS:
            lanes = VECTOR_WIDTHS[segment]
        elif segment != "reg":
            type_name = segment
        position = match.end()
        match = _SPECIFIERS.match(statement, position)
    found = []
    for part in statement[position:].split(",", MAX_NAMES)[:MAX_NAMES]:
        ranged = _RANGE.match(part)
        if ranged is not None:
            found.append(
                RegisterDeclaration(ranged.group(1), int(ranged.group(2)), type_name, lanes)
            )
        elif part.strip():
            found.append(RegisterDeclaration(part.strip(), None, type_name, lanes))
    return found


def parse_variables(statement: str, offset: int) -> list[Variable]:
    """List the variables that one statement declares.

    The size of a variable is the element size times all dimensions times the vector lanes; ``a[]``
    has no size.
    """
    space, type_name, lanes, align, external = "", "", 1, 0, False
    position = 0
    match = _SPECIFIERS.match(statement)
    while match is not None:
        segment, argument = match.group(1), match.group(2)
        if segment in _VARIABLE_SPACES and not space:
            space = segment
        elif segment in VECTOR_WIDTHS:
            lanes = VECTOR_WIDTHS[segment]
        elif segment == "align":
            align = parse_integer(argument or "") or 0
        elif segment == "extern":
            external = True
        elif element_bytes(segment):
            type_name = segment
        position = match.end()
        match = _SPECIFIERS.match(statement, position)
    if not space:
        return []
    variables = []
    for part in statement[position:].partition("=")[0].split(",", MAX_NAMES)[:MAX_NAMES]:
        declarator = _DECLARATOR.match(part)
        if declarator is not None:
            variables.append(
                Variable(
                    declarator.group(1),
                    space,
                    type_name,
                    _size(element_bytes(type_name) * lanes, declarator.group(2)),
                    align,
                    external,
                    offset,
                )
            )
    return variables


def _size(element: int, dimensions: str) -> int | None:
    total = element
    for text in _DIMENSION.findall(dimensions):
        extent = parse_integer(text)
        if extent is None or extent < 0:
            return None
        total = min(total * extent, _MAX_BYTES)
    return total


def parse_bounds(header: str) -> LaunchBounds:
    """Return the performance directives in the header of an entry, such as ``.maxntid``."""
    values: dict[str, list[int]] = {}
    for name, numbers in _BOUND.findall(header):
        values[name] = [int(n) for n in numbers.split(",")]
    threads = values.get("reqntid") or values.get("maxntid") or [0]
    return LaunchBounds(
        max_threads=math.prod(threads),
        required="reqntid" in values,
        min_blocks=values.get("minnctapersm", [0])[0],
        max_registers=values.get("maxnreg", [0])[0],
        cluster=math.prod(values.get("reqnctapercluster", [0])),
    )


def linkage_of(header: str) -> str:
    """Return the linkage in a header: ``visible``, ``weak``, ``extern``, ``common``, or empty."""
    for word in header.split(None, 4)[:4]:
        if word.startswith(".") and word[1:] in _LINKAGE:
            return word[1:]
    return ""
