"""Data into structs, by any thread, and structs into plain data.

msgspec (0.22) works out how to read a struct when it first reads one, and a second thread that
reads the same struct in that moment crashes the process: the half that is there is taken for the
whole. So the first reading of each type waits for every other first reading.
"""

from __future__ import annotations

import math
import threading
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

_first = threading.RLock()
_known: set[Any] = set()


@overload
def convert(
    data: Any, wanted: type[T], *, strict: bool = True, from_attributes: bool = False
) -> T: ...
@overload
def convert(
    data: Any, wanted: Any, *, strict: bool = True, from_attributes: bool = False
) -> Any: ...
def convert(data: Any, wanted: Any, *, strict: bool = True, from_attributes: bool = False) -> Any:
    """Return plain data as what is wanted; raise msgspec.ValidationError if they do not fit."""
    return msgspec.convert(  # noqa: TID251
        data, known(wanted), strict=strict, from_attributes=from_attributes
    )


def known(wanted: T) -> T:
    """Return a type once msgspec knows how to read it: to be given to its decoders of bytes."""
    if wanted not in _known:
        with _first:
            msgspec.json.Decoder(wanted)
            _known.add(wanted)
    return wanted


def plain(value: object) -> Any:
    """Return a value as JSON has it: structs as objects, tuples as lists, NaN and infinities as
    words, which `convert` reads as floats unless it is strict."""
    return _finite(msgspec.to_builtins(value, enc_hook=builtin))


def builtin(value: Any) -> Any:
    """Return a number of numpy, or a text of a kind of its own, as msgspec writes it."""
    return str(value) if isinstance(value, str) else value.item()  # a hint, or a number of numpy


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: one if type(one) in _AS_IS else _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [one if type(one) in _AS_IS else _finite(one) for one in value]
    return value


_AS_IS = frozenset({str, int, bool, type(None)})
