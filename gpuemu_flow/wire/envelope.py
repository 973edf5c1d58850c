"""Read and write messages: flat JSON objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from gpuemu_flow.model.types import Json


class WireError(Exception):
    """Error of a message that violates protocol v1; its text is sent to the other side."""


def parse(data: bytes | bytearray) -> dict[str, Json]:
    """Read a message, or raise WireError if it is not one JSON object in UTF-8."""
    try:
        value = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise WireError("the message is not UTF-8") from None
    except RecursionError:
        raise WireError("the message is nested too deeply") from None
    except ValueError as error:
        raise WireError(f"the message is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise WireError(f"the message is a JSON {type(value).__name__}, not an object")
    if b"\\u" in data:
        _refuse_half_characters(value)
    return value


def _refuse_half_characters(value: Json) -> None:
    """Raise WireError for half of a surrogate pair, which cannot be stored or printed."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise WireError("the message holds text that is no Unicode") from None


def _no_json(value: object) -> Json:
    raise TypeError(f"a {type(value).__name__} cannot be written")


def render(message: Mapping[str, Any], as_json: Callable[[object], Any] = _no_json) -> bytes:
    """Return a message as JSON text; `as_json` converts values that JSON does not have.

    Raises TypeError: A value cannot be converted. Raises ValueError: A value is NaN or infinite.
    """
    return json.dumps(message, default=as_json, separators=(",", ":"), allow_nan=False).encode()
