"""A daemon's server is closed only after its threads have left the transport."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pynng
import pytest

from gpuemu_flow.daemon import server as module
from gpuemu_flow.daemon.server import Server

AWHILE = 0.1


def closed_early(monkeypatch: pytest.MonkeyPatch, folder: Path, request: dict[str, Any]) -> bool:
    """Tell whether a server closes its socket while a thread that sent an answer is in the send."""
    server = Server(
        route=lambda _: "pool",
        pools={"pool": 1},
        ping=lambda _: {"type": "Pong"},
        handle=lambda _message, _job: {"type": "Ok"},
        group_of=lambda _message, _size: "",
        handle_group=lambda _requests: (),
    )
    sent, socket_closed, early = threading.Event(), threading.Event(), threading.Event()

    class Closed:
        """The server's socket, which says when it is closed."""

        def __init__(self, socket: pynng.Rep0) -> None:
            self._socket = socket

        def __getattr__(self, name: str) -> Any:
            return getattr(self._socket, name)

        def close(self) -> None:
            socket_closed.set()
            self._socket.close()

    def slow_to_leave(*arguments: Any) -> None:
        real_send(*arguments)
        sent.set()
        if socket_closed.wait(AWHILE):
            early.set()

    real_send = module.send
    monkeypatch.setattr(module, "send", slow_to_leave)
    server._socket = Closed(server._socket)
    address = f"ipc://{folder}/s"
    server.listen(address)
    server.start()
    with pynng.Req0(dial=address, recv_timeout=600_000) as client:
        client.send(json.dumps(request).encode())
        assert sent.wait(600)
        server.close(600)
        assert client.recv()
    return early.is_set()


@pytest.mark.parametrize("kind", ["Ping", "ListResults"])
def test_the_socket_stays_open_until_answers_are_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    assert not closed_early(monkeypatch, tmp_path, {"type": kind})
    assert not [t for t in threading.enumerate() if t.name in ("receive", "tidy")], "all ended"
