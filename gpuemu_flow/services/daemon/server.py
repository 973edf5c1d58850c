"""Receive requests, have thread pools process them, and send the answers.

One thread receives all messages and answers pings itself. It does no long work, so that pings are
answered at once.

A context of nng, the transport, holds one request until it is answered. If the context receives
again while its request is unanswered, nng drops that request.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pynng
from msgspec import Struct
from pynng import ffi, lib
from pynng.exceptions import check_err

from gpuemu_flow.model.errors import CancelledRunError, FlowError
from gpuemu_flow.model.types import Json
from gpuemu_flow.services.daemon.replies import RequestError, error_reply, flow_error_reply
from gpuemu_flow.services.daemon.service import (
    CancelledJobError,
    Context,
    Job,
    JobTable,
    WorkerPool,
)
from gpuemu_flow.wire import MAX_MESSAGE_BYTES, WireError, parse, render

log = logging.getLogger("gpuemu_flow.services.daemon")

SEND_MILLISECONDS = 2000  # a client that does not read must not keep a thread
PING_BYTES = 4096
"""Largest size of messages that the receiving thread parses itself."""
MAX_BYTES_IN_PROGRESS = 2 << 30
MAX_IN_PROGRESS = 4096
LONGEST_SECONDS = 3600.0
"""Longest duration of a request. Clients of protocol v1 cannot cancel requests after a time-out."""
MAX_CONNECTIONS = 65_536
PARSING_THREADS = 4
REFUSED_SECONDS = 10.0  # between two log lines: waiting clients retry several times per second
STUCK_SECONDS = 1.0
"""Time for which nothing is sent to a client that did not read an answer."""
TIDY_SECONDS = 1.0
"""Interval between checks for connections to close."""
LINGER_SECONDS = 1.0
"""Time for which the socket stays open after the last answer while clients are connected."""

Reply = dict[str, Json]
Handler = Callable[[Reply, Job], Reply]
"""Answers a request; raises RequestError, FlowError or WireError."""


class Server:
    """Serves requests on one or more addresses."""

    def __init__(
        self,
        *,
        route: Callable[[str], str],
        pools: dict[str, int],
        ping: Callable[[int], dict[str, Json]],
        handle: Handler,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._route = route
        self._ping = ping
        self._handle = handle
        self._pools = {name: WorkerPool(name, threads) for name, threads in pools.items()}
        self._parse_pool = WorkerPool("parse", PARSING_THREADS)
        self._jobs = JobTable()
        self._contexts: list[Context] = []
        self._free: list[Context] = []
        self._bytes = 0
        self._stuck: dict[int, float] = {}
        self._lock = threading.Lock()
        self._closing = False
        self._sends = 0
        self._sends_lock = threading.Lock()
        self._sends_change = threading.Condition(self._sends_lock)
        self._no_more_sends = False
        self.last_request = time.monotonic()
        self.requests = 0
        self._connections = ConnectionTable(max_connections, os.geteuid())
        self._pipes: dict[int, Any] = {}
        self._tidy = threading.Event()
        self._alone = threading.Event()
        self._alone.set()
        self._delivered = -LINGER_SECONDS
        self._refused = 0.0
        limit_threads()
        self._socket = pynng.Rep0(recv_max_size=MAX_MESSAGE_BYTES, send_timeout=SEND_MILLISECONDS)
        self._socket.add_pre_pipe_connect_cb(self._let_in)
        self._socket.add_post_pipe_connect_cb(lambda pipe: self._jobs.connected(pipe.id))
        self._socket.add_post_pipe_remove_cb(lambda pipe: self._gone(pipe.id))
        self._thread = threading.Thread(target=self._receive_all, name="receive", daemon=True)
        self._tidier = threading.Thread(target=self._tidy_up, name="tidy", daemon=True)

    def listen(self, address: str) -> None:
        """Listen on an additional address. Raises pynng.AddressInUse: A living daemon has the
        address."""
        self._socket.listen(address)

    def start(self) -> None:
        self._thread.start()
        self._tidier.start()

    def close(self, seconds: float) -> None:
        self._closing = True
        self._tidy.set()
        self._jobs.cancel_all()
        for pool in (*self._pools.values(), self._parse_pool):
            pool.close(seconds)
        self._await_sends(SEND_MILLISECONDS / 1000.0)
        # Closing the socket would drop answers that are still being transmitted.
        self._alone.wait(self._delivered + LINGER_SECONDS - time.monotonic())
        with self._sends_change:
            self._no_more_sends = True
        self._await_sends(SEND_MILLISECONDS / 1000.0)
        self._socket.close()
        for thread in (self._thread, self._tidier):
            if thread.ident is not None:
                thread.join(seconds)
        for context in self._contexts:
            # Otherwise its finaliser, which runs later, would report that the socket is closed.
            with suppress(pynng.NNGException):
                context.close()

    def _await_sends(self, seconds: float) -> None:
        """Wait up to `seconds` until no thread is sending an answer. A thread may still be inside
        the send function after the client got the answer. If the socket is closed at that time, or
        the process ends, the transport aborts the process."""
        with self._sends_change:
            self._sends_change.wait_for(lambda: not self._sends, seconds)

    def _let_in(self, pipe: Any) -> None:
        allowed, evicted = self._connections.enter(pipe.id, _peer(pipe), time.monotonic())
        if allowed:
            self._alone.clear()
            with self._lock:
                self._pipes[pipe.id] = pipe
        else:
            pipe.close()
            self._say_full()
        self._close_pipes(evicted)

    def _say_full(self) -> None:
        if time.monotonic() - self._refused > REFUSED_SECONDS:
            self._refused = time.monotonic()
            log.warning("%d clients are connected; others wait", self._connections.most)

    def _gone(self, pipe: int) -> None:
        if self._connections.leave(pipe):
            self._alone.set()
        with self._lock:
            self._pipes.pop(pipe, None)
        self._stuck.pop(pipe, None)
        self._jobs.disconnected(pipe)

    def _close_pipes(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            with self._lock:
                pipe = self._pipes.pop(number, None)
            if pipe is not None:
                with suppress(pynng.NNGException):
                    pipe.close()

    def _tidy_up(self) -> None:
        """Close connections that are half-open for too long, or idle while others wait."""
        while not self._closing:
            self._close_pipes(self._connections.overdue(time.monotonic(), self._jobs.has_of))
            self._tidy.wait(TIDY_SECONDS)

    def expire(self) -> None:
        self._jobs.expire(LONGEST_SECONDS)

    @property
    def in_progress(self) -> int:
        return len(self._jobs)

    def _receive_all(self) -> None:
        while not self._closing:
            try:
                context = self._free_context()
                message = receive(context)
            except pynng.Closed:
                return
            except pynng.NNGException as error:
                log.warning("receiving: %s", error)
                continue
            try:
                self._take(context, message)
            except Exception:
                log.exception("taking in a request")
                self._free_up(context)

    def _free_context(self) -> Context:
        with self._lock:
            if self._free:
                return self._free.pop()
            context = self._socket.new_context()
            self._contexts.append(context)
            return context

    def _free_up(self, context: Context) -> None:
        """Make a context available for the next request. It must hold no unanswered request. nng
        drops an unanswered request when its context receives again."""
        with self._lock:
            self._free.append(context)

    def _take(self, context: Context, message: Received) -> None:
        self.last_request = time.monotonic()
        pipe = message.pipe
        if not self._connections.note_message(pipe, self.last_request):
            self._say_full()
            self._close_pipes([pipe])
            self._free_up(context)
            return
        if message.size > PING_BYTES or pipe in self._stuck:
            # Copying a large message, or sending to a client that does not read, would delay the
            # next ping.
            self._parse_pool.submit(lambda: self._admit(context, message.take(), pipe))
        else:
            self._admit(context, message.take(), pipe)

    def _admit(self, context: Context, data: bytes, pipe: int) -> None:
        try:
            fields = parse(data)
        except WireError as error:
            self._send([context], error_reply("InvalidRequest", str(error)), pipe)
            return
        kind = fields.get("type")
        if kind == "Ping":
            pong = {**self._ping(self.in_progress), "requests": self.requests}
            self._send([context], pong, pipe)
            return
        request_id = fields.get("request_id")
        request_id = request_id if isinstance(request_id, str) else ""
        if kind in ("Progress", "Cancel"):
            self._send([context], self._about(str(kind), request_id, pipe), pipe)
            return
        if request_id and self._is_anothers(request_id, pipe):
            text = "a request of that request_id is at work already, for another client"
            self._send([context], error_reply("InvalidRequest", text), pipe)
            return
        job = Job(data, pipe, context, request_id)
        fresh, dropped = self._jobs.add(job)
        if dropped is not None:
            self._free_up(dropped)
        if not fresh:
            log.info("a %s request came again; it waits for the one at work", kind)
            return
        with self._lock:
            self.requests += 1
            self._bytes += len(data)
            full = self._bytes > max(MAX_BYTES_IN_PROGRESS, len(data))
        if full or self.in_progress > MAX_IN_PROGRESS:
            text = "the daemon is busy: too many requests wait; try again later"
            self._finish(job, error_reply("InternalError", text))
            return
        pool = self._pools[self._route(kind if isinstance(kind, str) else "")]
        pool.submit(lambda: self._work(job, fields))

    def _is_anothers(self, request_id: str, pipe: int) -> bool:
        job = self._jobs.named(request_id)
        return job is not None and job.pipe != pipe and not job.cancelled.is_set()

    def _about(self, kind: str, request_id: str, pipe: int) -> Reply:
        """Answer a message that cancels a request, or asks for its progress. These are messages of
        the types ``Cancel`` and ``Progress``, which protocol v1 lacks. They may come from any
        connection of the user who sent the request, since a client in a forked process makes a new
        connection for each exchange. The id of another user's request gets the same answer as an id
        that does not exist."""
        job = self._jobs.named(request_id) if request_id else None
        if job is None or self._connections.user_of(job.pipe) != self._connections.user_of(pipe):
            return error_reply("NotFound", "no request of that id is at work")
        if kind == "Cancel":
            job.cancel()
            return {"type": "Ok"}
        done, total = job.progress
        return {"type": "Progress", "done": done, "total": total}

    def _work(self, job: Job, fields: Reply) -> None:
        try:
            job.check()
            reply = self._handle(fields, job)
        except Exception as error:
            reply = self._refusal(error, fields)
        self._finish(job, reply)

    def _refusal(self, error: Exception, fields: Reply) -> Reply:
        kind = fields.get("type")
        if isinstance(error, (CancelledJobError, CancelledRunError)):
            log.info("a %s request was given up", kind)
            why = "the daemon is shutting down" if self._closing else "the request was given up"
            return error_reply("InternalError", why)
        if isinstance(error, RequestError):
            return error_reply(error.code, str(error))
        if isinstance(error, WireError):
            return error_reply("InvalidRequest", str(error))
        if isinstance(error, FlowError):
            return flow_error_reply(error)
        if isinstance(error, MemoryError):
            return error_reply("InternalError", "the daemon has not enough memory for this")
        log.error("answering a %s request", kind, exc_info=error)
        text = f"a fault of the daemon ({type(error).__name__}); its log has the details"
        return error_reply("InternalError", text)

    def _finish(self, job: Job, reply: Reply) -> None:
        waiters = self._jobs.finish(job)
        with self._lock:
            self._bytes -= len(job.data)
        self._send(waiters, reply, job.pipe)

    def _send(self, contexts: Sequence[Context], reply: Reply, pipe: int) -> None:
        try:
            data = render(reply)
        except Exception:
            log.exception("writing a reply")
            data = render(error_reply("InternalError", "the answer cannot be written"))
        if len(data) > MAX_MESSAGE_BYTES:
            text = f"the answer takes {len(data)} bytes, over {MAX_MESSAGE_BYTES}; ask for less"
            data = render(error_reply("InvalidRequest", text))
        for context in contexts:
            if time.monotonic() - self._stuck.get(pipe, -STUCK_SECONDS) >= STUCK_SECONDS:
                self._deliver(context, data, pipe)
            self._free_up(context)

    def _deliver(self, context: Context, data: bytes, pipe: int) -> None:
        with self._sends_lock:
            if self._no_more_sends:
                return
            self._sends += 1
        try:
            self._send_to(context, data, pipe)
        finally:
            with self._sends_lock:
                self._sends -= 1
                if self._closing:  # only then does anything wait for it
                    self._sends_change.notify_all()

    def _send_to(self, context: Context, data: bytes, pipe: int) -> None:
        try:
            send(context, data)
        except pynng.Timeout:
            self._stuck[pipe] = time.monotonic()
            log.warning("a client does not read its answers; this one is dropped")
        except pynng.NNGException as error:
            log.info("an answer was not delivered: %s", error)
        else:
            self._stuck.pop(pipe, None)
            self._delivered = time.monotonic()


def _peer(pipe: Any) -> int:
    found = pynng.ffi.new("uint64_t *")
    if pynng.lib.nng_pipe_get_uint64(pipe.pipe, b"ipc:peer-uid", found):
        return -1
    return int(found[0])


_THREADS = {1: 2, 2: 1, 3: 1, 4: 1}
"""Number of threads by parameter of `nng_init_set_parameter`: threads that run callbacks (2 is the
minimum), watch time limits, poll sockets, and resolve names."""


def limit_threads() -> None:
    """Limit the threads of the transport; call this before the process opens its first socket. By
    default, the transport starts several threads per core. Messages pass from thread to thread, and
    waking many threads takes time."""
    set_parameter = getattr(lib, "nng_init_set_parameter", None)  # pynng 0.8 has none
    if set_parameter is not None:
        for kind, count in _THREADS.items():
            set_parameter(kind, count)


class Received:
    """A message that a client sent."""

    def __init__(self, message: Any) -> None:
        self._message = ffi.gc(message, lib.nng_msg_free)
        self.pipe = max(0, int(lib.nng_pipe_id(lib.nng_msg_get_pipe(message))))
        self.size = int(lib.nng_msg_len(message))

    def take(self) -> bytes:
        data = bytes(ffi.buffer(ffi.cast("char *", lib.nng_msg_body(self._message)), self.size))
        ffi.release(self._message)
        return data


def receive(context: Context) -> Received:
    message = ffi.new("nng_msg **")
    check_err(lib.nng_ctx_recvmsg(context.context, message, 0))
    return Received(message[0])


def send(context: Context, data: bytes) -> None:
    """Send an answer. Raises pynng.NNGException: ``Timeout`` when the client does not read."""
    message = ffi.new("nng_msg **")
    check_err(lib.nng_msg_alloc(message, 0))
    error = lib.nng_msg_append(message[0], data, len(data))
    error = error or lib.nng_ctx_sendmsg(context.context, message[0], 0)
    if error:
        lib.nng_msg_free(message[0])  # only on an error: a sent message belongs to the transport
    check_err(error)


# Limit the connections of a daemon.


HALF_OPEN_SECONDS = 10.0
"""Seconds that a connection may stay open without a whole message."""
MOST_HALF_OPEN = 256
IDLE_SECONDS = 60.0
"""Seconds without a request after which a connection is closed if another client waits."""
OTHERS_SHARE = 4
"""Each user except the daemon's own may have one of this many equal shares of the connections."""


class _Connection(Struct):
    """One connection. `last` is the time of its latest message, or else of its start."""

    user: int
    last: float
    counted: bool = False


class ConnectionTable:
    """All connections of a daemon. Thread-safe."""

    def __init__(self, most: int, owner: int) -> None:
        self.most = most
        self._owner = owner
        self._connections: dict[int, _Connection] = {}
        self._lock = threading.Lock()
        self._refused = 0.0

    def enter(self, pipe: int, user: int, now: float) -> tuple[bool, list[int]]:
        """Add a connection if there is room for it."""
        with self._lock:
            if self._taken(user) >= self._share(user, self.most) or self._full():
                self._refused = now
                return False, []
            self._connections[pipe] = _Connection(user, now)
            return True, self._too_many(user)

    def note_message(self, pipe: int, now: float) -> bool:
        with self._lock:
            found = self._connections.get(pipe)
            if found is None:
                return True  # it left, and its request is given up elsewhere
            found.last = now
            if found.counted:
                return True
            if self._full() or self._taken(found.user) >= self._share(found.user, self.most):
                self._refused = now
                return False
            found.counted = True
            return True

    def leave(self, pipe: int) -> bool:
        with self._lock:
            self._connections.pop(pipe, None)
            return not self._connections

    def user_of(self, pipe: int) -> int | None:
        with self._lock:
            found = self._connections.get(pipe)
            return None if found is None else found.user

    def overdue(self, now: float, is_busy: Callable[[int], bool]) -> list[int]:
        """Return the numbers of the connections to close. A connection is closed if it has been
        half-open for `HALF_OPEN_SECONDS`. If the table is full and a client was refused lately, one
        more connection is closed: the one that has been idle for longest, provided that it was idle
        for at least `IDLE_SECONDS`. A connection is never idle while `is_busy` returns true for its
        number."""
        with self._lock:
            late = [
                pipe
                for pipe, one in self._connections.items()
                if not one.counted and now - one.last >= HALF_OPEN_SECONDS
            ]
            if self._full() and now - self._refused < HALF_OPEN_SECONDS:
                idle = [
                    (one.last, pipe)
                    for pipe, one in self._connections.items()
                    if one.counted and now - one.last >= IDLE_SECONDS and not is_busy(pipe)
                ]
                late += [pipe for _, pipe in sorted(idle)[:1]]
            return late

    def _full(self) -> bool:
        return sum(one.counted for one in self._connections.values()) >= self.most

    def _taken(self, user: int) -> int:
        return sum(one.counted and one.user == user for one in self._connections.values())

    def _share(self, user: int, whole: int) -> int:
        return whole if user == self._owner else max(1, whole // OTHERS_SHARE)

    def _too_many(self, user: int) -> list[int]:
        half = [
            (one.last, pipe)
            for pipe, one in self._connections.items()
            if one.user == user and not one.counted
        ]
        surplus = len(half) - self._share(user, MOST_HALF_OPEN)
        evicted = [pipe for _, pipe in sorted(half)[: max(0, surplus)]]
        for pipe in evicted:
            del self._connections[pipe]
        return evicted
