"""Find or start the workspace's daemon, and exchange messages with it.

Threads may use the same connection, because each call in progress has its own socket. The first
message on each socket is a ping. The answer shows whether the daemon serves the right workspace,
because another daemon may have taken over the path. A forked process makes new connections.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

import numpy as np

from gpuemu_flow.client import calls
from gpuemu_flow.client.calls import Call, Reply
from gpuemu_flow.client.errors import (
    ClientError,
    DaemonUnreachableError,
    OtherWorkspaceError,
    RequestTimeoutError,
    TransportClosed,
    TransportError,
    TransportFull,
    TransportLost,
    TransportTimeout,
    TransportUnreached,
    VersionMismatchError,
    refused,
)
from gpuemu_flow.client.plain_socket import (
    CONNECT_MILLISECONDS,
    REFUSED_SECONDS,
    Opening,
    PlainContext,
    PlainSocket,
)
from gpuemu_flow.errors import FlowError, Problem
from gpuemu_flow.types import Json
from gpuemu_flow.wire import MAX_MESSAGE_BYTES, PROTOCOL_VERSION
from gpuemu_flow.wire.address import (
    CONFIG_NAME,
    MAX_PATH_BYTES,
    default_socket,
    find_config,
    fits,
    read_info,
    user_folders,
    workspace_stem,
)
from gpuemu_flow.wire.envelope import WireError, parse, render
from gpuemu_flow.wire.exchange import Exchange
from gpuemu_flow.wire.launch import START_SECONDS, start_daemon
from gpuemu_flow.wire.tensors import encode_tensor

T = TypeVar("T")

START_HINT = "start one with `gpuemu-flow daemon start --background`"
AUTOSTART_IDLE_SECONDS = 4 * 3600.0

_connections: WeakSet[Connection] = WeakSet()


class Connection:
    """A connection to one daemon, which is opened when needed. Thread-safe.

    Parameters
    ----------
    socket_path : str or Path or None
        Socket of the daemon; None to find the daemon of the workspace.
    workspace : str or Path or None
        A folder of the workspace, or its configuration file; None for the current folder.
    autostart : bool
        True to start a daemon for the workspace if none runs.
    environ : mapping

    Raises
    ------
    ClientError
        ``client-no-workspace`` if the given folder is not part of a workspace, or ``GPUEMU_CONFIG``
        names a file that does not exist.
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
        self._config: Path | None = None
        # Whoever gives a socket alone means the daemon there, from whatever folder they call.
        if not socket_path or workspace is not None:
            self._config = _config_of(workspace, environ)
        self._autostart = autostart and self._named is None
        self._lock = threading.Lock()
        self._start_lock = threading.Lock()
        self._socket: PlainSocket | None = None
        self._opening = Opening(render(calls.ping().request), self._meet)
        self._process = os.getpid()
        _connections.add(self)

    def start_anew(self) -> None:
        """Drop the connection and replace the locks, in a process that was just forked.

        Another thread of the parent may have held a lock at the time of the fork.
        """
        self._lock = threading.Lock()
        self._start_lock = threading.Lock()
        self._process = os.getpid()
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.abandon()

    @property
    def socket_path(self) -> Path:
        """Return the path of the daemon's socket, whether it exists or not."""
        if self._named is not None:
            return self._named
        if self._config is None:
            return default_socket(self._environ)
        info = read_info(self._config.parent, self._environ)
        if info is not None:
            return Path(info["socket"])
        return user_folders(self._environ)[0] / f"{workspace_stem(self._config.parent)}.sock"

    def close(self) -> None:
        """Close the connection; calls in progress fail. The next call connects again."""
        with self._lock:
            socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()

    def prepare(self, call: Call[T], exchange: Exchange | None) -> bytes:
        """Encode the request of a call as a message.

        Raises
        ------
        ClientError
            ``client-too-large`` for a message above the limit; ``client-bad-request`` if a value
            cannot be encoded.
        """

        def encoded(value: object) -> Any:
            if isinstance(value, np.ndarray):
                return encode_tensor(value, None, exchange)
            if isinstance(value, Mapping):
                return dict(value)
            raise TypeError(f"a {type(value).__name__} cannot be written")

        try:
            data = render(call.request, encoded)
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

    def read(self, call: Call[T], data: bytes | bytearray, exchange: Exchange | None) -> T:
        """Decode the reply to a call, and return the result.

        Raises
        ------
        ClientError
            If the daemon replied with an error, or the reply violates the protocol.
        """
        try:
            envelope = parse(data)
            kind = envelope.fields.get("type")
            if kind == "Error":
                code = str(envelope.fields.get("code", ""))
                raise refused(code, str(envelope.fields.get("message", "unknown error")))
            if kind == call.expects:
                return call.read(Reply(envelope, exchange))
            reason = f"a reply of type {kind!r} where {call.expects} was expected"
        except (WireError, KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
        raise ClientError(Problem("client-bad-reply", f"the daemon's answer is invalid: {reason}"))

    def exchange_messages(self, call: Call[T], timeout_ms: int, *, start: bool = True) -> T:
        """Connect if needed, send a call once, and wait for its result.

        Parameters
        ----------
        call : Call
        timeout_ms : int
            Time limit of the exchange in milliseconds, without the time to connect.
        start : bool
            False to start no daemon for this call.

        Raises
        ------
        ClientError
        """
        context = self._begin(timeout_ms, start=start)
        exchange: Exchange | None = context.met
        try:
            context.send(self.prepare(call, exchange))
            answer = context.recv()
        except TransportError as error:
            raise transport_error(error, timeout_ms) from None
        finally:
            context.close()
        return self.read(call, answer, exchange)

    def _begin(self, timeout_ms: int, *, start: bool) -> PlainContext:
        """Begin an exchange with the workspace's daemon; if it is not running, start it first.

        The daemon is started only if `start` and the connection's settings permit it. Otherwise, an
        error is raised.
        """
        if self._process != os.getpid():  # forked in a way that Python did not see
            self.start_anew()
        found = self._reach(timeout_ms)
        if not isinstance(found, PlainContext):
            # What was connected has ended; a daemon that was started since may listen elsewhere.
            started = start and self._autostart and self._config is not None
            found = self._start(timeout_ms) if started else self._reach(timeout_ms)
        if isinstance(found, PlainContext):
            return found
        raise found

    def _reach(self, timeout_ms: int) -> PlainContext | DaemonUnreachableError:
        """Begin an exchange with the daemon that listens, or return an error.

        An error is returned if no daemon listens, or the daemon serves another workspace. After any
        other failure, an error is raised.
        """
        with self._lock:
            if self._socket is None:
                self._socket = PlainSocket(_fitting(self.socket_path), self._opening)
            socket = self._socket
        try:
            return socket.new_context(timeout_ms)
        except (TransportUnreached, TransportClosed):
            text = f"no daemon listens at {socket.path}"
            error = DaemonUnreachableError(Problem("client-no-daemon", text, START_HINT))
        except OtherWorkspaceError as other:
            error = other
        except TransportFull:
            text = f"the daemon at {socket.path} takes no more clients"
            hint = "end some, or raise [daemon] max_connections"
            raise DaemonUnreachableError(Problem("client-too-many-clients", text, hint)) from None
        except TransportError as lost:
            raise transport_error(lost, CONNECT_MILLISECONDS) from None
        with self._lock:
            if self._socket is socket:
                self._socket = None
        socket.retire()
        return error

    def _start(self, timeout_ms: int) -> PlainContext | DaemonUnreachableError:
        """Start the workspace's daemon, and begin an exchange with it.

        If another process is starting the daemon, or the previous daemon is still ending, wait for
        it. Return an error if no daemon can be reached within the time limit.
        """
        assert self._config is not None  # noqa: S101 - for the type checker
        root = self._config.parent
        environ = {name: text for name, text in self._environ.items() if name != "GPUEMU_CONFIG"}
        if self._config.name != CONFIG_NAME:
            environ["GPUEMU_CONFIG"] = str(self._config)
        deadline = time.monotonic() + START_SECONDS
        with self._start_lock:
            while True:
                found = self._reach(timeout_ms)
                if isinstance(found, PlainContext) or time.monotonic() > deadline:
                    return found
                try:
                    info = start_daemon(root, environ, idle_seconds=AUTOSTART_IDLE_SECONDS)
                except FlowError as error:
                    raise DaemonUnreachableError(error.problems[0]) from None
                if not info:
                    time.sleep(REFUSED_SECONDS)

    def _meet(self, data: bytes | bytearray) -> Exchange | None:
        """Check the answer to the first ping on a connection.

        Returns
        -------
        Exchange or None
            Folder for passing tensors as files; None if the daemon has none, or this process cannot
            use it.

        Raises
        ------
        VersionMismatchError, OtherWorkspaceError, DaemonUnreachableError
        """
        pong = self.read(calls.ping(), data, None)
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
        if self._config is not None:
            self._require_workspace(pong, self._config)
        if isinstance(pong.get("exchange"), str):
            with suppress(WireError):  # another machine's, or another user's
                return Exchange(Path(pong["exchange"]))
        return None

    def _require_workspace(self, pong: Mapping[str, Json], config: Path) -> None:
        """Raise an error if the daemon uses another configuration than this client.

        There is one exception: if the caller named the socket, and the daemon's workspace does not
        exist here, the daemon may run in another container, and no error is raised.
        """
        root = pong.get("workspace")
        if self._named is not None and (root is None or not Path(root).exists()):
            return
        if root == str(config.parent):
            served = pong.get("config", str(config))
            if served != str(config):
                text = f"the daemon of {root} judges by {served}, not by {config}"
                hint = "end it: `gpuemu-flow daemon stop`"
                raise DaemonUnreachableError(Problem("client-other-workspace", text, hint))
        else:
            where = self._named or self.socket_path
            text = f"the daemon at {where} serves {root or 'no workspace'}, not {config.parent}"
            hint = "unset GPUEMU_SOCKET" if self._named else "give each a socket of its own"
            raise OtherWorkspaceError(Problem("client-other-workspace", text, hint))


def transport_error(error: TransportError, timeout_ms: int) -> ClientError:
    """Convert the error of a failed exchange to the error that callers get."""
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


def _fitting(path: Path) -> Path:
    """Return a socket's path; raise ClientError if it is too long."""
    if not fits(path):
        raise ClientError(
            Problem(
                "client-socket-path",
                f"the socket path {path} has more than {MAX_PATH_BYTES} bytes",
                "give a shorter one",
            )
        )
    return path


def _config_of(workspace: str | Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the path of the configuration file that the client's daemon must use.

    The result is None if `workspace` is None and the current folder is not part of a workspace.

    Parameters
    ----------
    workspace : str or Path or None
        A folder of the workspace, or its configuration file; None for the current folder.

    Raises
    ------
    ClientError
        ``client-no-workspace``: the given folder is not part of a workspace, or ``GPUEMU_CONFIG``
        names a file that does not exist.
    """
    if workspace is None:
        found = find_config(Path.cwd(), environ)
        named = environ.get("GPUEMU_CONFIG", "")
        if found is None and named:
            text = f"GPUEMU_CONFIG names {named}, which does not exist"
            raise ClientError(Problem("client-no-workspace", text))
        return found
    start = Path(workspace)
    if start.is_file():
        return start.parent.resolve() / start.name
    found = find_config(start, environ)
    if found is None or not start.resolve().is_relative_to(found.parent):
        found = find_config(start, {})  # GPUEMU_CONFIG is of another workspace than the one given
    if found is None:
        text = f"there is no {CONFIG_NAME} in {start} or above it"
        raise ClientError(Problem("client-no-workspace", text))
    return found


def _after_fork() -> None:
    """Reset the connections of all clients, in a process that was just forked."""
    for connection in list(_connections):
        connection.start_anew()


os.register_at_fork(after_in_child=_after_fork)
