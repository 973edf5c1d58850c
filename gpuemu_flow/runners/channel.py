"""Send and receive framed JSON messages of limited size over a Unix socket."""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence

from gpuemu_flow.types import Json

MAX_FRAME = 64 << 20
_CHUNK = 1 << 16
_MAGIC = b"gfr1"
_HEADER = struct.Struct("<4sI")
_FD_SIZE = array.array("i").itemsize


class ChannelClosedError(Exception):
    """Raised when the peer has closed its end, or died."""


class ChannelJunkError(Exception):
    """Raised when the peer sent bytes that are not a valid frame."""


def pack(message: Mapping[str, Json]) -> bytes:
    """Return one frame: magic, length, JSON."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_FRAME:
        raise ValueError(f"a message of {len(body)} bytes is over {MAX_FRAME}")
    return _HEADER.pack(_MAGIC, len(body)) + body


def send(sock: socket.socket, message: Mapping[str, Json], fds: Sequence[int] = ()) -> None:
    """Send one message together with file descriptors.

    Raises ChannelClosedError: The peer is gone.
    """
    frame = pack(message)
    try:
        if fds:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
            sent = sock.sendmsg([frame], [rights])
            frame = frame[sent:]
        if frame:
            sock.sendall(frame)
    except OSError as error:
        raise ChannelClosedError(str(error)) from None


class FrameReader:
    """Reads messages, and the file descriptors that come with them, from a socket."""

    def __init__(self, sock: socket.socket, *, max_fds: int = 0, wait: bool = True) -> None:
        self._sock = sock
        self._flags = 0 if wait else socket.MSG_DONTWAIT
        self._max_fds = max_fds
        self._data = bytearray()
        self.fds: list[int] = []

    def _take(self) -> dict[str, Json] | None:
        """Return the first complete message in the buffer, or None."""
        prefix = bytes(self._data[: len(_MAGIC)])
        if prefix != _MAGIC[: len(prefix)]:
            raise ChannelJunkError("not a frame")
        if len(self._data) < _HEADER.size:
            return None
        _, length = _HEADER.unpack_from(self._data)
        if length > MAX_FRAME:
            raise ChannelJunkError(f"a frame of {length} bytes")
        end = _HEADER.size + length
        if len(self._data) < end:
            return None
        body = bytes(self._data[_HEADER.size : end])
        del self._data[:end]
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):
            raise ChannelJunkError("not JSON") from None
        if not isinstance(message, dict):
            raise ChannelJunkError("not a JSON object")
        return message

    def buffered(self) -> dict[str, Json] | None:
        """Return the next message that has already been received; None if there is none.

        Raises ChannelJunkError for bytes that are not a valid frame.
        """
        return self._take() if self._data else None

    def _receive(self) -> bytes:
        if not self._max_fds:
            return self._sock.recv(_CHUNK, self._flags)
        space = socket.CMSG_SPACE(self._max_fds * _FD_SIZE)
        data, ancillary, _, _ = self._sock.recvmsg(_CHUNK, space, self._flags)
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i")
                fds.frombytes(payload[: len(payload) - len(payload) % _FD_SIZE])
                for fd in fds:
                    os.set_inheritable(fd, False)
                self.fds.extend(fds)
        return data

    def read(self) -> dict[str, Json] | None:
        """Return the next message; None if there is none yet and `wait` is False.

        Raises ChannelClosedError or ChannelJunkError.
        """
        while (message := self.buffered()) is None:
            try:
                data = self._receive()
            except BlockingIOError:
                return None
            except OSError as error:
                raise ChannelClosedError(str(error)) from None
            if not data:
                raise ChannelClosedError("end of file")
            self._data += data
        return message
