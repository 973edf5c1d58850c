"""A client's exchange with whatever listens: answers in pieces, wrong ones, and none."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from forking import in_child

from gpuemu_flow.client.connection import Wire
from gpuemu_flow.client.results import TransportLost, TransportTimeout

GREETING = b"\x00SP\x00\x00\x31\x00\x00"
ANSWER = bytes(range(256)) * 1000  # longer than one read
SECONDS = 60.0


def received(conn: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (part := conn.recv(size - len(found))):
        found += part
    return found


def request(conn: socket.socket) -> tuple[int, bytes]:
    """Return the number and the text of the next request."""
    _, length, number = struct.unpack(">BQI", received(conn, 13))
    return number, received(conn, length - 4)


def frame(number: int, text: bytes, *, kind: int = 1, length: int | None = None) -> bytes:
    size = 4 + len(text) if length is None else length
    return struct.pack(">BQI", kind, size, number) + text


@contextmanager
def listening(folder: Path, say: Callable[[socket.socket], object]) -> Iterator[Wire]:
    """A connection to a process's other end, which `say` speaks for."""
    path = folder / "other.sock"
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket(socket.AF_UNIX))
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            conn, _ = server.accept()
            with conn:
                received(conn, len(GREETING))
                say(conn)

        thread = threading.Thread(target=serve)
        thread.start()
        stack.callback(thread.join)
        wire = stack.enter_context(Wire())
        wire.open(path, time.monotonic() + SECONDS)
        yield wire


def asked(wire: Wire, text: bytes, seconds: float = SECONDS) -> bytes:
    return bytes(wire.ask(text, time.monotonic() + seconds))


@pytest.mark.parametrize("text", [b"", b"{}", ANSWER])
@pytest.mark.parametrize("cuts", [(), (1,), (8, 9), (9, 13), (12, 13, 14)])
def test_answers_in_pieces(tmp_path: Path, text: bytes, cuts: Sequence[int]) -> None:
    questions = []

    def say(conn: socket.socket) -> None:
        conn.sendall(GREETING[:3])
        conn.sendall(GREETING[3:])
        for _ in range(2):
            number, question = request(conn)
            questions.append(question)
            answer = frame(number, text)
            ends = [cut for cut in cuts if cut < len(answer)]
            for begin, end in zip((0, *ends), (*ends, len(answer)), strict=True):
                conn.sendall(answer[begin:end])

    with listening(tmp_path, say) as wire:
        for question in (b"short", ANSWER):  # on one connection
            assert asked(wire, question) == text
    assert questions == [b"short", ANSWER]


WRONG: dict[str, Callable[[int], bytes]] = {
    "of another request": lambda number: frame(number ^ 1, b"{}"),
    "of another kind": lambda number: frame(number, b"{}", kind=0),
    "shorter than a number": lambda number: frame(number, b"", length=3),
    "larger than the memory": lambda number: frame(number, b"{}", length=1 << 62),
    "cut off": lambda number: frame(number, b"{}", length=100),
    "cut off in its head": lambda number: frame(number, b"{}")[:7],
    "none": lambda _: b"",
}


@pytest.mark.parametrize("kind", WRONG)
def test_answers_that_are_wrong(tmp_path: Path, kind: str) -> None:
    def say(conn: socket.socket) -> None:
        conn.sendall(GREETING)
        number, _ = request(conn)
        conn.sendall(WRONG[kind](number))

    with listening(tmp_path, say) as wire, pytest.raises(TransportLost):
        asked(wire, b"{}")


def test_what_greets_otherwise_is_no_daemon(tmp_path: Path) -> None:
    with (
        listening(tmp_path, lambda conn: conn.sendall(b"HTTP/1.1 ")) as wire,
        pytest.raises(TransportLost, match="no daemon"),
    ):
        asked(wire, b"{}")


def test_no_answer_in_time(tmp_path: Path) -> None:
    def say(conn: socket.socket) -> None:
        conn.sendall(GREETING)
        request(conn)
        assert conn.recv(1) == b""  # the client closes what it waits for no more

    with listening(tmp_path, say) as wire, pytest.raises(TransportTimeout):
        asked(wire, b"{}", seconds=0.05)


def test_a_forked_child_leaves_the_connection_to_its_parent(tmp_path: Path) -> None:
    def say(conn: socket.socket) -> None:
        conn.sendall(GREETING)
        number, _ = request(conn)
        conn.sendall(frame(number, b"{}"))

    with listening(tmp_path, say) as wire:

        def ask() -> int:
            with pytest.raises(TransportLost):
                asked(wire, b"{}")
            return 3

        assert in_child(ask) == 3
        assert asked(wire, b"{}") == b"{}"
