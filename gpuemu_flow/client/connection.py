"""A client's connection: finds or starts the daemon, checks its version, sends and receives.

Threads may share a connection: each call under way has a socket. A process that was forked connects
anew.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

import numpy as np

from gpuemu_flow.client import calls
from gpuemu_flow.client.calls import Call, Reply
from gpuemu_flow.client.errors import (
    ClientError,
    DaemonUnreachableError,
    RequestTimeoutError,
    TransportError,
    TransportLost,
    TransportTimeout,
    VersionMismatchError,
    refused,
)
from gpuemu_flow.client.plain_socket import PlainSocket
from gpuemu_flow.errors import FlowError, Problem
from gpuemu_flow.wire import MAX_MESSAGE_BYTES, PROTOCOL_VERSION
from gpuemu_flow.wire.address import MAX_PATH_BYTES, default_socket, find_root, fits, read_info
from gpuemu_flow.wire.envelope import WireError, parse, render
from gpuemu_flow.wire.exchange import Exchange
from gpuemu_flow.wire.launch import start_daemon
from gpuemu_flow.wire.tensors import encode_tensor

T = TypeVar("T")

START_HINT = "start one with `gpuemu-flow daemon start --background`"
AUTOSTART_IDLE_SECONDS = 4 * 3600.0
CONNECT_MILLISECONDS = 5000
REFUSED_SECONDS = 0.1  # as often as the transport itself tries to connect again

_connections: WeakSet[Connection] = WeakSet()


class Connection:
    """A connection to one daemon, made when needed. Thread-safe.

    Parameters
    ----------
    socket_path : str or Path or None
        None finds the daemon of the workspace that the current folder belongs to.
    workspace : str or Path or None
        A folder of that workspace instead of the current one.
    autostart : bool
        Start a daemon for the workspace when none runs.
    environ : mapping
    """

    def __init__(
        self,
        socket_path: str | Path | None,
        *,
        workspace: str | Path | None,
        autostart: bool,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._environ = environ
        named = socket_path or environ.get("GPUEMU_SOCKET") or None
        self._named = None if named is None else Path(named).expanduser().absolute()
        start = Path.cwd() if workspace is None else Path(workspace)
        self._root = None if self._named is not None else find_root(start, environ)
        if workspace is not None and self._named is None and self._root is None:
            raise ClientError(
                Problem("client-no-workspace", f"there is no gpuemu.toml in {start} or above it")
            )
        self._autostart = autostart and self._root is not None
        self._lock = threading.RLock()
        self._socket: PlainSocket | None = None
        self._exchange: Exchange | None = None
        self.pong: dict[str, Any] = {}
        self._process = os.getpid()
        _connections.add(self)

    def start_anew(self) -> None:
        """Drop the parent's connection, in a process that was just forked.

        Another thread of the parent may have held the lock.
        """
        self._lock = threading.RLock()
        self._process = os.getpid()
        socket, self._socket, self._exchange = self._socket, None, None
        if socket is not None:
            socket.abandon()

    @property
    def socket_path(self) -> Path:
        """Return the path of the daemon's socket, whether it exists or not."""
        if self._named is not None:
            return self._named
        info = read_info(self._root, self._environ) if self._root is not None else None
        return Path(info["socket"]) if info is not None else default_socket(self._environ)

    def close(self) -> None:
        """Close the connection; the next call connects again."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def prepare(self, call: Call[T]) -> bytes:
        """Encode a call as a message.

        Raises
        ------
        ClientError
            ``client-too-large``, ``client-bad-request``.
        """
        try:
            data = render(call.request, self._encoded)
        except (WireError, TypeError, ValueError) as error:
            raise ClientError(Problem("client-bad-request", str(error))) from None
        if len(data) > MAX_MESSAGE_BYTES:
            raise ClientError(
                Problem(
                    "client-too-large",
                    f"the request takes {len(data)} bytes, over {MAX_MESSAGE_BYTES}",
                    "send smaller tensors",
                )
            )
        return data

    def _encoded(self, value: object) -> Any:
        """Return a tensor as a message has it, or a mapping as JSON has it."""
        if isinstance(value, np.ndarray):
            return encode_tensor(value, None, self._exchange)
        if isinstance(value, Mapping):
            return dict(value)
        raise TypeError(f"a {type(value).__name__} cannot be written")

    def read(self, call: Call[T], data: bytes | bytearray) -> T:
        """Decode the reply to a call into its result.

        Raises
        ------
        ClientError
            The daemon's own error, or a reply that violates the protocol.
        """
        try:
            envelope = parse(data)
            kind = envelope.fields.get("type")
            if kind == "Error":
                code = str(envelope.fields.get("code", ""))
                raise refused(code, str(envelope.fields.get("message", "unknown error")))
            if kind == call.expects:
                return call.read(Reply(envelope, self._exchange))
            reason = f"a reply of type {kind!r} where {call.expects} was expected"
        except (WireError, KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
        raise ClientError(Problem("client-bad-reply", f"the daemon answered wrongly: {reason}"))

    def socket(self) -> PlainSocket:
        """Return the socket, connecting it first where needed.

        Raises
        ------
        DaemonUnreachableError, VersionMismatchError
        """
        if self._process != os.getpid():  # forked in a way that Python did not see
            self.start_anew()
        with self._lock:
            if self._socket is None:
                self._socket = self._connect()
                try:
                    self._greet()
                except BaseException:
                    self.close()
                    raise
            return self._socket

    def _connect(self) -> PlainSocket:
        path = self.socket_path
        socket = _dial(path)
        if socket is None and self._autostart and self._root is not None:
            try:
                start_daemon(self._root, self._environ, idle_seconds=AUTOSTART_IDLE_SECONDS)
            except FlowError as error:
                raise DaemonUnreachableError(error.problems[0]) from None
            path = self.socket_path
            socket = _dial(path)
        if socket is None:
            raise DaemonUnreachableError(
                Problem("client-no-daemon", f"no daemon listens at {path}", START_HINT)
            )
        return socket

    def _greet(self) -> None:
        pong = self._first_answer()
        theirs = pong.get("protocol_version", 0)
        if theirs != PROTOCOL_VERSION:
            older = "client" if isinstance(theirs, int) and theirs > PROTOCOL_VERSION else "daemon"
            raise VersionMismatchError(
                Problem(
                    "client-version-mismatch",
                    f"this client speaks protocol {PROTOCOL_VERSION}, the daemon {theirs}",
                    f"upgrade the {older}",
                ),
                "VersionMismatch",
            )
        self.pong = pong
        self._exchange = None
        if isinstance(pong.get("exchange"), str):
            try:
                self._exchange = Exchange(Path(pong["exchange"]))
            except WireError:
                pass  # another machine's, or another user's: tensors travel in the messages

    def _first_answer(self) -> dict[str, Any]:
        """Ping the daemon until it answers, since one with too many clients hangs up at first."""
        deadline = time.monotonic() + CONNECT_MILLISECONDS / 1000
        while True:
            try:
                return self.exchange_messages(calls.ping(), CONNECT_MILLISECONDS)
            except (DaemonUnreachableError, RequestTimeoutError) as error:
                if time.monotonic() < deadline:
                    time.sleep(REFUSED_SECONDS)
                    continue
                if not _hangs_up(self.socket_path):
                    raise
                text = f"the daemon at {self.socket_path} takes no more clients"
                hint = "end some, or raise [daemon] max_connections"
                raise DaemonUnreachableError(
                    Problem("client-too-many-clients", text, hint)
                ) from error

    def exchange_messages(self, call: Call[T], timeout_ms: int) -> T:
        """Send a call and wait for its result.

        Raises
        ------
        ClientError
        """
        socket = self.socket()
        data = self.prepare(call)
        try:
            context = socket.new_context(timeout_ms)
            try:
                context.send(data)
                answer = context.recv()
            finally:
                context.close()
        except TransportError as error:
            raise transport_error(error, timeout_ms) from None
        return self.read(call, answer)


def transport_error(error: TransportError, timeout_ms: int) -> ClientError:
    """Return the error that callers see for an exchange that failed."""
    if isinstance(error, TransportTimeout):
        return RequestTimeoutError(
            Problem(
                "client-timeout",
                f"the daemon did not answer within {timeout_ms / 1000:g} s",
                "give a larger timeout_ms; `gpuemu-flow daemon logs` shows what it does",
            )
        )
    if isinstance(error, TransportLost):
        return DaemonUnreachableError(
            Problem(
                "client-connection-lost",
                "the daemon ended before it answered",
                "call again: what it acknowledged is kept",
            )
        )
    return ClientError(Problem("client-transport", f"the request failed: {error}"))


def _dial(path: Path) -> PlainSocket | None:
    """Return a connected socket, or None when nobody listens."""
    if not fits(path):
        raise ClientError(
            Problem(
                "client-socket-path",
                f"the socket path {path} has more than {MAX_PATH_BYTES} bytes",
                "give a shorter one",
            )
        )
    try:
        return PlainSocket(path)
    except OSError:
        return None


def _hangs_up(path: Path) -> bool:
    """Tell whether a daemon lets connections in and ends them at once."""
    socket = _dial(path)
    if socket is None:
        return False
    try:
        return socket.hangs_up(10 * REFUSED_SECONDS)
    finally:
        socket.close()


def _after_fork() -> None:
    """Reset, in a forked child, the connections of all clients of its parent."""
    for connection in list(_connections):
        connection.start_anew()


os.register_at_fork(after_in_child=_after_fork)
