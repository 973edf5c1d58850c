"""json and base64 for scripts: the standard library's results at a fraction of the time.

A protocol script spends most of its time in ``json.loads``, ``base64.b64decode``,
``base64.b64encode`` and ``json.dumps``, on megabytes of base64 text. In a worker these functions
are replaced by ones that return the same values and leave everything unusual to the originals.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable
from typing import Any

import pybase64

from gpuemu_flow.types import Json

_LONG = 4096  # characters from which a string is worth a look
_DEPTH = 4  # nesting down to which long strings are looked for
_ORIGINAL_LOADS = json.loads
_ORIGINAL_DUMPS = json.dumps
_ORIGINAL_DUMP = json.dump
_ORIGINAL_DECODE = base64.b64decode
_ORIGINAL_ENCODE = base64.b64encode


class _Known:
    """The request that the script is about to read, and what it parses to."""

    text: str = ""
    data: bytes = b""
    make: Callable[[], Json] | None = None


def expect(data: bytes, make: Callable[[], Json]) -> None:
    """Announce a request: its bytes, and how to build afresh what it parses to."""
    _Known.data, _Known.text, _Known.make = data, data.decode(), make


def forget() -> None:
    """The request is no longer current."""
    _Known.data, _Known.text, _Known.make = b"", "", None


def loads(s: Any, **options: Any) -> Json:
    """As ``json.loads``; the announced request is compared, not parsed."""
    known: str | bytes = _Known.text if type(s) is str else _Known.data
    make = _Known.make
    if make is None or len(s) != len(known) or any(v is not None for v in options.values()):
        return _ORIGINAL_LOADS(s, **options)
    return make() if s == known else _ORIGINAL_LOADS(s, **options)


def b64decode(s: Any, altchars: Any = None, validate: bool = False) -> bytes:
    """As ``base64.b64decode``."""
    if altchars is None:
        try:
            return pybase64.b64decode(s, validate=True)
        except (ValueError, TypeError, BufferError):  # the original may take it, or tell why not
            pass
    return _ORIGINAL_DECODE(s, altchars, validate)


def b64encode(s: Any, altchars: Any = None) -> bytes:
    """As ``base64.b64encode``."""
    if altchars is None:
        try:
            return pybase64.b64encode(s)
        except (ValueError, TypeError, BufferError):
            pass
    return _ORIGINAL_ENCODE(s, altchars)


def _needs_no_escapes(text: str) -> bool:
    try:
        pybase64.b64decode(text, validate=True)
    except ValueError:
        return False
    return True


def _take_long(value: Json, taken: dict[str, str], token: str, depth: int) -> Json:
    """A copy in which long base64 strings are replaced by short marks."""
    if type(value) is str and len(value) >= _LONG and _needs_no_escapes(value):
        mark = f"{token}:{len(taken)}"
        taken[mark] = value
        return mark
    if depth and type(value) is dict:
        return {key: _take_long(v, taken, token, depth - 1) for key, v in value.items()}
    if depth and type(value) is list and len(value) < _LONG:
        return [_take_long(v, taken, token, depth - 1) for v in value]
    return value


def dumps(obj: Any, **options: Any) -> str:
    """As ``json.dumps``; long base64 strings are put in, not escaped."""
    if options or type(obj) is not dict:
        return _ORIGINAL_DUMPS(obj, **options)
    taken: dict[str, str] = {}
    short = _take_long(obj, taken, secrets.token_hex(16), _DEPTH)
    if not taken:
        return _ORIGINAL_DUMPS(obj)
    pieces = []
    rest = _ORIGINAL_DUMPS(short)
    for mark, value in taken.items():
        before, found, rest = rest.partition(mark)
        if not found:
            return _ORIGINAL_DUMPS(obj)
        pieces += [before, value]
    return "".join([*pieces, rest])


def dump(obj: Any, fp: Any, **options: Any) -> None:
    """As ``json.dump``."""
    if options:
        _ORIGINAL_DUMP(obj, fp, **options)
    else:
        fp.write(dumps(obj))


def install() -> None:
    """Put these functions in the place of the originals, for this process."""
    replacements: tuple[tuple[Any, str, Any], ...] = (
        (json, "loads", loads),  # json.load calls it, too
        (json, "dumps", dumps),
        (json, "dump", dump),
        (base64, "b64decode", b64decode),
        (base64, "b64encode", b64encode),
    )
    for module, name, function in replacements:
        setattr(module, name, function)
