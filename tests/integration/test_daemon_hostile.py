"""Whatever a client sends, it gets an answer that says what is wrong, and nobody else notices."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from daemon_workspace import Served, normal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runner_workspace import wait_until

from gpuemu_flow.model.types import Json
from gpuemu_flow.wire import render
from gpuemu_flow.wire.tensors import encode_tensor

pytestmark = pytest.mark.ci

CODES = {
    "OpNotFound", "ReferenceScriptFailed", "InvalidRequest", "InternalError", "NotFound",
    "ConfigError", "KernelNotFound", "ArtifactNotFound", "BaselineNotFound", "PtxParseError",
    "CuobjdumpNotAvailable", "VersionMismatch",
}  # fmt: skip

FUZZ = {
    "seed": 11,
    "shape_options": {
        "batch_sizes": [1],
        "seq_lengths": [3],
        "hidden_dims": [4],
        "edge_cases": [[1]],
    },
    "dtypes": ["float32"],
    "layouts": ["Contiguous"],
    "op_schema": None,
}
TENSOR = json.loads(render({"t": encode_tensor(np.arange(2, dtype=np.float32))}))["t"]
METRICS = {
    "kernel_name": "k", "register_count": 1, "spill_count": 0, "local_memory_bytes": 0,
    "shared_memory_bytes": 0, "instruction_count": 3, "patterns_found": ["ret"], "source": "Ptx",
    "timestamp": 1, "ptx_content": None,
}  # fmt: skip
REQUESTS: list[dict[str, Json]] = [
    {"type": "Ping"},
    {"type": "ValidateOp", "op_name": "double", "inputs": {"x": TENSOR}, "output": TENSOR,
     "kwargs": {"k": "2"}},
    {"type": "SubmitOutputs", "op_name": "double", "kwargs": {},
     "cases": [{"seed": 1, "inputs": {"x": TENSOR}, "output": TENSOR}]},
    {"type": "SubmitOutput", "op_name": "double", "inputs": {"x": TENSOR}, "output": TENSOR,
     "seed": 7, "kwargs": {}},
    {"type": "GetResult", "seed": 7},
    {"type": "ListResults", "limit": 3},
    {"type": "ListFailures", "limit": 3},
    {"type": "StoreBaseline", "tag": "t"},
    {"type": "CompareBaseline", "tag": "t"},
    {"type": "FuzzOp", "op_name": "double", "fuzz_config": FUZZ, "iterations": 2,
     "fail_fast": True},
    {"type": "Reproduce", "seed": 7},
    {"type": "Minimize", "seed": 7, "strategy": "BinarySearchDims", "max_iters": 3},
    {"type": "LintKernel", "kernel_name": None, "ptx_content": ".visible .entry k()\n{\nret;\n}"},
    {"type": "StoreArtifact", "kernel_name": "k", "metrics": METRICS},
    {"type": "StoreArtifactBaseline", "tag": "t"},
    {"type": "DiffArtifactBaseline", "tag": "t"},
    {"type": "GetArtifact", "kernel_name": "k"},
    {"type": "ListArtifacts"},
    {"type": "RunCi", "quick": True, "parallel_jobs": 0, "baseline": "there is none"},
    {"type": "GetCiSummary"},
    {"type": "GetTestCase", "op_name": "double", "fuzz_config": FUZZ},
    {"type": "GetTestBatch", "op_name": "double", "fuzz_config": FUZZ, "count": 2},
    {"type": "Progress", "request_id": "r"},
    {"type": "Cancel", "request_id": "r"},
]  # fmt: skip
WRONG: list[Json] = [
    None, True, -1, 0, 1 << 64, 1 << 200, 1.5, 1e308, "", "x", "\x00", "../../etc/passwd",
    "y" * 5000, [], [[]], [-1], [1 << 40], ["float33"], {}, {"x": None}, {"data": "AAAA"},
]  # fmt: skip


def mutations(value: Json, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Json]]:
    """Places in a message: every key and item, at any depth."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*path, key), item
            yield from mutations(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield (*path, index), item
            yield from mutations(item, (*path, index))


def replaced(message: dict[str, Json], path: tuple[Any, ...], value: Json) -> dict[str, Json]:
    changed = json.loads(json.dumps(message))  # unlike a deep copy, without shared parts
    place: Any = changed
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return changed


def removed(message: dict[str, Json], path: tuple[Any, ...]) -> dict[str, Json]:
    changed = json.loads(json.dumps(message))  # unlike a deep copy, without shared parts
    place: Any = changed
    for step in path[:-1]:
        place = place[step]
    del place[path[-1]]
    return changed


def exchange(sock: Any, message: Json) -> dict[str, Json]:
    sock.send(message if isinstance(message, bytes) else json.dumps(message).encode())
    reply = json.loads(sock.recv())
    assert isinstance(reply, dict)
    assert isinstance(reply.get("type"), str)
    if reply["type"] == "Error":
        assert reply["code"] in CODES, reply
        assert reply["message"]
        assert "Traceback" not in reply["message"]
        assert "fault of the daemon" not in reply["message"], reply
    return reply


@pytest.mark.parametrize("message", REQUESTS, ids=lambda m: str(m["type"]))
def test_every_field_wrong_in_every_way(daemon: Served, message: dict[str, Json]) -> None:
    with daemon.raw() as sock:
        exchange(sock, message)
        for path, _ in mutations(message):
            if path == ("baseline",):
                continue  # without the unknown one the whole workspace would really be run
            exchange(sock, removed(message, path))
            for wrong in WRONG:
                if path != ("type",) or wrong != "Shutdown":
                    exchange(sock, replaced(message, path, wrong))
        assert exchange(sock, {"type": "Ping"})["type"] == "Pong"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("seed",), 5.0),
        (("inputs", "x", "dtype"), "complex64"),
        (("inputs", "x", "shape"), [3]),
        (("inputs", "x", "data"), "AAA"),
        (("inputs", "x", "data"), "AAAA"),
        (("inputs", "x", "data"), "####"),
        (("output", "shape"), [1 << 62, 0]),
        (("kwargs",), []),
        (("op_name",), 3),
    ],
)
def test_what_is_wrong_is_named(daemon: Served, path: tuple[str, ...], value: Json) -> None:
    submit = next(r for r in REQUESTS if r["type"] == "SubmitOutput")
    reply = daemon.ask(replaced(submit, path, value))
    assert reply["code"] == "InvalidRequest"
    assert path[0] in reply["message"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_any_json_in_any_field(daemon: Served, data: st.DataObject) -> None:
    message = data.draw(st.sampled_from([r for r in REQUESTS if r["type"] != "RunCi"]))
    places = [path for path, _ in mutations(message) if path != ("type",)]
    if not places:
        places = [("extra",)]
    changed = replaced(message, data.draw(st.sampled_from(places)), data.draw(json_values))
    with daemon.raw() as sock:
        exchange(sock, changed)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=300))
def test_any_bytes(daemon: Served, data: bytes) -> None:
    with daemon.raw() as sock:
        assert exchange(sock, data or b"{")["type"] in ("Error", "Pong")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'"Ping"',
        b"NaN",
        b"{",
        b'{"type"',
        b"[" * 200_000,
        b'{"type":"GetResult","seed":' + b"9" * 10_000 + b"}",
        b'{"type":"StoreBaseline","tag":"\\ud800"}',
        b'{"type":"ListResults","limit":Infinity}',
        b'{"type":"LintKernel","ptx_content":"\\ud83d","kernel_name":null}',
        b'{"type":"Ping","data":"' + b"A" * 5000,
        b'{"a\\"data":"' + b"A" * 5000 + b'","type":"NoSuch"}',
    ],
    ids=range(14),
)
def test_messages_that_are_none(daemon: Served, data: bytes) -> None:
    reply = daemon.ask(data)
    assert (reply["type"], reply["code"]) == ("Error", "InvalidRequest")
    assert daemon.ask({"type": "Ping"})["type"] == "Pong"


def test_a_hundred_megabytes_of_nothing(daemon: Served) -> None:
    assert daemon.ask(b"x" * 100_000_000)["code"] == "InvalidRequest"


@pytest.mark.ci
def test_a_hundred_megabytes_of_tensor(unserved: Served) -> None:
    """Without a configured time limit, the limit grows with the size of the tensors."""
    path = unserved.root / "gpuemu.toml"
    path.write_text(path.read_text().replace("reference_timeout = 5\n", ""))
    unserved.start()
    x = np.zeros(25_000_000, np.float32)
    message = {
        "type": "ValidateOp", "op_name": "double", "kwargs": {},
        "inputs": {"x": encode_tensor(x)}, "output": encode_tensor(x),
    }  # fmt: skip
    with unserved.raw(600_000) as sock:
        sock.send(b'{"type": "Ping"}')  # who has said nothing for ten seconds is let go
        sock.recv()
        sock.send(render(message))
        reply = json.loads(sock.recv())
    assert reply["type"] == "ValidationResult", reply
    assert reply["result"]["passed"]


def test_documented_payload_form(daemon: Served) -> None:
    reply = daemon.ask({"type": "ListResults", "payload": {"limit": 1}})
    assert reply["type"] == "Results"


def test_unknown_requests_name_the_nearest(daemon: Served) -> None:
    reply = daemon.ask({"type": "ValidateOpp"})
    assert reply["code"] == "InvalidRequest"
    assert "ValidateOp" in reply["message"]


def test_no_request_names_a_path(daemon: Served) -> None:
    """Names with separators are names: nothing outside of the workspace appears."""
    before = sorted(
        path.name for path in daemon.folder.rglob("*") if "gpuemu-cache" not in str(path)
    )
    tag = "../../../escaped"
    assert daemon.ask({"type": "StoreBaseline", "tag": tag})["type"] == "Ok"
    assert daemon.ask({"type": "CompareBaseline", "tag": tag})["type"] == "BaselineComparison"
    for name in ("../secret", "/etc/hostname", "0" * 31 + "/"):
        tensor = {"shape": [1], "strides": [1], "dtype": "uint8", "file": name}
        request = {"type": "ValidateOp", "op_name": "double", "inputs": {"x": tensor},
                   "output": tensor, "kwargs": {}}  # fmt: skip
        reply = daemon.ask(request)
        assert reply["code"] == "InvalidRequest"
        assert "not the name" in reply["message"]
    after = sorted(
        path.name for path in daemon.folder.rglob("*") if "gpuemu-cache" not in str(path)
    )
    assert after == before


def test_no_string_opens_a_file(daemon: Served) -> None:
    """Paths in every string of every request: nothing is read, written or told of them."""
    canary = daemon.folder / "canary.json"
    canary.write_text('{"secret": "nobody may read this"}')
    listing = sorted(p for p in daemon.folder.rglob("*") if ".gpuemu-cache" not in str(p))
    stamp = canary.stat()
    names = [str(canary), f"../{canary.name}", f"file://{canary}", f"{canary}\x00.sock"]
    with daemon.raw() as sock:
        for message in REQUESTS:
            if message["type"] == "RunCi":
                continue
            for path, value in mutations(message):
                if path != ("type",) and (isinstance(value, str) or value is None):
                    for name in names:
                        reply = exchange(sock, replaced(message, path, name))
                        assert "nobody may read" not in json.dumps(reply)
    assert sorted(p for p in daemon.folder.rglob("*") if ".gpuemu-cache" not in str(p)) == listing
    assert (canary.stat().st_mtime_ns, canary.stat().st_ino) == (stamp.st_mtime_ns, stamp.st_ino)
    stored = [p for p in (daemon.root / ".gpuemu-cache").rglob("*") if "canary" in p.name]
    assert stored == [], "no name of a request becomes the name of a file"


# Below the messages: nng's framing over a plain socket.

HANDSHAKE = b"\x00SP\x00" + struct.pack(">HH", 0x30, 0)
REQUEST_ID = struct.pack(">I", 0x80000001)


def framed(message: bytes) -> bytes:
    body = REQUEST_ID + message
    return b"\x01" + struct.pack(">Q", len(body)) + body


def connect(daemon: Served) -> socket.socket:
    raw = socket.socket(socket.AF_UNIX)
    raw.settimeout(20)
    raw.connect(daemon.socket)
    raw.sendall(HANDSHAKE)
    assert len(raw.recv(8, socket.MSG_WAITALL)) == 8
    return raw


def test_the_frames_of_this_file_are_right(daemon: Served) -> None:
    with connect(daemon) as raw:
        raw.sendall(framed(b'{"type":"Ping"}'))
        head = raw.recv(13, socket.MSG_WAITALL)
        size = struct.unpack(">Q", head[1:9])[0] - 4
        assert json.loads(raw.recv(size, socket.MSG_WAITALL))["type"] == "Pong"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        HANDSHAKE[:3],
        HANDSHAKE + framed(b'{"type":"Ping"}')[:20],
        HANDSHAKE + b"\x01" + b"\xff" * 8,
        HANDSHAKE + b"\x01" + struct.pack(">Q", 1 << 40) + b"x",
        HANDSHAKE + b"\x01" + struct.pack(">Q", 2) + b"xy",
        HANDSHAKE + framed(b"")[:9],
    ],
    ids=range(7),
)
def test_half_a_message(daemon: Served, data: bytes) -> None:
    for _ in range(3):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(daemon.socket)
            raw.sendall(data)
    assert daemon.ask({"type": "Ping"})["type"] == "Pong"


def test_a_client_that_never_reads(daemon: Served) -> None:
    """Its large answers wait; others are served meanwhile, and its end frees everything."""
    batch = {"type": "GetTestBatch", "op_name": "double", "count": 40,
             "fuzz_config": {**FUZZ, "shape_options": {**FUZZ["shape_options"],  # type: ignore[dict-item]
                                                       "hidden_dims": [65536]}}}  # fmt: skip
    with connect(daemon) as raw, daemon.client() as client:
        for number in range(6):
            raw.sendall(framed(json.dumps({**batch, "start": number}).encode()))
        x = normal(3)
        for _ in range(5):
            assert client.validate_op("double", {"x": x}, x * 2).passed
    assert daemon.ask({**batch, "count": 1})["type"] == "TestBatch"


def test_a_client_that_only_asks(daemon: Served) -> None:
    """Thousands of pings whose answers nobody reads: the thread that receives must not wait.

    If it did, one of them at least would be given up, and logged, before each ping of ours.
    """
    with connect(daemon) as raw, daemon.client(timeout_ms=600_000) as client:
        client.ping()
        stop = threading.Event()
        asker = threading.Thread(target=_ask_on, args=(raw, stop))
        asker.start()
        try:
            assert wait_until(lambda: "does not read" in daemon.log)
            before = daemon.log.count("does not read")
            for _ in range(10):
                assert client.ping()["protocol_version"] == 1
                assert client.list_results(1) is not None
            assert daemon.log.count("does not read") - before < 8
        finally:
            stop.set()
            asker.join(600)


def _ask_on(raw: socket.socket, stop: threading.Event) -> None:
    raw.settimeout(5)
    with contextlib.suppress(TimeoutError):
        while not stop.is_set():
            raw.sendall(framed(b'{"type":"Ping"}'))
