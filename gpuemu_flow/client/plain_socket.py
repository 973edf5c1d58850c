"""The transport's request protocol on a socket of Python's own, for processes that were forked.

The transport library cannot be used in a child of a process that has used it: its threads are gone,
and it ends the child with an abort. A request needs little of its protocol: a greeting of 8 bytes,
then frames that hold a length, the request's number and the message.
"""

from __future__ import annotations

import secrets
import socket
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path

from gpuemu_flow.client.errors import TransportLost, TransportTimeout

_GREETING = struct.Struct(">4sHH")
_FRAME = struct.Struct(">BQ")
_NUMBER = struct.Struct(">I")
_MAGIC = b"\x00SP\x00"
_REQUEST, _REPLY = 0x30, 0x31
_LAST = 0x80000000  # marks the last number of a chain of them
_CHUNK = 1 << 20


class PlainSocket:
    """A connection to one daemon; each exchange under way has a socket of its own. Thread-safe.

    Parameters
    ----------
    path : Path

    Raises
    ------
    OSError
        Nobody listens.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._closed = False
        self._idle = [_connected(path)]

    def new_context(self, timeout_ms: int) -> PlainContext:
        """Begin the exchange of one message for an answer."""
        return PlainContext(self, timeout_ms)

    def take(self) -> _Connection:
        """Take an idle connection, or make one."""
        with self._lock:
            if self._closed:
                raise TransportLost("the connection was closed")
            while self._idle:
                connection = self._idle.pop()
                if _lives(connection):
                    return connection
                connection.close()  # the daemon was started anew since
        try:
            return _connected(self._path)
        except OSError as error:
            raise TransportLost(str(error)) from None

    def give_back(self, connection: _Connection) -> None:
        """Put back a connection whose exchange has succeeded."""
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def hangs_up(self, seconds: float) -> bool:
        """Tell whether the daemon ends the connection at once."""
        with self._lock:
            connection = self._idle[-1]
        connection.settimeout(seconds)
        try:
            return not connection.recv(1, socket.MSG_PEEK) or _greeted_then_ended(connection)
        except OSError:
            return False

    def abandon(self) -> None:
        """Close this process's copies of a parent's connections, without taking the lock."""
        self._lock = threading.Lock()
        self.close()

    def close(self) -> None:
        """Close the idle connections; exchanges under way close their own."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


class PlainContext:
    """One exchange; see `PlainSocket.new_context`."""

    def __init__(self, owner: PlainSocket, timeout_ms: int) -> None:
        self._owner = owner
        self._deadline = time.monotonic() + timeout_ms / 1000
        self._connection: _Connection | None = None
        self._number = secrets.randbits(31) | _LAST

    def send(self, data: bytes) -> None:
        """Send the request, or raise TransportTimeout or TransportLost."""
        self._connection = connection = self._owner.take()
        try:
            self._greet(connection)
            head = _FRAME.pack(1, _NUMBER.size + len(data)) + _NUMBER.pack(self._number)
            self._wait(connection)
            connection.sendall(head)
            self._wait(connection)
            connection.sendall(data)
        except TimeoutError:
            raise TransportTimeout from None
        except OSError as error:
            raise TransportLost(str(error)) from None

    def recv(self) -> bytes:
        """Return the answer to the request, or raise TransportTimeout or TransportLost."""
        connection = self._connection
        if connection is None:
            raise TransportLost("nothing was sent")
        try:
            while True:
                kind, length = _FRAME.unpack(self._read(connection, _FRAME.size))
                if kind != 1 or length < _NUMBER.size:
                    raise TransportLost("the daemon sent no message of the protocol")
                (number,) = _NUMBER.unpack(self._read(connection, _NUMBER.size))
                answer = self._read(connection, length - _NUMBER.size)
                if number == self._number:
                    break
        except TimeoutError:
            raise TransportTimeout from None
        except OSError as error:
            raise TransportLost(str(error)) from None
        self._connection = None
        self._owner.give_back(connection)
        return answer

    def close(self) -> None:
        """End the exchange; close the connection if no answer came."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _greet(self, connection: _Connection) -> None:
        """Read the other side's greeting, which arrives once per connection and may be late."""
        if connection.greeted:
            return
        magic, kind, _ = _GREETING.unpack(self._read(connection, _GREETING.size))
        if magic != _MAGIC or kind != _REPLY:
            raise TransportLost("what listens there is no daemon")
        connection.greeted = True

    def _read(self, connection: _Connection, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            self._wait(connection)
            part = connection.recv(min(_CHUNK, size - len(found)))
            if not part:
                raise TransportLost("the daemon hung up")
            found += part
        return bytes(found)

    def _wait(self, connection: _Connection) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TransportTimeout
        connection.settimeout(left)


class _Connection(socket.socket):
    """A socket, with a flag that the daemon's greeting has arrived."""

    greeted = False


def _connected(path: Path) -> _Connection:
    connection = _Connection(socket.AF_UNIX)
    try:
        connection.connect(str(path))
        connection.sendall(_GREETING.pack(_MAGIC, _REQUEST, 0))
    except OSError:
        connection.close()
        raise
    return connection


def _lives(connection: _Connection) -> bool:
    """Tell whether the other side of an idle connection is still open."""
    connection.settimeout(0)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))  # its greeting, which may not be read yet
    except BlockingIOError:
        return True
    except OSError:
        return False


def _greeted_then_ended(connection: _Connection) -> bool:
    with suppress(TimeoutError):
        connection.recv(_GREETING.size)
        return not connection.recv(1)
    return False
