"""Messages of the wire: what is one, and what is not."""

from __future__ import annotations

import pytest
from for_each import for_each

from gpuemu_flow.wire import WireError, parse, render


@for_each(
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


def test_there_and_back() -> None:
    message = {"type": "Ok", "x": [1.5, "ü\n"], "data": "A" * 5000}
    assert parse(render(message)) == message


def test_render_refuses_what_json_has_not() -> None:
    with pytest.raises(ValueError, match="JSON"):
        render({"a": float("nan")})
    with pytest.raises(TypeError, match="object"):
        render({"a": object()})
