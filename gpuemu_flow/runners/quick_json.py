"""json, base64 and stdin for scripts: the standard library's results at a fraction of the time.

A protocol script spends most of its time in ``json.loads``, ``base64.b64decode``,
``base64.b64encode`` and ``json.dumps``, on megabytes of base64 text. In a worker these functions
are replaced by ones that return the same values and leave everything unusual to the originals.
"""

from __future__ import annotations

import base64
import io
import json
import os
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
    identity: tuple[int, int] | None = None


def expect(text: str, data: bytes, make: Callable[[], Json]) -> None:
    """Announce the request that descriptor 0 holds.

    Parameters
    ----------
    text, data : str and bytes
        The request.
    make : callable
        Builds afresh what it parses to.
    """
    found = os.fstat(0)
    _Known.data, _Known.text, _Known.make = data, text, make
    _Known.identity = (found.st_dev, found.st_ino)


def forget() -> None:
    """The request is no longer current."""
    _Known.data, _Known.text, _Known.make, _Known.identity = b"", "", None, None


def _is_unread() -> bool:
    """Whether descriptor 0 is the announced request's still, and at its beginning."""
    try:
        found = os.fstat(0)
        same = _Known.identity == (found.st_dev, found.st_ino)
        return same and os.lseek(0, 0, os.SEEK_CUR) == 0
    except OSError:
        return False


class _Bytes(io.BufferedReader):
    """``sys.stdin.buffer``: a read of everything gives what was announced, without a copy."""

    def read(self, size: int | None = -1, /) -> bytes:
        if (size is None or size < 0) and _is_unread():
            os.lseek(0, 0, os.SEEK_END)
            return _Known.data
        return super().read(size)


class _Text(io.TextIOWrapper):
    """``sys.stdin``, likewise."""

    def read(self, size: int | None = -1, /) -> str:
        if (size is None or size < 0) and _is_unread():
            os.lseek(0, 0, os.SEEK_END)
            return _Known.text
        return super().read(size)


def open_stdin() -> io.TextIOWrapper:
    """Descriptor 0 as an interpreter opens it."""
    return _Text(_Bytes(io.FileIO(0, closefd=False)), encoding="utf-8")


def loads(s: Any, **options: Any) -> Json:
    """As ``json.loads``; the announced request is compared, not parsed."""
    make = _Known.make
    if make is not None and all(value is None for value in options.values()):
        known: str | bytes = _Known.text if isinstance(s, str) else _Known.data
        if s == known:
            return make()
    return _ORIGINAL_LOADS(s, **options)


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
