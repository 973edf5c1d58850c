"""Data into structs, by any thread.

msgspec (0.22) works out how to read a struct when it first reads one, and a second thread that
reads the same struct in that moment crashes the process: the half that is there is taken for the
whole. So the first reading of each type waits for every other first reading.
"""

from __future__ import annotations

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
