"""What processes tell each other: messages in pieces, descriptors, files without a path."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

import pytest
from for_each import for_each

from gpuemu_flow.workers import channel
from gpuemu_flow.workers.channel import ChannelClosedError, ChannelJunkError, FrameReader

MESSAGES = ({}, {"a": [1, None, "ü"], "b": {"c": 1.5}}, {"long": "x" * 200_000})


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    pair = socket.socketpair()
    yield pair
    for end in pair:
        end.close()


def test_messages_arrive_whole_however_they_are_cut(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    reader = FrameReader(theirs, wait=False)
    data = b"".join(map(channel.pack, MESSAGES[:2])) * 2
    found = []
    for n in range(len(data)):
        ours.sendall(data[n : n + 1])
        while (message := reader.read()) is not None:
            found.append(message)
    assert found == [*MESSAGES[:2], *MESSAGES[:2]]
    assert reader.buffered() is None
    ours.sendall(data)
    assert reader.read() == MESSAGES[0]
    assert [reader.buffered() for _ in range(4)] == [MESSAGES[1], *MESSAGES[:2], None]
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    channel.send(ours, MESSAGES[2])
    assert FrameReader(theirs).read() == MESSAGES[2]
    ours.close()
    with pytest.raises(ChannelClosedError):
        reader.read()
    theirs.close()
    with pytest.raises(ChannelClosedError):
        reader.read()
    with pytest.raises(ChannelClosedError):
        channel.send(ours, {})


def test_descriptors_come_with_a_message(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    fd = channel.create("some")
    channel.write_all(fd, b"content")
    channel.send(ours, {"n": 1}, [fd, fd])
    channel.send(ours, {"n": 2})
    reader = FrameReader(theirs, max_fds=2)
    assert (reader.read(), reader.read()) == ({"n": 1}, {"n": 2})
    assert [channel.read_all(other, 100) for other in reader.fds] == [b"content"] * 2
    assert not any(map(os.get_inheritable, (fd, *reader.fds)))
    for each in (fd, *reader.fds):
        os.close(each)


@for_each(
    ("data", "says"),
    [
        (b"GET / HTTP/1.1", "not a frame"),
        (b"gfr2", "not a frame"),
        (b"gfr1" + struct.pack("<I", (64 << 20) + 1), f"a frame of {(64 << 20) + 1} bytes"),
        (b"gfr1" + struct.pack("<I", 2) + b"{x", "not JSON"),
        (b"gfr1" + struct.pack("<I", 2) + b"[]", "not a JSON object"),
        (b"gfr1" + struct.pack("<I", 40_000) + b"[" * 40_000, "not JSON"),
    ],
)
def test_what_is_no_message(data: bytes, says: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(ChannelJunkError, match=says):
        ours.sendall(data)
        FrameReader(theirs).read()


def test_a_message_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = channel.pack({"a": 1})
    monkeypatch.setattr(channel, "MAX_FRAME", len(frame) - 8)
    assert channel.pack({"a": 1}) == frame
    with pytest.raises(ValueError, match=r"a message of 8 bytes is over 7"):
        channel.pack({"a": 10})


def test_files_without_a_path() -> None:
    fd = channel.append_only(channel.create("log"))
    os.write(fd, b"a" * 4001 + "\0 ü ".encode() + b"\xff\n")
    os.pwrite(fd, b"end\n", 0)
    assert channel.tail(fd) == "a" * 3989 + " ü \ufffd\nend"
    assert channel.read_all(fd, 3) == b"aaa"
    assert len(channel.read_all(fd, 1 << 40)) == 4001 + 7 + 4
    os.close(fd)
    assert channel.tail(-1) == ""
    fixed = channel.create("tensors", fixed=True)
    os.ftruncate(fixed, 100)
    with pytest.raises(PermissionError):
        os.ftruncate(fixed, 99)
    os.close(fixed)


def test_the_phases_of_a_call() -> None:
    fd = channel.create("status")
    assert channel.read_status(fd) == (channel.PREPARING, 0.0, 0)
    watch = channel.Watch(fd)
    watch.place = 3
    watch.preparing()
    assert channel.read_status(fd)[::2] == (channel.PREPARING, 3)
    with watch:
        phase, begun, place = channel.read_status(fd)
        assert (phase, place) == (channel.CALLING, 3)
        assert begun > 0
    assert channel.read_status(fd)[0] == channel.FINISHING
    assert channel.read_status(fd)[1] >= begun
    assert watch.seconds >= 0
    os.close(fd)
    assert channel.read_status(-1) == (channel.PREPARING, 0.0, 0)
    for nowhere in (None, -1):  # as where the program has closed it
        with channel.Watch(nowhere):
            pass
