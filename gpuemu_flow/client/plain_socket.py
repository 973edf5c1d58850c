"""The transport's request protocol on a socket of Python's own.

A request needs little of that protocol: a greeting of 8 bytes, then frames that hold a length, the
request's number and the message. The transport library would pass each of them between threads of
its own, which doubles a client's CPU time, and it ends a child of the process that has used it with
an abort.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path

from gpuemu_flow.client.errors import TransportLost, TransportTimeout

_GREETING = struct.Struct(">4sHH")
_FRAME = struct.Struct(">BQI")
"""Kind of the frame, bytes that follow the length, number of the request."""
_NUMBER_SIZE = 4  # is counted as a part of the message
_MAGIC = b"\x00SP\x00"
_REQUEST, _REPLY = 0x30, 0x31
_LAST = 0x80000000  # marks the last number of a chain of them
_SHORT = 1 << 16
"""Bytes up to which a message, as most are, is sent and read by one call of the system."""


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
        self._busy: set[_Connection] = set()

    def new_context(self, timeout_ms: int) -> PlainContext:
        """Begin the exchange of one message for an answer."""
        return PlainContext(self, timeout_ms)

    def take(self) -> _Connection:
        """Take an idle connection, or make one."""
        while True:
            with self._lock:
                if self._closed:
                    raise TransportLost("the connection was closed")
                connection = self._idle.pop() if self._idle else None
                if connection is not None and _lives(connection):
                    self._busy.add(connection)
                    return connection
            if connection is None:
                break
            connection.close()  # the daemon was started anew since
        try:
            connection = _connected(self._path)
        except OSError as error:
            raise TransportLost(str(error)) from None
        with self._lock:
            if not self._closed:
                self._busy.add(connection)
                return connection
        connection.close()
        raise TransportLost("the connection was closed")

    def give_back(self, connection: _Connection) -> None:
        """Put back a connection whose exchange has succeeded."""
        with self._lock:
            self._busy.discard(connection)
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def drop(self, connection: _Connection) -> None:
        """Close a connection whose exchange has failed."""
        with self._lock:
            self._busy.discard(connection)
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
        self._closed = True
        for connection in (*self._idle, *self._busy):
            connection.close()

    def close(self) -> None:
        """Close the connections; exchanges under way fail."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for connection in self._busy:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # its thread wakes, and closes it
        for connection in idle:
            connection.close()


class PlainContext:
    """One exchange; see `PlainSocket.new_context`."""

    def __init__(self, owner: PlainSocket, timeout_ms: int) -> None:
        self._owner = owner
        self._deadline = time.monotonic() + timeout_ms / 1000
        self._connection: _Connection | None = None
        self._number = secrets.randbits(31) | _LAST
        self._process = os.getpid()

    def send(self, data: bytes) -> None:
        """Send the request, or raise TransportTimeout or TransportLost."""
        self._connection = connection = self._owner.take()
        head = _FRAME.pack(1, _NUMBER_SIZE + len(data), self._number)
        try:
            self._greet(connection)
            if len(data) <= _SHORT:
                data = head + data
            else:
                self._wait(connection)
                connection.sendall(head)
            self._wait(connection)
            connection.sendall(data)
        except TimeoutError:
            raise TransportTimeout from None
        except OSError as error:
            raise TransportLost(str(error)) from None

    def recv(self) -> bytes | bytearray:
        """Return the answer to the request, or raise TransportTimeout or TransportLost."""
        connection = self._connection
        if connection is None:
            raise TransportLost("nothing was sent")
        try:
            number, answer = self._message(connection)
        except TimeoutError:
            raise TransportTimeout from None
        except OSError as error:
            raise TransportLost(str(error)) from None
        if number != self._number:
            raise TransportLost("the daemon answered another request")
        self._connection = None
        self._owner.give_back(connection)
        return answer

    def close(self) -> None:
        """End the exchange; close the connection if no answer came."""
        if self._connection is not None:
            self._owner.drop(self._connection)
            self._connection = None

    def _greet(self, connection: _Connection) -> None:
        """Read the other side's greeting, which arrives once per connection and may be late."""
        if connection.greeted:
            return
        greeting = bytearray(_GREETING.size)
        self._fill(connection, memoryview(greeting))
        magic, kind, _ = _GREETING.unpack(greeting)
        if magic != _MAGIC or kind != _REPLY:
            raise TransportLost("what listens there is no daemon")
        connection.greeted = True

    def _message(self, connection: _Connection) -> tuple[int, bytes | bytearray]:
        """Read one message: the number of its request, and its text."""
        self._wait(connection)
        begin = connection.recv(_SHORT)
        if len(begin) < _FRAME.size:
            if not begin:
                raise TransportLost("the daemon hung up")
            rest = bytearray(_FRAME.size - len(begin))
            self._fill(connection, memoryview(rest))
            begin += rest
        kind, length, number = _FRAME.unpack_from(begin)
        size = length - _NUMBER_SIZE
        found = len(begin) - _FRAME.size
        if kind != 1 or not found <= size:
            raise TransportLost("the daemon sent no message of the protocol")
        if found == size:
            return number, begin[_FRAME.size :]
        try:
            answer = bytearray(size)
        except (MemoryError, OverflowError):
            raise TransportLost(f"an answer of {size} bytes") from None
        answer[:found] = memoryview(begin)[_FRAME.size :]
        self._fill(connection, memoryview(answer)[found:])
        return number, answer

    def _fill(self, connection: _Connection, space: memoryview) -> None:
        """Read as many bytes as there is space for."""
        while space:
            self._wait(connection)
            read = connection.recv_into(space)
            if not read:
                raise TransportLost("the daemon hung up")
            space = space[read:]

    def _wait(self, connection: _Connection) -> None:
        """Limit the next operation to the time that is left."""
        if self._process != os.getpid():  # a handler of a signal forked in the middle of it
            raise TransportLost("the answer is the parent process's")
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
