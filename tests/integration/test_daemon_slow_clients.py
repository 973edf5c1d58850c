"""Connections that say nothing, or half of something, keep nobody out who asks.

``GPUEMU_SLOW_CLIENTS=1000`` makes the small form of the load test the whole one.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_workspace import Served
from runner_workspace import wait_until

from gpuemu_flow.services.daemon import server as connections
from gpuemu_flow.services.daemon.control import describe
from gpuemu_flow.services.daemon.server import (
    HALF_OPEN_SECONDS,
    IDLE_SECONDS,
    MOST_HALF_OPEN,
    ConnectionTable,
)

pytestmark = pytest.mark.ci

GREETING = b"\x00SP\x00\x00\x30\x00\x00"
SLOW = int(os.environ.get("GPUEMU_SLOW_CLIENTS", "120"))
OWNER, OTHER = 1000, 1001


def connected(served: Served, said: bytes) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(served.socket)  # waits while the queue of those who come is full
    sock.settimeout(60)
    with contextlib.suppress(OSError):
        sock.sendall(said)
    return sock


def request(number: int, data: bytes) -> bytes:
    body = struct.pack(">I", 0x80000000 | number) + data
    return struct.pack(">BQ", 1, len(body)) + body


KINDS = {
    "says nothing": b"",
    "greets": GREETING,
    "half a frame": GREETING + request(1, b'{"type": "Ping"}')[:7],
    "half a message": GREETING + request(1, b'{"type": "Ping"}')[:-3],
    "announces gigabytes": GREETING + struct.pack(">BQ", 1, 1 << 29),
}


@pytest.fixture
def narrow(unserved: Served) -> Iterator[Served]:
    """A daemon with room for 16 connections, as many as it has where nobody says otherwise."""
    config = (unserved.root / "gpuemu.toml").read_text()
    unserved.write("gpuemu.toml", config.replace("max_connections = 200", "max_connections = 16"))
    unserved.start()
    yield unserved


@pytest.mark.parametrize("kind", KINDS)
def test_half_open_connections_lock_nobody_out(narrow: Served, kind: str) -> None:
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connected(narrow, KINDS[kind])) for _ in range(40)]
        for _ in range(3):
            assert narrow.ask({"type": "Ping"})["type"] == "Pong"
        for sock in slow:  # what it greeted with, then the end
            with contextlib.suppress(ConnectionResetError):
                while sock.recv(64):
                    pass
        assert narrow.ask({"type": "Ping"})["type"] == "Pong"


@pytest.mark.parametrize("asked", [1, 3])
@pytest.mark.parametrize("ends", ["closes", "resets"])
def test_clients_that_leave_without_reading_harm_no_other(
    narrow: Served, asked: int, ends: str
) -> None:
    """Room for 16: whoever comes after 30 of them is answered by no reset connection."""
    ping, linger = request(1, b'{"type": "Ping"}'), struct.pack("ii", 1, 0)
    for _ in range(3):
        for _ in range(30):
            with connected(narrow, GREETING + ping * asked) as sock:
                if ends == "resets":
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        with narrow.client(timeout_ms=600_000) as client:
            assert client.ping()["protocol_version"] == 1
        assert narrow.ask({"type": "Ping"})["type"] == "Pong"


def test_a_well_behaved_client_is_answered_among_many_slow_ones(
    narrow: Served, record_property: Callable[[str, object], None]
) -> None:
    pid = int(narrow.info["pid"])
    with contextlib.ExitStack() as stack, narrow.raw() as sock:
        took = []

        def ping() -> None:
            begun = time.monotonic()
            sock.send(b'{"type": "Ping"}')
            assert json.loads(sock.recv())["type"] == "Pong"
            took.append(time.monotonic() - begun)

        ping()
        before = resident(pid)
        kinds = list(KINDS.values())[:4]
        for number in range(SLOW):
            stack.enter_context(connected(narrow, kinds[number % len(kinds)]))
            if number % 5 == 0:
                ping()
        for _ in range(20):
            ping()
        assert wait_until(lambda: descriptors(pid) < 100, 60)
        ping()
        assert resident(pid) - before < 64 << 20
        record_property("median_s", statistics.median(took))
        record_property("worst_s", max(took))


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_status_tells_full_from_dead(unserved: Served) -> None:
    config = (unserved.root / "gpuemu.toml").read_text()
    unserved.write("gpuemu.toml", config.replace("max_connections = 200", "max_connections = 2"))
    unserved.start()
    with unserved.raw() as first, unserved.raw() as second:
        for sock in (first, second):
            sock.send(b'{"type": "Ping"}')
            assert json.loads(sock.recv())["type"] == "Pong"
        state = describe(unserved.root, unserved.environ)
        assert (state.running, state.answers, state.full) == (True, False, True)
        assert "takes no more clients" in state.line("")
        assert state.to_json()["full"] is True
    assert wait_until(lambda: describe(unserved.root, unserved.environ).answers)
    unserved.kill()
    state = describe(unserved.root, unserved.environ)
    assert (state.running, state.full) == (False, False)


def test_an_id_that_is_at_work_for_another_is_refused(daemon: Served) -> None:
    daemon.close_gate()
    x = {"shape": [1], "dtype": "float32", "data": "AAAAAA=="}
    asked = {
        "type": "ValidateOp", "op_name": "gated", "inputs": {"x": x}, "output": x, "kwargs": {},
        "request_id": "mine",
    }  # fmt: skip
    with daemon.raw(600_000) as sock:
        sock.send(json.dumps(asked).encode())
        assert wait_until(lambda: daemon.entered() > 0)
        refused = daemon.ask({**asked, "kwargs": {"k": "other"}})
        assert (refused["type"], refused["code"]) == ("Error", "InvalidRequest")
        assert daemon.ask({"type": "Progress", "request_id": "mine"})["type"] == "Progress"
        daemon.open_gate()
        assert json.loads(sock.recv())["type"] != "Error"


def test_files_of_a_daemon_are_private_whatever_the_umask(unserved: Served) -> None:
    old = os.umask(0)
    try:
        unserved.start()
    finally:
        os.umask(old)
    with unserved.client() as client:
        assert client.fuzz_op("double", seed=1, iterations=1).passed == 1
    folders = (unserved.root / ".gpuemu-cache", unserved.home / ".gpuemu")
    found = [path for folder in folders for path in (folder, *folder.rglob("*"))]
    assert any(path.name.endswith(".log") for path in found)
    assert any(path.name == "staging" for path in found)
    open_to_others = [
        path
        for path in found
        if not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) & 0o077
    ]
    assert open_to_others == []


class TestSeats:
    """The limit of connections, without a daemon."""

    def test_half_open_ones_do_not_count_and_go(self) -> None:
        found = ConnectionTable(2, OWNER)
        for pipe in range(10):
            assert found.enter(pipe, OWNER, 0.0) == (True, [])
        assert found.note_message(9, 1.0)
        assert found.overdue(HALF_OPEN_SECONDS - 0.1, lambda _: False) == []
        assert sorted(found.overdue(HALF_OPEN_SECONDS, lambda _: False)) == list(range(9))

    def test_too_many_half_open_ones_push_out_their_oldest(self) -> None:
        found = ConnectionTable(2, OWNER)
        for pipe in range(MOST_HALF_OPEN):
            found.enter(pipe, OWNER, float(pipe))
        assert found.enter(MOST_HALF_OPEN, OWNER, 300.0) == (True, [0])

    def test_idle_ones_give_way_to_those_who_wait_unless_at_work(self) -> None:
        found = ConnectionTable(2, OWNER)
        for pipe in (1, 2):
            found.enter(pipe, OWNER, 0.0)
            assert found.note_message(pipe, float(pipe))
        late = IDLE_SECONDS + 5
        assert found.overdue(late, lambda _: False) == []  # nobody waits
        assert found.enter(3, OWNER, late) == (False, [])
        assert found.overdue(late, lambda pipe: pipe == 1) == [2]
        assert found.overdue(late, lambda _: False) == [1]

    def test_each_other_user_has_a_share(self) -> None:
        found = ConnectionTable(8, OWNER)
        counted = 0
        for pipe in range(8):
            allowed, _ = found.enter(pipe, OTHER, 0.0)
            counted += allowed and found.note_message(pipe, 0.0)
        assert counted == 8 // connections.OTHERS_SHARE
        for pipe in range(10, 16):
            assert found.enter(pipe, OWNER, 0.0)[0]
            assert found.note_message(pipe, 0.0)
        assert not found.enter(20, OWNER, 0.0)[0]

    def test_the_limit_holds_under_threads(self) -> None:
        found = ConnectionTable(8, OWNER)
        counted: list[int] = []

        def work(start: int) -> None:
            for pipe in range(start, start + 50):
                if found.enter(pipe, OWNER, 0.0)[0] and found.note_message(pipe, 0.0):
                    counted.append(pipe)

        threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(counted) == 8
