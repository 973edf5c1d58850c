"""The fast json and base64 functions give what the standard library gives, errors included."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuemu_flow.runners import lending, memfd, quick_json
from gpuemu_flow.runners.codec import EncodedRequest, prepare_request

LONG = base64.b64encode(bytes(range(256)) * 40).decode()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(LONG),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=10,
)


def same(function: Callable[..., Any], original: Callable[..., Any], *args: Any, **kw: Any) -> bool:
    """Equal results, or errors of the same type."""
    results = []
    for tried in (function, original):
        try:
            results.append(("value", repr(tried(*args, **kw))))
        except Exception as error:
            results.append(("error", type(error).__name__))
    return results[0] == results[1]


@settings(deadline=None)
@given(VALUES)
def test_dumps(value: Any) -> None:
    assert same(quick_json.dumps, json.dumps, value)
    assert same(quick_json.dumps, json.dumps, {"data": value, "more": [value, LONG]})
    assert same(quick_json.dumps, json.dumps, {"data": LONG}, indent=2)
    assert same(quick_json.dumps, json.dumps, {LONG: value})


def stable_id(value: Any) -> str:
    """A name that does not hold an address, so that parallel runs collect the same tests."""
    return f"memoryview({bytes(value)!r})" if isinstance(value, memoryview) else repr(value)


@pytest.mark.parametrize(
    "value",
    [
        {"a": LONG, "b": LONG, "c": {"d": [LONG]}},
        {"a": '"' * 5000},
        {"a": "\\" * 5000},
        {"a": "\u20ac" * 5000},
        {"a": LONG[:-1] + "\n"},
        {"a": {"b": {"c": {"d": {"e": {"f": LONG}}}}}},
        {"a": object()},
        {1: LONG},
        {None: LONG, True: LONG},
        {"a": (LONG, 1)},
        {(1, 2): LONG},
        [LONG],
        LONG,
        {"a": np.float32(1), "b": LONG},
    ],
)
def test_dumps_of_long_strings(value: Any) -> None:
    assert same(quick_json.dumps, json.dumps, value)
    ours, theirs = io.StringIO(), io.StringIO()
    assert same(
        lambda v: quick_json.dump(v, ours) or ours.getvalue(),
        lambda v: json.dump(v, theirs) or theirs.getvalue(),
        value,
    )


def test_dumps_of_a_cycle() -> None:
    cycle: dict[str, Any] = {"long": LONG}
    cycle["self"] = cycle
    assert same(quick_json.dumps, json.dumps, cycle)


BASE64_INPUTS = [
    "", "AAAA", b"AAAA", bytearray(b"AAAA"), memoryview(b"AAAA"), "AAA=", "AA==", "A===", "AAA",
    "AA\nAA", "AA AA", "-_-_", "AA!A", "\u20ac", "AAA=AAAA", "AAB=", None, 7, ["A"], LONG,
]  # fmt: skip


@pytest.mark.parametrize("value", BASE64_INPUTS, ids=stable_id)
@pytest.mark.parametrize("options", [{}, {"validate": True}, {"altchars": b"-_"}], ids=stable_id)
def test_b64decode(value: Any, options: dict[str, Any]) -> None:
    assert same(quick_json.b64decode, base64.b64decode, value, **options)


@settings(deadline=None)
@given(st.binary(max_size=40) | st.text(alphabet="AB+/=-_ \n", max_size=20))
def test_b64decode_of_anything(value: Any) -> None:
    assert same(quick_json.b64decode, base64.b64decode, value)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"abc",
        bytearray(b"abc"),
        memoryview(b"abcdef"),
        memoryview(b"abcdef")[::2],
        np.arange(6, dtype=np.float32),
        np.arange(6.0).reshape(2, 3),
        np.arange(6.0).reshape(2, 3).T,
        np.float32(1),
        "text",
        None,
    ],
    ids=lambda value: type(value).__name__,
)
def test_b64encode(value: Any) -> None:
    assert same(quick_json.b64encode, base64.b64encode, value)
    assert same(quick_json.b64encode, base64.b64encode, value, altchars=b"-_")


@pytest.fixture
def announced() -> Iterator[EncodedRequest]:
    arrays = {"x": np.arange(12, dtype=np.int16).reshape(3, 4), "y": np.float64(2) * np.ones(())}
    request = prepare_request(arrays, {"alpha": 1.5, "mode": "a\u20acb"})
    assert request.text.encode() == request.data
    lending.begin(lending.ScriptCall(request))
    yield request
    lending.begin(None)


@pytest.fixture
def request_data(announced: EncodedRequest) -> bytes:
    return announced.data


def test_the_announced_request_parses_as_json_would(request_data: bytes) -> None:
    expected = json.loads(request_data)
    for form in (request_data, request_data.decode(), bytearray(request_data)):
        assert quick_json.loads(form) == expected
    as_read = quick_json.loads(request_data, cls=None, object_hook=None, parse_float=None)
    assert as_read == expected


def test_each_parse_is_a_new_object(request_data: bytes) -> None:
    first = quick_json.loads(request_data)
    first["inputs"]["x"]["shape"].append(9)
    first["inputs"]["x"]["data"] = ""
    first["kwargs"].clear()
    assert quick_json.loads(request_data) == json.loads(request_data)


def test_everything_else_goes_to_the_original(request_data: bytes) -> None:
    changed = request_data.replace(b"int16", b"int32")
    assert len(changed) == len(request_data)
    assert quick_json.loads(changed) == json.loads(changed)
    assert quick_json.loads("[1]") == [1]
    hooked = quick_json.loads(request_data, object_hook=sorted)
    assert hooked == ["inputs", "kwargs"]
    for bad in ("", "{", None, 7):
        assert same(quick_json.loads, json.loads, bad)
    lending.begin(None)
    assert quick_json.loads(request_data) == json.loads(request_data)


READERS = {
    "all": lambda f: f.read(),
    "all_none": lambda f: f.read(None),
    "bytes": lambda f: f.buffer.read().decode(),
    "pieces": lambda f: f.read(5) + f.read(7) + f.read(),
    "byte_pieces": lambda f: (f.buffer.read(5) + f.buffer.read()).decode(),
    "line": lambda f: f.readline(),
    "lines": "".join,
    "raw": lambda f: os.read(f.fileno(), 1 << 20).decode(),
    "raw_then_all": lambda f: os.read(0, 3).decode() + f.read(),
    "twice": lambda f: f.read() + f.read(),
    "back": lambda f: (f.read(), f.seek(0), f.read())[2],
    "back_in_the_middle": lambda f: (f.read(4), f.seek(0), f.read())[2],
    "byte_back": lambda f: (f.buffer.read(), f.buffer.seek(0), f.buffer.read())[2].decode(),
    "opened_again": lambda f: open(0, closefd=False).read(),  # noqa: SIM115
    "other_file": lambda f: (os.dup2(os.open(os.devnull, os.O_RDONLY), 0), f.read())[1],
}


@pytest.mark.parametrize("name", READERS)
def test_stdin_reads_like_a_plain_file(name: str, announced: EncodedRequest) -> None:
    """Each way to read gives the same through our stdin and through the interpreter's."""
    results = []
    saved = os.dup(0)
    try:
        for opened in (lending.open_stdin, partial(open, 0, encoding="utf-8", closefd=False)):
            fd = memfd.create("stdin")
            os.write(fd, announced.data)
            os.lseek(fd, 0, os.SEEK_SET)
            os.dup2(fd, 0)
            os.close(fd)
            lending.begin(lending.ScriptCall(announced))
            stream = opened()
            assert stream.fileno() == 0
            results.append(READERS[name](stream))
    finally:
        os.dup2(saved, 0)
        os.close(saved)
    assert results[0] == results[1]
