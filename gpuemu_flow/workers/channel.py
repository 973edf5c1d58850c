"""What two processes share: framed JSON messages, files without a path, and the status page."""

from __future__ import annotations

import array
import fcntl
import json
import os
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

from gpuemu_flow.model.types import Json

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


# Files without a path: standard streams of programs, shared tensors, the status page.


_LINUX = sys.platform.startswith("linux")
_STATUS = struct.Struct("<IdI")
TAIL = 4000
PREPARING, CALLING, FINISHING = range(3)


def create(name: str, *, fixed: bool = False) -> int:
    """Create an empty file, in memory if the system can, and return a descriptor of it.

    The descriptor is closed on exec.
    """
    if _LINUX:
        if not fixed:  # a program that shares it cannot seal it against us
            return os.memfd_create(name, os.MFD_CLOEXEC)
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        return fd
    fd, path = tempfile.mkstemp(prefix=f"{name}-")
    os.unlink(path)  # noqa: PTH108 - never a path of ours
    return fd


def append_only(fd: int) -> int:
    """Make every write append to the file, also in processes that share `fd`; return `fd`."""
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    return fd


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data` at the current position."""
    rest = memoryview(data)
    while rest.nbytes:
        rest = rest[os.write(fd, rest) :]


def read_all(fd: int, size: int) -> bytes:
    """Return the first `size` bytes of a file, or all if it has fewer; do not move its position."""
    pieces = []
    offset = 0
    while offset < size and (piece := os.pread(fd, min(size - offset, 1 << 30), offset)):
        pieces.append(piece)
        offset += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def tail(fd: int) -> str:
    """Return the last `TAIL` bytes of a file as text; empty when the file cannot be read."""
    try:
        size = os.fstat(fd).st_size
        data = os.pread(fd, TAIL, max(0, size - TAIL))
    except OSError:
        return ""
    return as_text(data)


def as_text(data: bytes) -> str:
    """Decode a program's output; replace invalid bytes, and drop zero bytes."""
    return data.decode("utf-8", "replace").replace("\0", "").strip()


def write_status(fd: int, phase: int, place: int = 0) -> None:
    """Tell the coordinator that the worker enters a phase now, and in which of several calls."""
    os.pwrite(fd, _STATUS.pack(phase, time.monotonic(), place), 0)


def read_status(fd: int) -> tuple[int, float, int]:
    """Return the phase, the monotonic time when it began, and the number of the call.

    If unreadable, return `PREPARING`, 0.0 and 0. The result is only a hint, since the program in
    the worker can write to this file, too.
    """
    try:
        phase, since, place = _STATUS.unpack(os.pread(fd, _STATUS.size, 0))
    except (OSError, struct.error):
        return PREPARING, 0.0, 0
    return int(phase), float(since), int(place)


# Measure the time of a program's own call, and tell the coordinator that it is running.


class Watch:
    """Context manager around the program's own call."""

    def __init__(self, status_fd: int | None = None) -> None:
        self._status_fd = status_fd
        self._start = 0.0
        self.place = 0  # the number of the call, of several
        self.seconds = 0.0

    def _tell(self, phase: int) -> None:
        if self._status_fd is not None:
            try:
                write_status(self._status_fd, phase, self.place)
            except OSError:  # the program closed it; the coordinator then uses its outer limit
                self._status_fd = None

    def __enter__(self) -> Watch:
        self._tell(CALLING)
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._start
        self._tell(FINISHING)

    def preparing(self) -> None:
        """Tell the coordinator that inputs are being made, which stops the program's time limit."""
        self._tell(PREPARING)
