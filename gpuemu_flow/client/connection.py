"""Find or start the workspace's daemon, and exchange messages with it.

Each call has a connection of its own, so that threads and forked processes may share a client. The
first message on it is a ping: the answer shows whether the daemon serves the right workspace.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

import numpy as np

from gpuemu_flow.client import calls
from gpuemu_flow.client.calls import Call, Reply, nbytes
from gpuemu_flow.client.results import (
    ClientError,
    DaemonUnreachableError,
    OtherWorkspaceError,
    RequestTimeoutError,
    TransportEnded,
    TransportError,
    TransportFull,
    TransportLost,
    TransportTimeout,
    TransportUnreached,
    VersionMismatchError,
    refused,
)
from gpuemu_flow.model.errors import FlowError, Problem
from gpuemu_flow.model.types import Json
from gpuemu_flow.wire import (
    CONFIG_NAME,
    MAX_MESSAGE_BYTES,
    MAX_PATH_BYTES,
    PROTOCOL_VERSION,
    START_SECONDS,
    WireError,
    default_socket,
    find_config,
    fits,
    parse,
    read_info,
    render,
    start_daemon,
    user_folders,
    workspace_stem,
)
from gpuemu_flow.wire.tensors import Exchange, encode_tensor

T = TypeVar("T")

OnProgress = Callable[[int, int], None]

START_HINT = "start one with `gpuemu-flow daemon start --background`"
AUTOSTART_IDLE_SECONDS = 4 * 3600.0
CONNECT_MILLISECONDS = 5000
RETRY_SECONDS = 0.1
TIMEOUT_MS = 30_000
BYTES_PER_MS = 1000
"""Bytes of tensors for which the time limit grows by 1 ms: to judge large tensors takes long."""
LONG_TIMEOUT_MS = 3_600_000
"""Default time limit in ms of calls that run programs many times."""
PROGRESS_SECONDS = 0.5
_WITH_TENSORS = ("inputs", "output", "outputs", "cases")
"""Fields of requests that may hold tensors."""

_connections: WeakSet[Connection] = WeakSet()


PING: Call[dict[str, Json]] = Call({"type": "Ping"}, "Pong", calls.the_fields)


class Connection:
    """The way to one daemon, which is found or started when needed. Thread-safe. Without
    `socket_path`, it is the daemon of `workspace`: a folder, a configuration file, or None for the
    current folder. Raises ClientError ``client-no-workspace`` if there is none."""

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
        self._ping = render(PING.request)
        self._busy: set[Wire] = set()
        self._start_anew()
        _connections.add(self)

    def _start_anew(self) -> None:
        self._start_lock = threading.Lock()
        self._process = os.getpid()
        busy, self._busy = self._busy, set()
        for wire in busy:
            wire.close()

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
        """End the calls in progress, which fail. The next call connects again."""
        for wire in tuple(self._busy):
            with suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)  # its thread wakes, and closes it

    def prepare(self, call: Call[T], exchange: Exchange | None) -> bytes:
        """Encode the request of a call as a message. Raises ClientError: ``client-too-large`` for a
        message above the limit; ``client-bad- request`` if a value cannot be encoded."""

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
        """Decode the reply to a call, and return the result. Raises ClientError if the daemon
        replied with an error, or the reply violates the protocol."""
        try:
            fields = parse(data)
            kind = fields.get("type")
            if kind == "Error":
                code = str(fields.get("code", ""))
                raise refused(code, str(fields.get("message", "unknown error")))
            if kind == call.expects:
                return call.read(Reply(fields, exchange))
            reason = f"a reply of type {kind!r} where {call.expects} was expected"
        except (WireError, KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
        raise ClientError(Problem("client-bad-reply", f"the daemon's answer is invalid: {reason}"))

    def exchange_messages(self, call: Call[T], timeout_ms: int, *, start: bool = True) -> T:
        """Connect, send a call once, and return its result, or raise ClientError. The time limit
        does not include the time to connect. Unless `start` is true, no daemon is started for this
        call."""
        wire = self._begin(timeout_ms, start=start)
        try:
            data = self.prepare(call, wire.exchange)
            answer = wire.ask(data, time.monotonic() + timeout_ms / 1000)
        except TransportError as error:
            raise transport_error(error, timeout_ms) from None
        finally:
            self._busy.discard(wire)
            wire.close()
        return self.read(call, answer, wire.exchange)

    def _begin(self, timeout_ms: int, *, start: bool) -> Wire:
        """Connect to the workspace's daemon; if it is not running, start it first if permitted."""
        if self._process != os.getpid():  # forked in a way that Python did not see
            self._start_anew()
        try:
            return self._reach(timeout_ms)
        except (TransportUnreached, OtherWorkspaceError) as error:
            if start and self._autostart and self._config is not None:
                return self._start(timeout_ms, self._config)
            if isinstance(error, OtherWorkspaceError):
                raise
            raise self._absent() from None

    def _absent(self) -> DaemonUnreachableError:
        text = f"no daemon listens at {self.socket_path}"
        return DaemonUnreachableError(Problem("client-no-daemon", text, START_HINT))

    def _reach(self, timeout_ms: int) -> Wire:
        """Connect to the daemon that listens, and check which workspace it serves. Raises
        TransportUnreached: No process listens at the path. Raises ClientError."""
        path = _fitting(self.socket_path)
        begun = time.monotonic()
        # The default of calls that run programs is no time to wait for a ping.
        limit_ms = timeout_ms if timeout_ms < LONG_TIMEOUT_MS else TIMEOUT_MS
        while True:
            wire = Wire()
            is_open = False
            try:
                deadline = time.monotonic() + limit_ms / 1000
                wire.open(path, deadline)
                wire.exchange = self._meet(wire.ask(self._ping, deadline))
                is_open = True
            except (TransportFull, TransportEnded):
                # A full daemon closes a new connection at once, or leaves it in the queue. Where
                # this client has other calls under way, one of their places becomes free.
                patience = max(CONNECT_MILLISECONDS, timeout_ms if self._busy else 0) / 1000
                if time.monotonic() - begun > patience:
                    text = f"the daemon at {path} takes no more clients"
                    hint = "end some, or raise [daemon] max_connections"
                    problem = Problem("client-too-many-clients", text, hint)
                    raise DaemonUnreachableError(problem) from None
            except TransportUnreached:
                raise
            except TransportError as lost:
                raise transport_error(lost, limit_ms) from None
            finally:
                if not is_open:
                    wire.close()
            if is_open:
                self._busy.add(wire)
                return wire
            time.sleep(RETRY_SECONDS)

    def _start(self, timeout_ms: int, config: Path) -> Wire:
        """Start the workspace's daemon, and connect to it. If another process is starting the
        daemon, or the previous daemon is still ending, wait for it."""
        environ = {name: text for name, text in self._environ.items() if name != "GPUEMU_CONFIG"}
        if config.name != CONFIG_NAME:
            environ["GPUEMU_CONFIG"] = str(config)
        deadline = time.monotonic() + START_SECONDS
        with self._start_lock:
            while True:
                try:
                    return self._reach(timeout_ms)
                except (TransportUnreached, OtherWorkspaceError) as error:
                    if time.monotonic() > deadline:
                        if isinstance(error, OtherWorkspaceError):
                            raise
                        raise self._absent() from None
                try:
                    info = start_daemon(config.parent, environ, idle_seconds=AUTOSTART_IDLE_SECONDS)
                except FlowError as failed:
                    raise DaemonUnreachableError(failed.problems[0]) from None
                if not info:
                    time.sleep(RETRY_SECONDS)

    def _meet(self, data: bytes | bytearray) -> Exchange | None:
        """Check the answer to the first ping on a connection. Raises VersionMismatchError,
        OtherWorkspaceError, DaemonUnreachableError."""
        pong = self.read(PING, data, None)
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
        """Raise an error if the daemon uses another configuration than this client. There is one
        exception: if the caller named the socket, and the daemon's workspace does not exist here,
        the daemon may run in another container, and no error is raised."""
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


class Calling:
    """Makes calls on a connection, with a time limit, progress and cancellation."""

    _connection: Connection
    timeout_ms: int | None

    def _do(self, call: Call[T]) -> T:
        tensors = [call.request[name] for name in _WITH_TENSORS if name in call.request]
        patience = TIMEOUT_MS + nbytes(tensors) // BYTES_PER_MS
        return self._connection.exchange_messages(call, self.timeout_ms or patience)

    def _do_long(self, call: Call[T], on_progress: OnProgress | None = None) -> T:
        """Make a call that may take long. If it is interrupted (KeyboardInterrupt) or exceeds the
        time limit, it is cancelled in the daemon."""
        request_id = str(call.request["request_id"])
        try:
            with self._watched(request_id, on_progress):
                return self._connection.exchange_messages(call, self.timeout_ms or LONG_TIMEOUT_MS)
        except (KeyboardInterrupt, RequestTimeoutError):
            with suppress(ClientError):
                self.give_up(request_id)
            raise

    def give_up(self, request_id: str) -> None:
        """Cancel the request with this id in the daemon."""
        self._ask_about(Call({"type": "Cancel", "request_id": request_id}, "Ok", calls.nothing))

    def _ask_about(self, call: Call[T]) -> T:
        """Make a call that concerns another call in progress; never start a daemon for it."""
        return self._connection.exchange_messages(call, self.timeout_ms or TIMEOUT_MS, start=False)

    @contextmanager
    def _watched(self, request_id: str, on_progress: OnProgress | None) -> Iterator[None]:
        if on_progress is None:
            yield
            return
        ended = threading.Event()

        call = Call(
            {"type": "Progress", "request_id": request_id},
            "Progress",
            lambda reply: (int(reply.fields["done"]), int(reply.fields["total"])),
        )

        def watch() -> None:
            while not ended.wait(PROGRESS_SECONDS):
                with suppress(ClientError):
                    on_progress(*self._ask_about(call))

        thread = threading.Thread(target=watch, name="gpuemu-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


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
    """Return the path of the configuration file that the client's daemon must use. The result is
    None if `workspace` is None and the current folder is not part of a workspace. Raises
    ClientError: ``client-no-workspace``: the given folder is not part of a workspace, or
    ``GPUEMU_CONFIG`` names a file that does not exist."""
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
        connection._start_anew()


os.register_at_fork(after_in_child=_after_fork)


# One request and its answer over a Unix socket, in the protocol of the daemon's transport
# library.


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
        if self._process != os.getpid():  # a handler of a signal forked in the middle of it
            raise TransportLost("the answer is the parent process's")
        left = deadline - time.monotonic()
        if left <= 0:
            raise TransportTimeout
        self.settimeout(left)
