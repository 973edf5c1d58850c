"""The request protocol of the transport library, implemented with Python's sockets.

A request needs only a small part of the protocol: a greeting of 8 bytes, then frames with a length,
the request's number and the message. The library itself would pass messages between its threads,
which doubles a client's CPU time. It also aborts forked children of a process that has used it.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuemu_flow.client.errors import (
    TransportClosed,
    TransportEnded,
    TransportFull,
    TransportLost,
    TransportTimeout,
    TransportUnreached,
)

CONNECT_MILLISECONDS = 5000
REFUSED_SECONDS = 0.1  # as often as the transport itself tries to connect again
MOST_IDLE = 4
"""Largest number of idle connections to keep. Each counts toward the daemon's limit."""
_GREETING = struct.Struct(">4sHH")
_FRAME = struct.Struct(">BQI")
"""Kind of the frame, number of bytes after the length, number of the request."""
_NUMBER_SIZE = 4  # is counted as a part of the message
_MAGIC = b"\x00SP\x00"
_REQUEST, _REPLY = 0x30, 0x31
_LAST = 0x80000000  # marks the last number of a chain of them
_SHORT = 1 << 16
"""Largest size in bytes of messages that are sent and read by a single system call."""


@dataclass(frozen=True)
class Opening:
    """The first exchange on each connection, which identifies the daemon.

    Attributes
    ----------
    data : bytes
        The message, which is the same for each connection.
    read : callable
        Converts the answer to the value of `PlainContext.met`, or raises an error to refuse the
        connection.
    """

    data: bytes
    read: Callable[[bytes | bytearray], Any]


class PlainSocket:
    """Connections to the socket at a path, one for each exchange in progress. Thread-safe.

    Parameters
    ----------
    path : Path
    opening : Opening, optional
    """

    def __init__(self, path: Path, opening: Opening | None = None) -> None:
        self.path = path
        self._opening = opening
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0  # threads that wait for an idle connection
        self._closed = False
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()

    def new_context(self, timeout_ms: int) -> PlainContext:
        """Begin an exchange, which is one message and its answer, on an idle or a new connection.

        Raises
        ------
        TransportUnreached
            No process listens at the path.
        TransportFull
            The daemon accepts no more clients.
        TransportTimeout
            The opening got no answer in time.
        TransportLost
            The socket was closed, or the listening process is not a daemon.
        """
        return PlainContext(self, self._take(timeout_ms), timeout_ms)

    def _take(self, timeout_ms: int) -> _Connection:
        begun = time.monotonic()
        while True:
            with self._lock:
                if self._closed:
                    raise TransportClosed("the connection was closed")
                connection = self._idle.pop() if self._idle else None
                if connection is not None and connection.lives():
                    self._busy.add(connection)
                    return connection
                own = bool(self._busy)
            if connection is not None:
                connection.close()  # the daemon has ended, or needed the place
                continue
            connection = self._open()
            if connection is not None:
                with self._changed:
                    if not self._closed:
                        self._busy.add(connection)
                        return connection
                connection.close()
                continue
            # Where this client has other exchanges under way, one of their places becomes free.
            patience = max(CONNECT_MILLISECONDS, timeout_ms if own else 0) / 1000
            if time.monotonic() - begun > patience:
                raise TransportFull
            with self._changed:
                if not self._idle and not self._closed:
                    self._waiting += 1
                    try:
                        self._changed.wait(REFUSED_SECONDS)
                    finally:
                        self._waiting -= 1

    def _open(self) -> _Connection | None:
        """Return a new connection with a completed opening; None if the daemon is full.

        A full daemon either closes a new connection at once or leaves it in the queue.
        """
        connection = _Connection()
        stays_open = False
        try:
            connection.settimeout(CONNECT_MILLISECONDS / 1000)
            try:
                connection.connect(str(self.path))
            except BlockingIOError:
                return None
            except OSError as error:
                raise TransportUnreached(str(error)) from None
            connection.say_hello()
            if self._opening is not None:
                deadline = time.monotonic() + CONNECT_MILLISECONDS / 1000
                number = connection.new_number()
                connection.send_request(number, self._opening.data, deadline)
                connection.met = self._opening.read(connection.read_answer(number, deadline))
            stays_open = True
        except TransportEnded:
            return None
        finally:
            if not stays_open:
                connection.close()
        return connection

    def give_back(self, connection: _Connection) -> None:
        """Make a connection idle after its exchange has succeeded, or was not begun.

        If enough connections are idle already, close this one.
        """
        with self._lock:
            self._busy.discard(connection)
            if not self._closed and len(self._idle) < MOST_IDLE:
                self._idle.append(connection)
                if self._waiting:
                    self._changed.notify()
                return
        connection.close()

    def drop(self, connection: _Connection) -> None:
        """Close a connection whose exchange has failed."""
        with self._changed:
            self._busy.discard(connection)
        connection.close()

    def abandon(self) -> None:
        """Close a forked process's copies of its parent's connections, without taking the lock."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._closed = True
        for connection in (*self._idle, *self._busy):
            connection.close()

    def retire(self) -> None:
        """Close the idle connections, and begin no more exchanges; those in progress continue."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            self._changed.notify_all()
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Close all connections, and begin no more exchanges. Exchanges in progress fail."""
        self.retire()
        with self._changed:
            for connection in self._busy:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # its thread wakes, and closes it


class PlainContext:
    """One exchange of a message and its answer; see `PlainSocket.new_context`."""

    def __init__(self, owner: PlainSocket, connection: _Connection, timeout_ms: int) -> None:
        self._owner = owner
        self._deadline = time.monotonic() + timeout_ms / 1000
        self._connection: _Connection | None = connection
        self._number = 0

    @property
    def met(self) -> Any:
        """Return the result of `Opening.read` for the connection; None after the exchange."""
        return None if self._connection is None else self._connection.met

    def send(self, data: bytes) -> None:
        """Send the message, or raise TransportTimeout or TransportLost."""
        if self._connection is None:
            raise TransportLost("the exchange has ended")
        self._number = self._connection.new_number()
        self._connection.send_request(self._number, data, self._deadline)

    def recv(self) -> bytes | bytearray:
        """Wait for the answer and return it, or raise TransportTimeout or TransportLost."""
        connection = self._connection
        if connection is None or not self._number:
            raise TransportLost("nothing was sent")
        answer = connection.read_answer(self._number, self._deadline)
        self._connection = None
        self._owner.give_back(connection)
        return answer

    def close(self) -> None:
        """End the exchange. If a message was sent but not answered, close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            (self._owner.drop if self._number else self._owner.give_back)(connection)


class _Connection(socket.socket):
    """A connection of this process to a daemon.

    Attributes
    ----------
    met : object
        What `Opening.read` returned for this connection.
    """

    met: Any = None

    def __init__(self) -> None:
        super().__init__(socket.AF_UNIX)
        self._process = os.getpid()
        self._greeted = False
        self._number = secrets.randbits(31)

    def lives(self) -> bool:
        """Tell whether the other side of an idle connection is still open."""
        self.settimeout(0)
        try:
            return bool(self.recv(1, socket.MSG_PEEK))  # its greeting, which may not be read yet
        except BlockingIOError:
            return True
        except OSError:
            return False

    def new_number(self) -> int:
        """Return the number for a new request; numbers do not recur on a connection."""
        self._number = (self._number + 1) % _LAST
        return self._number | _LAST

    def say_hello(self) -> None:
        """Send this side's greeting."""
        try:
            self.sendall(_GREETING.pack(_MAGIC, _REQUEST, 0))
        except OSError as error:
            raise TransportEnded(str(error)) from None

    def send_request(self, number: int, data: bytes, deadline: float) -> None:
        """Send a request, or raise TransportTimeout or TransportLost."""
        head = _FRAME.pack(1, _NUMBER_SIZE + len(data), number)
        try:
            self._read_greeting(deadline)
            if len(data) <= _SHORT:
                data = head + data
            else:
                self._wait(deadline)
                self.sendall(head)
            self._wait(deadline)
            self.sendall(data)
        except TimeoutError:
            raise TransportTimeout from None
        except OSError as error:
            raise TransportEnded(str(error)) from None

    def read_answer(self, number: int, deadline: float) -> bytes | bytearray:
        """Return the answer to a request, or raise TransportTimeout or TransportLost."""
        try:
            found, answer = self._message(deadline)
        except TimeoutError:
            raise TransportTimeout from None
        except OSError as error:
            raise TransportEnded(str(error)) from None
        if found != number:
            raise TransportLost("the daemon answered another request")
        return answer

    def _read_greeting(self, deadline: float) -> None:
        """Read the daemon's greeting unless it has been read; it arrives once per connection."""
        if self._greeted:
            return
        greeting = bytearray(_GREETING.size)
        self._fill(memoryview(greeting), deadline)
        magic, kind, _ = _GREETING.unpack(greeting)
        if magic != _MAGIC or kind != _REPLY:
            raise TransportLost("what listens there is no daemon")
        self._greeted = True

    def _message(self, deadline: float) -> tuple[int, bytes | bytearray]:
        """Read one message; return the number of the request that it answers, and its content."""
        self._wait(deadline)
        begin = self.recv(_SHORT)
        if len(begin) < _FRAME.size:
            if not begin:
                raise TransportEnded("the daemon hung up")
            rest = bytearray(_FRAME.size - len(begin))
            self._fill(memoryview(rest), deadline)
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
        self._fill(memoryview(answer)[found:], deadline)
        return number, answer

    def _fill(self, space: memoryview, deadline: float) -> None:
        """Read bytes until `space` is full."""
        while space:
            self._wait(deadline)
            read = self.recv_into(space)
            if not read:
                raise TransportEnded("the daemon hung up")
            space = space[read:]

    def _wait(self, deadline: float) -> None:
        """Limit the socket's next operation to the time left until the deadline.

        TransportTimeout is raised if no time is left.
        """
        if self._process != os.getpid():  # a handler of a signal forked in the middle of it
            raise TransportLost("the answer is the parent process's")
        left = deadline - time.monotonic()
        if left <= 0:
            raise TransportTimeout
        self.settimeout(left)
