"""Read and write messages: flat JSON objects, whose base64 texts bypass the JSON parser.

Parsing megabytes of base64 as a JSON string takes many times as long as decoding it, and holds the
interpreter's lock meanwhile. So every long ``"data"`` text is cut out first, and a short token,
which nobody else can know, is parsed in its place. Writing works the same way.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import numpy as np
import pybase64
from numpy.typing import NDArray

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Json

CUT_FROM = 1 << 10  # minimum size of base64 in bytes for which cutting saves time
_PIECE = CUT_FROM // 2
_KEY = b'"data"'
_OPENING = re.compile(rb'[ \t\r\n]*:[ \t\r\n]*"')
_QUOTE, _BACKSLASH = b'"', b"\\"


class WireError(Exception):
    """Error of a message that violates protocol v1; its text is sent to the other side."""


@dataclass(frozen=True)
class Base64:
    """A value that `render` writes as the base64 text of an array's bytes in C order."""

    array: NDArray[np.uint8]


@dataclass(frozen=True)
class Encoded:
    """A message that is already JSON, in ASCII and without NaN or infinity."""

    text: str


@dataclass(frozen=True)
class ParsedMessage:
    """A parsed message.

    Attributes
    ----------
    fields : dict
        The JSON object; long base64 texts are tokens, see `text`.
    """

    fields: dict[str, Json]
    _cut: dict[str, memoryview] = field(default_factory=dict)

    def text(self, value: str) -> str | memoryview:
        """Return the text that a string value stands for.

        Long base64 texts were cut out of the message before it was parsed, and short tokens were
        put in their places. For a token, return the text that was cut out; return any other value
        as it is.
        """
        return self._cut.get(value, value)

    def part(self, fields: dict[str, Json]) -> ParsedMessage:
        """Return an object inside the message as a `ParsedMessage`, which can read its tokens."""
        return ParsedMessage(fields, self._cut)


def parse(data: bytes | bytearray) -> ParsedMessage:
    """Read a message.

    Raises
    ------
    WireError
        The message is not one JSON object in UTF-8.
    """
    cut: dict[str, memoryview] = {}
    rest = _cut_spans(data, cut) if _has_long_text(data) else data
    try:
        value = json.loads(rest.decode("utf-8"))
    except UnicodeDecodeError:
        raise WireError("the message is not UTF-8") from None
    except RecursionError:
        raise WireError("the message is nested too deeply") from None
    except ValueError as error:
        raise WireError(f"the message is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise WireError(f"the message is a JSON {type(value).__name__}, not an object")
    if b"\\u" in rest:
        _refuse_half_characters(value)
    return ParsedMessage(value, cut)


def _refuse_half_characters(value: Json) -> None:
    """Raise WireError for half of a surrogate pair, which cannot be stored or printed."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise WireError("the message holds text that is no Unicode") from None


def _has_long_text(data: bytes | bytearray) -> bool:
    """Tell whether a message may have a text of `CUT_FROM` bytes.

    The message is divided into pieces of half this size. A text that long contains a whole piece,
    and no quotation mark. So the message has no such text if each piece has a quotation mark. This
    test is quick, even if a message holds thousands of small tensors.
    """
    if len(data) < CUT_FROM:
        return False
    pieces = range(0, len(data) - _PIECE + 1, _PIECE)
    return any(data.find(_QUOTE, start, start + _PIECE) < 0 for start in pieces)


def _cut_spans(data: bytes | bytearray, cut: dict[str, memoryview]) -> bytes | bytearray:
    """Return the message with a token in place of each long ``data`` text.

    The texts that were cut out are added to `cut`, by token.
    """
    nonce = ""
    view = memoryview(data)
    pieces: list[bytes | memoryview] = []
    done = position = 0
    while (found := data.find(_KEY, position)) >= 0:
        position = found + len(_KEY)
        opening = _OPENING.match(data, position)
        # Inside a string, the key's quotes would be escaped.
        if opening is None or data[found - 1 : found] == _BACKSLASH:
            continue
        start = opening.end()
        stop = data.find(_QUOTE, start)
        if stop < 0:
            break
        position = stop
        if stop - start < CUT_FROM or data.find(_BACKSLASH, start, stop) >= 0:
            continue
        nonce = nonce or secrets.token_hex(16)  # a call of the system, which most need not make
        token = f"{nonce}{len(cut)}"
        cut[token] = view[start:stop]
        pieces += [view[done:start], token.encode()]
        done = stop
    if not cut:
        return data
    pieces.append(view[done:])
    return b"".join(pieces)


def _no_json(value: object) -> Json:
    raise TypeError(f"a {type(value).__name__} cannot be written")


def render(
    message: Mapping[str, Any] | Encoded, as_json: Callable[[object], Any] = _no_json
) -> bytes:
    """Return a message as JSON text, in bytes.

    Parameters
    ----------
    message : mapping or Encoded
        At any depth, a mapping may contain JSON values, `Base64` values, and values that `as_json`
        converts.
    as_json : callable
        Converts any other value to a JSON value; may raise TypeError.

    Raises
    ------
    TypeError
        A value cannot be converted.
    ValueError
        A value is NaN or infinite, which JSON does not have.
    """
    if isinstance(message, Encoded):
        return message.text.encode()
    nonce = ""
    payloads: list[Base64] = []

    def token(value: object) -> Any:
        nonlocal nonce
        if not isinstance(value, Base64):
            return as_json(value)
        nonce = nonce or secrets.token_hex(16)
        payloads.append(value)
        return f"{nonce}{len(payloads) - 1}"

    text = json.dumps(message, default=token, separators=(",", ":"), allow_nan=False).encode()
    pieces: list[bytes | memoryview] = []
    position = 0
    for number, payload in enumerate(payloads):
        mark = f'"{nonce}{number}"'.encode()
        found = text.index(mark, position)
        pieces += [text[position : found + 1], pybase64.b64encode(payload.array.data)]
        position = found + len(mark) - 1
    pieces.append(text[position:])
    return b"".join(pieces)
