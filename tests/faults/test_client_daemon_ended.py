"""A client outlives its daemon: the next call starts another, and no request is sent twice."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from daemon_workspace import Served, normal
from forking import in_child
from runner_workspace import wait_until

from gpuemu_flow.client import AsyncClient, Client, ClientError, DaemonUnreachableError, connection
from gpuemu_flow.services.daemon.control import running, stop_daemon
from gpuemu_flow.services.daemon.files import acquire, make_place
from gpuemu_flow.wire import start_daemon

X = normal(3, 4)


def passes(client: Client) -> bool:
    return client.validate_op("double", {"x": X}, X * 2).passed


ENDS: dict[str, Callable[[Served], object]] = {
    "killed": lambda served: served.kill(),
    "stopped": lambda served: stop_daemon(served.root, served.environ),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_next_call_starts_another(at_home: Served, end: str) -> None:
    at_home.start()
    with Client() as client:
        assert passes(client)
        ENDS[end](at_home)
        assert passes(client)
        found = running(at_home.root, at_home.environ)
        assert found is not None
        assert found.pid != at_home.info["pid"]
        assert len(client.list_results()) == 2


@pytest.mark.parametrize("end", ENDS)
def test_a_client_that_starts_none_says_so_and_connects_again(at_home: Served, end: str) -> None:
    at_home.start()
    with Client(autostart=False) as client:
        assert passes(client)
        ENDS[end](at_home)
        for _ in range(2):
            with pytest.raises(DaemonUnreachableError) as caught:
                passes(client)
            assert caught.value.problems[0].slug == "client-no-daemon"
        config = (at_home.root / "gpuemu.toml").read_text()
        elsewhere = f'[daemon]\nsocket_path = "{at_home.folder}/elsewhere.sock"'
        at_home.write("gpuemu.toml", config.replace("[daemon]", elsewhere))
        at_home.start()
        assert passes(client)


def test_a_request_at_work_is_not_sent_again(at_home: Served) -> None:
    """The daemon may have acknowledged it: only the caller knows whether twice is wrong."""
    at_home.start()
    errors: list[ClientError] = []
    with Client() as client:

        def ask() -> None:
            with pytest.raises(DaemonUnreachableError) as caught:
                client.validate_op("gated", {"x": X}, X * 2)
            errors.append(caught.value)

        thread = threading.Thread(target=ask)
        thread.start()
        assert wait_until(lambda: at_home.entered() > 0)
        at_home.kill()
        thread.join(600)
        (error,) = errors
        assert error.problems[0].slug == "client-connection-lost"
        assert passes(client)
        assert client.ping()["requests"] == 1
        assert at_home.entered() == 1


def test_threads_share_the_daemon_that_one_of_them_starts(at_home: Served) -> None:
    at_home.start()
    with Client() as client, ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda _: passes(client), range(16)))
        at_home.kill()
        assert all(threads.map(lambda _: passes(client), range(16)))
        assert len(client.list_results()) == 32


def test_a_fork_of_its_own_finds_it_too(at_home: Served) -> None:
    at_home.start()
    with Client() as client:
        assert passes(client)
        at_home.kill()
        assert in_child(lambda: 3 if passes(client) else 4) == 3
        assert passes(client)


def test_asking_about_a_request_starts_no_daemon(at_home: Served) -> None:
    with Client() as client:
        with pytest.raises(DaemonUnreachableError):
            client.give_up("of a daemon that has ended")
        assert running(at_home.root, at_home.environ) is None


def test_a_daemon_that_is_still_ending_is_waited_for(
    at_home: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it holds the lock no other can start, and it listens no more."""
    lock = acquire(make_place(at_home.root, at_home.environ).lock)
    assert lock is not None
    found: list[dict[str, Any]] = []

    def start(*args: Any, **options: Any) -> dict[str, Any]:
        if found:
            lock.release()
        found.append(start_daemon(*args, **options))
        return found[-1]

    monkeypatch.setattr(connection, "start_daemon", start)
    with Client() as client:
        assert passes(client)
    refused, started = found
    assert not refused
    assert started


@pytest.fixture
def narrow(at_home: Served) -> Served:
    """A daemon with few places."""
    config = (at_home.root / "gpuemu.toml").read_text()
    at_home.write("gpuemu.toml", config.replace("max_connections = 200", "max_connections = 5"))
    at_home.start()
    return at_home


def test_more_calls_at_once_than_the_daemon_has_places(narrow: Served) -> None:
    """They share the client's own places, and leave one to other clients afterwards."""

    async def many() -> None:
        async with AsyncClient() as client:
            results = await asyncio.gather(
                *(client.validate_op("double", {"x": X}, X * 2) for _ in range(30))
            )
            assert all(result.passed for result in results)
            with Client() as another:
                assert await asyncio.to_thread(passes, another)

    asyncio.run(many())


def test_a_full_queue_is_no_reason_to_hang(tmp_path: Path) -> None:
    path = tmp_path / "silent.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        waiting: list[socket.socket] = []
        try:
            while True:
                waiting.append(socket.socket(socket.AF_UNIX))
                waiting[-1].setblocking(False)
                try:
                    waiting[-1].connect(str(path))
                except BlockingIOError:
                    break
            with Client(path) as client, pytest.raises(DaemonUnreachableError) as caught:
                client.ping()
            assert caught.value.problems[0].slug == "client-too-many-clients"
        finally:
            for sock in waiting:
                sock.close()
