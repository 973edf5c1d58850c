"""Replace json and base64 for scripts: equal results in a fraction of the time.

A protocol script spends most of its time in ``json.loads``, ``base64.b64decode``,
``base64.b64encode`` and ``json.dumps``, on megabytes of base64 text. A worker replaces them by the
functions of this module. These return the same values, and call the original functions in unusual
cases.
"""

from __future__ import annotations

import base64
import json
import secrets
from typing import Any

import pybase64

from gpuemu_flow.runners import lending
from gpuemu_flow.types import Json

_LONG = 4096  # minimum length of a long string, in characters
_DEPTH = 4  # maximum nesting at which long strings are looked for
_ORIGINAL_LOADS = json.loads
_ORIGINAL_LOAD = json.load
_ORIGINAL_DUMPS = json.dumps
_ORIGINAL_DUMP = json.dump
_ORIGINAL_DECODE = base64.b64decode
_ORIGINAL_ENCODE = base64.b64encode


def loads(s: Any, **options: Any) -> Json:
    """Return the result of ``json.loads``.

    If the text is that of the request which the script is answering, the result is made without
    parsing the text.
    """
    exchange = lending.current
    if exchange is not None and all(value is None for value in options.values()):
        request = exchange.request
        if isinstance(s, str) and s == request.text:
            return request.document()
        if isinstance(s, (bytes, bytearray)) and s == request.data:
            return request.document()
    return _ORIGINAL_LOADS(s, **options)


def load(fp: Any, **options: Any) -> Json:
    """Return the result of ``json.load``.

    If `fp` is the script's standard input, it may be empty because the request is passed as an
    object; see `lending`. The object is then returned, and nothing is read.
    """
    exchange = lending.current
    if exchange is not None and exchange.lent and lending.is_input(fp):
        if all(value is None for value in options.values()) and exchange.take():
            return exchange.request.document()
        exchange.deny()
    return _ORIGINAL_LOAD(fp, **options)


def b64decode(s: Any, altchars: Any = None, validate: bool = False) -> bytes:
    """Decode like ``base64.b64decode``."""
    if altchars is None:
        try:
            return pybase64.b64decode(s, validate=True)
        except (ValueError, TypeError, BufferError):  # the original may take it, or tell why not
            pass
    return _ORIGINAL_DECODE(s, altchars, validate)


def b64encode(s: Any, altchars: Any = None) -> bytes:
    """Encode like ``base64.b64encode``."""
    if altchars is None:
        try:
            return pybase64.b64encode(s)
        except (ValueError, TypeError, BufferError):
            pass
    return _ORIGINAL_ENCODE(s, altchars)


def _take_long(value: Json, taken: dict[str, tuple[str, bytes]], token: str, depth: int) -> Json:
    """Copy a JSON value, with a short placeholder in place of each long base64 string.

    Parameters
    ----------
    value : JSON
    taken : dict of str to (str, bytes)
        For each placeholder, the string and the bytes that it decodes to are added here.
    token : str
        The beginning of each placeholder, which must not occur in the value.
    depth : int
        Number of further levels of nesting in which to look for strings.
    """
    if type(value) is str and len(value) >= _LONG:
        try:
            raw = pybase64.b64decode(value, validate=True)
        except ValueError:
            return value
        mark = f"{token}:{len(taken)}"
        taken[mark] = (value, raw)
        return mark
    if depth and type(value) is dict:
        return {key: _take_long(v, taken, token, depth - 1) for key, v in value.items()}
    if depth and type(value) is list and len(value) < _LONG:
        return [_take_long(v, taken, token, depth - 1) for v in value]
    return value


def capture(obj: Any) -> lending.Captured | None:
    """Return a dict with its long base64 strings stored separately; None if there are none.

    The result is also None for an object that is not a dict.
    """
    if type(obj) is not dict:
        return None
    taken: dict[str, tuple[str, bytes]] = {}
    shortened = _take_long(obj, taken, secrets.token_hex(16), _DEPTH)
    if not taken:
        return None
    short = _ORIGINAL_DUMPS(shortened)
    return lending.Captured(short, taken) if all(mark in short for mark in taken) else None


def dumps(obj: Any, **options: Any) -> str:
    """Format like ``json.dumps``, with long base64 strings inserted without escaping."""
    captured = None if options else capture(obj)
    if captured is None:
        return _ORIGINAL_DUMPS(obj, **options)
    if lending.current is not None:
        lending.current.dumped = captured
    return captured.text


def dump(obj: Any, fp: Any, **options: Any) -> None:
    """Write like ``json.dump``."""
    captured = None if options else capture(obj)
    if captured is None:
        _ORIGINAL_DUMP(obj, fp, **options)
    elif not (isinstance(fp, lending.Output) and fp.hold(captured)):
        fp.write(captured.text)


def install() -> None:
    """Replace the functions of ``json`` and ``base64`` in this process by those of this module."""
    replacements: tuple[tuple[Any, str, Any], ...] = (
        (json, "loads", loads),
        (json, "load", load),
        (json, "dumps", dumps),
        (json, "dump", dump),
        (base64, "b64decode", b64decode),
        (base64, "b64encode", b64encode),
    )
    for module, name, function in replacements:
        setattr(module, name, function)
