"""Tensors in the debugger: their names and slices, what is shown of them, and its errors."""

from __future__ import annotations

import re
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.model.errors import Problem, UsageError, did_you_mean
from gpuemu_flow.model.types import Shape
from gpuemu_flow.numerics.dtypes import to_float64
from gpuemu_flow.report.pictures import heat_map
from gpuemu_flow.report.text import number, printable


def unknown_command(word: str, known: tuple[str, ...]) -> UsageError:
    """Make the error ``debug-unknown-command``."""
    hint = did_you_mean(word, known)
    return UsageError(Problem("debug-unknown-command", f"no command {word!r}", hint))


def bad_arguments(usage: str) -> UsageError:
    """Make the error ``debug-bad-arguments``."""
    return UsageError(Problem("debug-bad-arguments", f"it is used as: {usage}"))


def nothing_selected() -> UsageError:
    """Make the error ``debug-no-failure``."""
    hint = "`list` lists failures, `show SEED` selects one"
    return UsageError(Problem("debug-no-failure", "no failure is selected", hint))


def bad_slice(text: str, reason: str) -> UsageError:
    """Make the error ``debug-bad-slice``."""
    hint = "NAME[1, 0:4, ::2] with integers only"
    return UsageError(Problem("debug-bad-slice", f"{text!r}: {reason}", hint))


def unknown_tensor(name: str, known: tuple[str, ...]) -> UsageError:
    """Make the error ``debug-unknown-tensor``."""
    hint = did_you_mean(name, known)
    return UsageError(Problem("debug-unknown-tensor", f"no tensor {name!r}", hint))


def shapes_differ(first: object, second: object) -> UsageError:
    """Make the error ``debug-shapes-differ``."""
    message = f"tensors of the shapes {first} and {second} cannot be compared"
    return UsageError(Problem("debug-shapes-differ", message, "take slices of one shape"))


Index: TypeAlias = "int | slice | EllipsisType"

_WORD = re.compile(r"(?P<name>[^\[\]\s]+)(?:\s*\[(?P<parts>[^\[\]]*)\])?")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


def parse_tensors(text: str) -> list[tuple[str, tuple[Index, ...]]]:
    """Return the names in a text, each with its indices; () for a name without brackets.

    Raises UsageError: ``debug-bad-slice``.
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
    """
    given = [index for index in indices if index is not ...]
    if len(given) > len(shape):
        raise bad_slice(text, f"{len(given)} indices for the shape {list(shape)}")
    before = indices.index(...) if ... in indices else len(indices)
    sizes = (*shape[:before], *shape[len(shape) - (len(given) - before) :])
    for index, size in zip(given, sizes, strict=False):
        if isinstance(index, int) and not -size <= index < size:
            raise bad_slice(text, f"{index} is out of range for a dim of {size}")


Array = NDArray[Any]

SHOWN = 400
_LEVELS = " .:-=#!"
_LEGEND = (
    "'#' over 1/10 of the largest difference, '=' over 1/100, '-' over 1/1000, ':' over 1/10000, "
    "'.' less, ' ' equal, '!' NaN or Inf in one of them only"
)
_DECADES = (1e-4, 1e-3, 1e-2, 1e-1)
_SHARES = (0.05, 0.3, 0.9, 5.0, 100.0)  # one value for each level that `heat_map` draws
_NEVER_EQUAL = np.inf


def describe(name: str, array: Array) -> str:
    """Describe a tensor in one line: dtype, shape, range, mean, and numbers of NaN and Inf.

    Strides are shown, too, unless they are in C order.
    """
    words = f"{printable(name)}  {array.dtype.name}{list(array.shape)}"
    if array.size > 1 and not array.flags.c_contiguous:
        steps = [step // array.itemsize for step in array.strides]
        words += f"  strides {steps}"
    values = to_float64(array)
    finite = values[np.isfinite(values)]
    if finite.size:
        low, high, mean = float(finite.min()), float(finite.max()), float(finite.mean())
        words += f"  min {low:.9g}  max {high:.9g}  mean {mean:.9g}"
    for what, count in (
        ("NaN", np.isnan(values).sum()),
        ("Inf", np.isinf(values).sum()),
    ):
        words += f"  {count} {what}" if count else ""
    return words


def value_lines(array: Array) -> list[str]:
    """Return a tensor's values as lines of text.

    If there are more than `SHOWN` values, only the first and last ones of each dim are shown.
    """
    shown = to_float64(array) if array.dtype.kind == "V" else array
    digits = 5 if array.itemsize <= 2 else 17 if array.itemsize == 8 else 9
    with np.printoptions(threshold=SHOWN, edgeitems=4, linewidth=100, precision=digits):
        return str(np.asarray(shown)).splitlines()


def difference_lines(names: tuple[str, str], first: Array, second: Array) -> list[str]:
    """Return lines of text that compare two tensors.

    They show the number of elements that differ, the largest difference, and a map of all
    differences.

    Raises UsageError: ``debug-shapes-differ``.
    """
    if first.shape != second.shape:
        raise shapes_differ(list(first.shape), list(second.shape))
    heading = f"{printable(' against '.join(names))}, {list(first.shape)}"
    if not first.size:
        return [f"{heading}: no elements"]
    a, b = to_float64(first), to_float64(second)
    with np.errstate(all="ignore"):
        error = np.array(np.abs(a - b))  # otherwise a 0-d difference is no array
    error[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
    error[np.isnan(error)] = _NEVER_EQUAL
    differ = int((error > 0).sum())
    if not differ:
        return [f"{heading}: equal"]
    worst = np.unravel_index(int(error.argmax()), error.shape)
    place = [int(i) for i in worst]
    finite = error[np.isfinite(error)]
    largest = float(finite.max()) if finite.size else 0.0
    share = np.zeros(error.shape)
    if largest > 0:
        level = np.searchsorted(np.array(_DECADES), error / largest, side="left")
        share = np.where(error > 0, np.array(_SHARES)[level], 0.0)
    share[~np.isfinite(error)] = 1e9
    rows, fold = heat_map(share)
    return [
        f"{heading}: {differ} of {error.size} elements differ",
        f"largest {number(float(error[worst]))} at {place}: {a[worst]:.9g} against {b[worst]:.9g}",
        fold,
        *("|" + "".join(_LEVELS[int(c)] for c in row) + "|" for row in rows),
        _LEGEND,
    ]
