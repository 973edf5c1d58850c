"""The envelope reads and writes what json does, with base64 cut out of its way."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuemu_flow.wire import envelope
from gpuemu_flow.wire.envelope import CUT_FROM, Base64, WireError, parse, render


def plain(parsed: envelope.ParsedMessage, value: Any, key: str = "") -> Any:
    """A parsed value with the cut texts back in place; only ``data`` may have been cut."""
    if isinstance(value, str) and key == "data":
        text = parsed.text(value)
        return text if isinstance(text, str) else bytes(text).decode()
    if isinstance(value, dict):
        return {name: plain(parsed, item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(parsed, item) for item in value]
    return value


words = st.text(max_size=8) | st.sampled_from(["data", '"data"', 'a"data', "data\\", '":"', "\\"])
values = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(
    st.dictionaries(words, values, max_size=5),
    st.sampled_from(["data", "x", 'a"data', '\\"data', "\\data"]),
    st.integers(CUT_FROM - 4, CUT_FROM + 4),
    st.sampled_from(["A", '"', "\\", "é", "/"]),
    st.booleans(),
    st.sampled_from([None, 1]),
)
def test_parse_gives_what_json_gives(
    message: dict[str, Any], key: str, size: int, letter: str, ascii_only: bool, indent: int | None
) -> None:
    """Whatever quotes, escapes and long texts are in it."""
    message = {**message, "nested": {key: letter * size}, "more": {"data": "B" * size}}
    data = json.dumps(message, ensure_ascii=ascii_only, indent=indent).encode()
    parsed = parse(data)
    assert plain(parsed, parsed.fields) == json.loads(data)


def test_long_data_is_really_cut() -> None:
    parsed = parse(json.dumps({"t": {"data": "A" * CUT_FROM}}).encode())
    assert len(parsed.fields["t"]["data"]) < 100
    assert isinstance(parsed.text(parsed.fields["t"]["data"]), memoryview)


def test_a_token_cannot_be_forged() -> None:
    """Tokens are random: the same text gives another one each time."""
    data = json.dumps({"data": "A" * CUT_FROM}).encode()
    assert parse(data).fields["data"] != parse(data).fields["data"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON"),
        (b"\xff", "UTF-8"),
        (b"[1]", "list"),
        (b"3", "int"),
        (b"{" * 100_000, "JSON|nested"),
        (b'{"a":' * 100_000, "JSON|nested"),
        (b'{"a":"\\ud800"}', "Unicode"),
        (b'{"a":' + b"1" * 5000 + b"}", "JSON"),
        (b'{"data":"' + b"A" * 2000, "JSON"),
    ],
)
def test_what_is_no_message(data: bytes, message: str) -> None:
    with pytest.raises(WireError, match=message):
        parse(data)


@given(st.dictionaries(words, values, max_size=5), st.lists(st.binary(max_size=40), max_size=4))
def test_render_gives_what_json_gives(message: dict[str, Any], payloads: list[bytes]) -> None:
    arrays = [Base64(np.frombuffer(p, np.uint8)) for p in payloads]
    written = json.loads(render({**message, "tensors": arrays}))
    texts = [base64.b64encode(p).decode() for p in payloads]
    assert written == {**message, "tensors": texts}


def test_render_refuses_what_json_has_not() -> None:
    with pytest.raises(ValueError, match="JSON"):
        render({"a": float("nan")})
    with pytest.raises(TypeError, match="object"):
        render({"a": object()})
