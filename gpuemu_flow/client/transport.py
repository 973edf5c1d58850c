"""One request and its answer over a Unix socket, in the protocol of the daemon's transport library.

A request needs only a small part of that protocol: a greeting of 8 bytes, then frames with a
length, the request's number and the message. The library itself (nng) aborts each forked child of
a process that has used it as soon as the child uses it, too.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import time
from pathlib import Path

from gpuemu_flow.client.errors import (
    TransportEnded,
    TransportFull,
    TransportLost,
    TransportTimeout,
    TransportUnreached,
)
from gpuemu_flow.wire.exchange import Exchange

_GREETING = struct.Struct(">4sHH")
_FRAME = struct.Struct(">BQI")
"""Kind of the frame, number of bytes after the length, number of the request."""
_NUMBER_SIZE = 4  # is counted as a part of the message
_MAGIC = b"\x00SP\x00"
_REQUEST, _REPLY = 0x30, 0x31
_LAST = 0x80000000  # marks the last number of a chain of them


class Wire(socket.socket):
    """A connection to a daemon. `exchange` is the folder for large tensors, if there is one."""

    exchange: Exchange | None = None

    def __init__(self) -> None:
        super().__init__(socket.AF_UNIX)
        self._process = os.getpid()
        self._greeted = False
        self._number = secrets.randbits(31)

    def open(self, path: Path, deadline: float) -> None:
        """Connect to the socket at a path, or raise a TransportError."""
        self._limit(deadline)
        try:
            self.connect(str(path))
        except BlockingIOError:
            raise TransportFull from None
        except OSError as error:
            raise TransportUnreached(str(error)) from None

    def ask(self, data: bytes, deadline: float) -> bytearray:
        """Send a request and return the answer, or raise a TransportError."""
        self._number = (self._number + 1) % _LAST
        number = self._number | _LAST
        try:
            if not self._greeted:
                self._greet(deadline)
            for part in (_FRAME.pack(1, _NUMBER_SIZE + len(data), number), data):
                self._limit(deadline)
                self.sendall(part)
            kind, length, found = _FRAME.unpack(self._read(_FRAME.size, deadline))
            if kind != 1 or length < _NUMBER_SIZE:
                raise TransportLost("the daemon sent no message of the protocol")
            if found != number:
                raise TransportLost("the daemon answered another request")
            return self._read(length - _NUMBER_SIZE, deadline)
        except TimeoutError:
            raise TransportTimeout from None
        except OSError as error:
            raise TransportEnded(str(error)) from None

    def _greet(self, deadline: float) -> None:
        self._limit(deadline)
        self.sendall(_GREETING.pack(_MAGIC, _REQUEST, 0))
        magic, kind, _ = _GREETING.unpack(self._read(_GREETING.size, deadline))
        if magic != _MAGIC or kind != _REPLY:
            raise TransportLost("what listens there is no daemon")
        self._greeted = True

    def _read(self, size: int, deadline: float) -> bytearray:
        try:
            found = bytearray(size)
        except (MemoryError, OverflowError):
            raise TransportLost(f"an answer of {size} bytes") from None
        space = memoryview(found)
        while space:
            self._limit(deadline)
            read = self.recv_into(space)
            if not read:
                raise TransportEnded("the daemon hung up")
            space = space[read:]
        return found

    def _limit(self, deadline: float) -> None:
        """Limit the next operation to the time left until the deadline."""
        if self._process != os.getpid():  # a handler of a signal forked in the middle of it
            raise TransportLost("the answer is the parent process's")
        left = deadline - time.monotonic()
        if left <= 0:
            raise TransportTimeout
        self.settimeout(left)
