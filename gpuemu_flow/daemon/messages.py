"""Receive or send a message by a single call of nng, the transport's C library.

pynng's own functions make six calls per message, and each call releases the GIL.
"""

from __future__ import annotations

from typing import Any

from pynng import ffi, lib
from pynng.exceptions import check_err

from gpuemu_flow.daemon.jobs import Context

_THREADS = {1: 2, 2: 1, 3: 1, 4: 1}
"""Number of threads by parameter of `nng_init_set_parameter`: threads that run callbacks (2 is the
minimum), watch time limits, poll sockets, and resolve names."""


def limit_threads() -> None:
    """Limit the threads of the transport; call this before the process opens its first socket.

    By default, the transport starts several threads per core. Messages pass from thread to thread,
    and waking many threads takes time.
    """
    set_parameter = getattr(lib, "nng_init_set_parameter", None)  # pynng 0.8 has none
    if set_parameter is not None:
        for kind, count in _THREADS.items():
            set_parameter(kind, count)


class Received:
    """A message that a client sent.

    Attributes
    ----------
    pipe : int
        Number of the connection; 0 if the connection has ended.
    size : int
        Size of the message in bytes.
    """

    def __init__(self, message: Any) -> None:
        self._message = ffi.gc(message, lib.nng_msg_free)
        self.pipe = max(0, int(lib.nng_pipe_id(lib.nng_msg_get_pipe(message))))
        self.size = int(lib.nng_msg_len(message))

    def take(self) -> bytes:
        """Return the bytes of the message, and free the message."""
        data = bytes(ffi.buffer(ffi.cast("char *", lib.nng_msg_body(self._message)), self.size))
        ffi.release(self._message)
        return data


def receive(context: Context) -> Received:
    """Wait for a request.

    Raises
    ------
    pynng.NNGException
    """
    message = ffi.new("nng_msg **")
    check_err(lib.nng_ctx_recvmsg(context.context, message, 0))
    return Received(message[0])


def send(context: Context, data: bytes) -> None:
    """Send an answer.

    Raises
    ------
    pynng.NNGException
        ``Timeout`` when the client does not read.
    """
    message = ffi.new("nng_msg **")
    check_err(lib.nng_msg_alloc(message, 0))
    error = lib.nng_msg_append(message[0], data, len(data))
    error = error or lib.nng_ctx_sendmsg(context.context, message[0], 0)
    if error:
        lib.nng_msg_free(message[0])  # only on an error: a sent message belongs to the transport
    check_err(error)
