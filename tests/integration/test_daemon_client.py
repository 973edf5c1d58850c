"""Our client: finds or starts its daemon, and says how to fix what goes wrong."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import ml_dtypes
import numpy as np
import pynng
import pytest
from daemon_workspace import Served, normal, softmax

from gpuemu_flow.client import (
    AsyncClient,
    Client,
    ClientError,
    DaemonUnreachableError,
    RequestTimeoutError,
    ValidationResult,
    VersionMismatchError,
    connection,
)
from gpuemu_flow.services.daemon.control import running


def test_it_starts_a_daemon_and_finds_it_again(at_home: Served) -> None:
    x = normal(3, 4)
    with Client() as client:
        assert client.validate_op("softmax", {"x": x}, softmax(x)).passed
    first = running(at_home.root, at_home.environ)
    assert first is not None
    with Client(workspace=at_home.root) as client:
        assert len(client.list_results()) == 1
    assert running(at_home.root, at_home.environ) == first


def test_it_can_be_forbidden_to(at_home: Served) -> None:
    with Client(autostart=False) as client, pytest.raises(DaemonUnreachableError) as caught:
        client.ping()
    assert "gpuemu-flow daemon start" in str(caught.value)
    assert running(at_home.root, at_home.environ) is None


def test_a_daemon_that_cannot_start_says_why(at_home: Served) -> None:
    at_home.write("gpuemu.toml", "[[ops]]\nname = 3\n")
    with Client() as client, pytest.raises(DaemonUnreachableError) as caught:
        client.ping()
    assert caught.value.problems[0].file == "gpuemu.toml"


def test_it_connects_anew_after_a_restart(at_home: Served) -> None:
    at_home.start()
    with Client() as client:
        client.ping()
        at_home.stop()
        at_home.start()
        x = normal(3)
        assert client.validate_op("double", {"x": x}, x * 2).passed


def test_a_call_between_which_and_the_last_the_daemon_died(unserved: Served) -> None:
    """Nobody can say that the daemon did not answer: it was never asked."""
    unserved.start()
    with Client(unserved.socket, timeout_ms=20_000) as client:
        client.ping()
        unserved.kill()
        with pytest.raises(DaemonUnreachableError):
            client.ping()


def test_no_workspace(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match=r"no gpuemu\.toml"):
        Client(workspace=tmp_path)


def test_a_socket_that_is_named(daemon: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEMU_SOCKET", daemon.socket)
    monkeypatch.chdir(daemon.root)
    with Client() as client:
        assert client.socket_path == daemon.socket
        client.ping()


@contextmanager
def impostor(folder: Path, reply: object) -> Iterator[str]:
    """Something that answers everything alike."""
    path = folder / "fake.sock"
    with pynng.Rep0(listen=f"ipc://{path}") as sock:

        def answer() -> None:
            try:
                while True:
                    sock.recv()
                    sock.send(reply if isinstance(reply, bytes) else json.dumps(reply).encode())
            except pynng.Closed:
                pass

        thread = threading.Thread(target=answer)
        thread.start()
        yield str(path)
    thread.join()


def test_a_daemon_in_another_container(at_home: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the workspace has another path there: who names the socket is believed."""
    pong = {"type": "Pong", "version": "9", "protocol_version": 1, "uptime_secs": 1}
    for workspace, believed in (("/not/here", True), ("/", False)):
        with impostor(at_home.folder, {**pong, "workspace": workspace}) as path:
            monkeypatch.setenv("GPUEMU_SOCKET", path)
            with Client() as client:
                if believed:
                    assert client.ping()["workspace"] == workspace
                    continue
                with pytest.raises(DaemonUnreachableError, match="serves /, not"):
                    client.ping()


def test_another_version(unserved: Served) -> None:
    for version, who in ((2, "client"), (0, "daemon")):
        reply = {"type": "Pong", "version": "9", "protocol_version": version, "uptime_secs": 1}
        with impostor(unserved.folder, reply) as path, Client(path) as client:
            for _ in range(2):  # not only the first call notices
                with pytest.raises(VersionMismatchError, match=f"upgrade the {who}"):
                    client.ping()


@pytest.mark.parametrize("reply", [b"junk", {"type": "Ok"}, {}, []], ids=repr)
def test_replies_that_are_none(unserved: Served, reply: object) -> None:
    with (
        impostor(unserved.folder, reply) as path,
        Client(path) as client,
        pytest.raises(ClientError, match="the daemon's answer is invalid"),
    ):
        client.ping()


@pytest.mark.parametrize("greets", [False, True])
def test_a_first_ping_that_nobody_answers_takes_the_calls_own_time(
    unserved: Served, *, greets: bool
) -> None:
    path = str(unserved.folder / "mute.sock")
    with ExitStack() as stack:
        if greets:
            stack.enter_context(pynng.Rep0(listen=f"ipc://{path}"))
        else:
            mute = stack.enter_context(socket.socket(socket.AF_UNIX))
            mute.bind(path)
            mute.listen()
        client = stack.enter_context(Client(path, timeout_ms=200))
        x = normal(3)
        for call in (client.ping, lambda: client.validate_op("double", {"x": x}, x)):
            with pytest.raises(RequestTimeoutError, match=r"did not answer within 0\.2 s"):
                call()
        with pytest.raises(RequestTimeoutError, match=r"within 0\.2 s"):
            client.fuzz_op("double", seed=1, iterations=3)
        waiting = AsyncClient(path, timeout_ms=200)
        with pytest.raises(RequestTimeoutError, match=r"within 0\.2 s"):
            asyncio.run(waiting.ping())


def test_what_cannot_be_sent(daemon: Served) -> None:
    with daemon.client() as client:
        for wrong in (np.ones(2, complex), np.array(["a"]), object(), None):
            with pytest.raises(ClientError, match="'x'"):
                client.validate_op("double", {"x": wrong}, normal(2))
        with pytest.raises(ClientError, match="seed"):
            client.submit_output("double", {"x": normal(2)}, normal(2))
        with pytest.raises(ClientError, match="given no case"):
            client.submit_output("double", 123, normal(2))


def test_what_is_too_large_is_not_sent(daemon: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon's transport would drop it unread, and the client would wait for its time-out."""
    monkeypatch.setattr(connection, "MAX_MESSAGE_BYTES", 2000)
    with daemon.client() as client:
        with pytest.raises(ClientError) as caught:
            client.validate_op("double", {"x": normal(1000)}, normal(1000))
        assert caught.value.problems[0].slug == "client-too-large"
        assert client.validate_op("double", {"x": normal(2)}, normal(2) * 2).passed


def test_scalars_lists_and_tensors_of_other_kinds(daemon: Served) -> None:
    class Tensor:
        """As PyTorch's: on a device, part of a graph."""

        dtype = "torch.float32"

        def __init__(self, array: np.ndarray, attached: bool = True) -> None:
            self.array, self.attached = array, attached

        def detach(self) -> Tensor:
            return Tensor(self.array, attached=False)

        def cpu(self) -> Tensor:
            return self

        def numpy(self) -> np.ndarray:
            assert not self.attached, "requires grad"
            return self.array

    x = normal(3)
    with daemon.client() as client:
        assert client.validate_op("double", {"x": Tensor(x)}, Tensor(x * 2)).passed
        assert client.validate_op("double", {"x": 1.5}, 3.0).passed
        assert client.validate_op("double", {"x": [1.0, 2.0]}, [2.0, 4.0]).passed
        narrow = client.validate_op("double", {"x": x}, x * 2, dtype="bfloat16")
        assert narrow.passed
        bfloat = x.astype(ml_dtypes.bfloat16)
        assert client.validate_op("double", {"x": bfloat}, bfloat * 2).passed


def test_results_are_objects_and_mappings(daemon: Served) -> None:
    x = normal(3)
    with daemon.client() as client:
        result = client.validate_op("double", {"x": x}, x)
    assert isinstance(result, ValidationResult)
    assert result["passed"] is result.passed is False
    assert dict(result)["op_name"] == "double"
    assert result.get("nothing") is None
    assert result["failures"][0]["message"] == result.failures[0].message
    assert not result
    with pytest.raises(KeyError):
        result["from_dict"]


def test_documented_ways_to_ask_for_cases(daemon: Served) -> None:
    with daemon.client() as client:
        by_seeds = client.get_test_batch("double", seeds=[1, 2])
        assert [c.seed for c in by_seeds] == [
            client.get_test_case("double", 1).seed,
            client.get_test_case("double", 2).seed,
        ]
        assert [c.seed for c in client.get_test_batch("double", [1, 2])] == [
            c.seed for c in by_seeds
        ]


def test_asyncio(daemon: Served) -> None:
    x = normal(4)

    async def many() -> list[ValidationResult]:
        async with AsyncClient(daemon.socket) as client:
            assert (await client.ping())["protocol_version"] == 1
            return await asyncio.gather(
                *(client.validate_op("double", {"x": x}, x * (2 + n % 2)) for n in range(20))
            )

    assert [r.passed for r in asyncio.run(many())] == [True, False] * 10


def test_asyncio_cancellation_ends_the_work(daemon: Served) -> None:
    daemon.close_gate()

    async def give_up() -> None:
        async with AsyncClient(daemon.socket) as client:
            task = asyncio.create_task(client.fuzz_op("gated_op", seed=1, iterations=3))
            while not daemon.entered():
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while (await client.ping())["in_progress"]:  # while the connection stands
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(give_up(), 60))


def test_importing_it_loads_no_engine() -> None:
    script = (
        "import sys, gpuemu_flow.client\n"
        "assert 'numpy' not in sys.modules\n"
        "gpuemu_flow.client.Client\n"
        "loaded = {m.split('.')[1] for m in sys.modules if m.startswith('gpuemu_flow.')}\n"
        "assert loaded <= {'client', 'wire', 'numerics', 'model'}, loaded\n"
        "assert 'pynng' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=600, env=dict(os.environ))
