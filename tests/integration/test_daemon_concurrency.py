"""Many requests at once: none waits for another's work, none is done twice or for nobody."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pynng
import pytest
from daemon_workspace import Served, normal
from runner_workspace import wait_until

from gpuemu_flow.client import Client, ClientError, connection
from gpuemu_flow.model.types import Json
from gpuemu_flow.wire import render
from gpuemu_flow.wire.tensors import encode_tensor

pytestmark = pytest.mark.ci


@pytest.fixture(autouse=True)
def closed_gate(daemon: Served) -> Iterator[None]:
    daemon.close_gate()
    yield
    daemon.open_gate()
    with daemon.raw() as sock:  # what a test left behind must not disturb the next
        assert wait_until(lambda: _nothing_at_work(sock))


def _nothing_at_work(sock: pynng.Req0) -> bool:
    sock.send(b'{"type":"Ping"}')
    return json.loads(sock.recv())["in_progress"] == 0


@contextmanager
def in_background(work: Callable[[], Any]) -> Iterator[list[Any]]:
    """Do something meanwhile; its result, or what it raised, is in the list in the end."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield results
    finally:
        thread.join(600)
        assert not thread.is_alive()


def gated_request(marker: float) -> bytes:
    x = np.full(3, marker, np.float32)
    request: dict[str, Json] = {
        "type": "ValidateOp", "op_name": "gated", "kwargs": {},
        "inputs": {"x": encode_tensor(x)}, "output": encode_tensor(x * 2),
    }  # fmt: skip
    return render(request)


def test_a_long_fuzz_blocks_nobody(daemon: Served) -> None:
    x = normal(4)
    with daemon.client() as fuzzer, daemon.client() as other:
        with in_background(lambda: fuzzer.fuzz_op("gated_op", seed=1, iterations=4)) as results:
            assert wait_until(lambda: daemon.entered() > 0)
            for _ in range(20):
                assert other.ping()["protocol_version"] == 1
            assert other.validate_op("double", {"x": x}, x * 2).passed
            assert other.list_results(1)
            assert len(other.get_test_batch("double", 2, seed=1)) == 2
            assert results == []
            daemon.open_gate()
        assert results[0].passed == 4


def test_references_run_beside_each_other(daemon: Served) -> None:
    """As many as the configuration allows are within the reference at once."""
    replies = []

    def ask(number: int) -> None:
        with daemon.raw(60_000) as sock:
            sock.send(gated_request(100 + number))
            replies.append(json.loads(sock.recv()))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    assert wait_until(lambda: daemon.entered() == 4)
    assert wait_until(lambda: daemon.ask({"type": "Ping"})["in_progress"] == 6)
    assert daemon.entered() == 4
    daemon.open_gate()
    for thread in threads:
        thread.join(600)
    assert [r["result"]["passed"] for r in replies] == [True] * 6


def calls_of_one_request(daemon: Served) -> int:
    """Count the calls of the reference for a single request, sent once."""
    daemon.open_gate()
    for path in (daemon.root / "scripts").glob("entered-*"):
        path.unlink()
    with daemon.raw() as sock:
        sock.send(gated_request(1.0))
        assert json.loads(sock.recv())["result"]["passed"]
    calls = daemon.entered()
    daemon.close_gate()
    return calls


def test_resent_requests_are_done_once(daemon: Served) -> None:
    """As the published client's transport resends them, only sooner."""
    once = calls_of_one_request(daemon)
    with pynng.Req0(resend_time=50, recv_timeout=600_000) as sock:
        sock.dial(f"ipc://{daemon.socket}", block=True)
        sock.send(gated_request(2.0))
        assert wait_until(lambda: daemon.log.count("came again") >= 5)
        daemon.open_gate()
        assert json.loads(sock.recv())["result"]["passed"]
    assert daemon.entered() <= once


def test_a_client_that_asks_again_gets_the_first_answer(daemon: Served) -> None:
    once = calls_of_one_request(daemon)
    with daemon.raw(200) as sock:
        sock.send(gated_request(3.0))
        with pytest.raises(pynng.Timeout):
            sock.recv()
        sock.recv_timeout = 600_000
        before = daemon.log.count("came again")
        sock.send(gated_request(3.0))
        assert wait_until(lambda: daemon.log.count("came again") > before)
        daemon.open_gate()
        assert json.loads(sock.recv())["result"]["passed"]
    assert daemon.entered() <= once


def test_equal_requests_of_two_clients_are_two(daemon: Served) -> None:
    daemon.open_gate()
    seeds = []
    for _ in range(2):
        with daemon.raw() as sock:
            sock.send(gated_request(4.0))
            seeds.append(json.loads(sock.recv())["result"]["seed"])
    first, second = seeds
    assert first == second, "equal calls are judged equally"
    with daemon.client() as client:
        assert [result.seed for result in client.list_results(2)] == seeds


def test_work_ends_when_its_client_is_gone(daemon: Served) -> None:
    """All places are taken by clients that leave: the next one gets a place, gate or no gate."""
    sockets = []
    for number in range(4):
        sock = pynng.Req0(resend_time=-1)
        sock.dial(f"ipc://{daemon.socket}", block=True)
        sock.send(gated_request(10 + number))
        sockets.append(sock)
    # Of those that were first judged together, each is judged again by itself.
    assert wait_until(lambda: daemon.entered() >= 4)
    before = len(daemon.ask({"type": "ListResults", "limit": 1000})["results"])
    for sock in sockets:
        sock.close()
    x = normal(3)
    with daemon.client() as client:
        assert client.validate_op("double", {"x": x}, x * 2).passed
        assert wait_until(lambda: client.ping()["in_progress"] == 0)
        assert len(client.list_results(1000)) == before + 1


def gated_results(client: Client) -> int:
    return sum(result.op_name == "gated" for result in client.list_results(1000))


def test_work_ends_when_its_client_is_killed(daemon: Served) -> None:
    """A process of its own, ended by SIGKILL in the middle of a request."""
    script = (
        "import sys, numpy as np\n"
        "from gpuemu_flow import Client\n"
        "with Client(sys.argv[1]) as client:\n"
        "    client.validate_op('gated', {'x': np.ones(3, 'float32')}, np.ones(3, 'float32'))\n"
    )
    with daemon.client() as client:
        before = gated_results(client)
    victim = subprocess.Popen([sys.executable, "-c", script, daemon.socket])
    try:
        assert wait_until(lambda: daemon.entered() == 1, 100)  # a process has to start first
        with daemon.client() as client:
            assert client.ping()["in_progress"] == 1
            victim.kill()
            victim.wait()
            assert wait_until(lambda: client.ping()["in_progress"] == 0)
            x = normal(3)
            assert client.validate_op("double", {"x": x}, x * 2).passed
            assert gated_results(client) == before, "nothing is stored for nobody"
    finally:
        victim.kill()
        victim.wait()


def test_a_fuzz_ends_when_its_client_is_gone(daemon: Served) -> None:
    client = daemon.client()
    with in_background(lambda: client.fuzz_op("gated_op", seed=2, iterations=4)) as results:
        assert wait_until(lambda: daemon.entered() > 0)
        client.close()
    assert isinstance(results[0], ClientError)
    with daemon.client() as other:
        assert wait_until(lambda: other.ping()["in_progress"] == 0)


def test_progress_is_told(daemon: Served) -> None:
    told: list[tuple[int, int]] = []

    def note(done: int, total: int) -> None:
        told.append((done, total))
        daemon.open_gate()

    with daemon.client() as client:
        assert client.fuzz_op("gated_op", seed=3, iterations=3, on_progress=note).passed == 3
    assert told
    assert all(0 <= done <= 3 for done, _ in told)


def test_giving_up_after_a_timeout_ends_the_work(daemon: Served) -> None:
    with (
        daemon.client(timeout_ms=300) as client,
        pytest.raises(ClientError, match="did not answer"),
    ):
        client.fuzz_op("gated_op", seed=4, iterations=2)
    with daemon.client() as client:
        assert wait_until(lambda: client.ping()["in_progress"] == 0)


def test_one_client_in_many_threads(daemon: Served) -> None:
    wrong: list[Any] = []
    with daemon.client() as client:

        def work(number: int) -> None:
            x = np.full(4, number, np.float32)
            for _ in range(10):
                result = client.validate_op("double", {"x": x}, x * 2)
                if not result.passed:
                    wrong.append(result)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(600)
    assert wrong == []


def test_more_clients_than_allowed_wait(unserved: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECT_MILLISECONDS", 500)
    config = (unserved.root / "gpuemu.toml").read_text()
    unserved.write("gpuemu.toml", config.replace("max_connections = 200", "max_connections = 2"))
    unserved.start()
    answers: list[dict[str, Json]] = []
    with pynng.Req0() as first, pynng.Req0() as second, pynng.Req0() as third:
        for other in (first, second):
            other.dial(f"ipc://{unserved.socket}", block=True)
            other.send(b'{"type": "Ping"}')
            assert b"Pong" in other.recv()
        # The transport connects, is hung up on, and tries again by itself.
        third.recv_timeout = 600_000
        third.dial(f"ipc://{unserved.socket}", block=False)
        third.send(b'{"type": "Ping"}')
        waiting = threading.Thread(target=lambda: answers.append(json.loads(third.recv())))
        waiting.start()
        assert wait_until(lambda: "2 clients are connected; others wait" in unserved.log)
        assert answers == []
        first.close()
        waiting.join(600)
        assert answers[0]["type"] == "Pong"
        with unserved.client() as fourth, pytest.raises(ClientError) as caught:
            fourth.ping()
        assert caught.value.problems[0].slug == "client-too-many-clients"
        assert "max_connections" in caught.value.problems[0].hint
        second.send(b'{"type": "Ping"}')
        assert b"Pong" in second.recv()


THREADS = """
import os, sys
import pynng
from gpuemu_flow.services.daemon.server import limit_threads

if sys.argv[1:]:
    limit_threads()
with pynng.Rep0():
    print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(
    not hasattr(pynng.lib, "nng_init_set_parameter"), reason="this pynng cannot limit them"
)
def test_the_transport_starts_fewer_threads_than_by_default() -> None:
    counts = [
        int(subprocess.check_output([sys.executable, "-c", THREADS, *limited]))
        for limited in ([], ["limited"])
    ]
    assert counts[1] < counts[0]
