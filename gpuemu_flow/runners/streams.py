"""Give protocol programs real file descriptors 0, 1 and 2, made ready again for each call."""

from __future__ import annotations

import fcntl
import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from gpuemu_flow.runners import memfd

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_HIGH = 200  # so that ops that close or count low descriptors miss ours


def keep_high(fd: int) -> int:
    """Move a descriptor to a high number that programs do not use, and return it."""
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    except OSError:  # the system allows fewer descriptors
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return high


class _Tail(io.FileIO):
    """A file object for descriptor 1, which keeps the last bytes that are written through it.

    Output that is written to the descriptor directly is not kept, and costs no memory.
    """

    end = b""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write to the descriptor, and keep the last bytes."""
        view = memoryview(data)
        self.end = (self.end + view[-memfd.TAIL :])[-memfd.TAIL :]
        return super().write(data)


class StandardStreams:
    """The standard descriptors 0, 1 and 2 of this process, connected anew for each call.

    Descriptors 0 and 1 are connected to files in memory. Descriptor 2 is restored in case a program
    has closed it.
    """

    def __init__(self, stderr_fd: int) -> None:
        self._stderr = stderr_fd
        self._null = keep_high(os.open(os.devnull, os.O_RDWR))
        self._in: int | None = None
        self._out: int | None = None
        self._tail = _Tail(1, "w", closefd=False)
        self._printed = io.TextIOWrapper(io.BufferedWriter(self._tail))

    def watch(self) -> None:
        """Replace ``sys.stdout`` by a stream that keeps the last bytes that programs print."""
        self._printed.reconfigure(encoding=sys.stdout.encoding, errors=sys.stdout.errors)
        sys.stdout = self._printed

    def files(self) -> tuple[int, int]:
        """Return the descriptors of the stdin and stdout files, which are made on first use."""
        if self._in is None or self._out is None:
            self._in = keep_high(memfd.create("stdin"))
            self._out = keep_high(memfd.create("stdout"))
        return self._in, self._out

    def quiet(self) -> None:
        """Connect descriptors 0 and 1 to ``/dev/null``, and restore descriptor 2."""
        os.dup2(self._null, 0)
        os.dup2(self._null, 1)
        os.dup2(self._stderr, 2)

    def load(self, request: bytes) -> tuple[int, int]:
        """Write a request to the stdin file, rewind the stdout file, and return both descriptors.

        The files keep their pages: returning them to the system and getting new ones would cost
        more than the copy.
        """
        stdin, stdout = self.files()
        os.lseek(stdin, 0, os.SEEK_SET)
        memfd.write_all(stdin, request)
        os.ftruncate(stdin, len(request))
        os.lseek(stdin, 0, os.SEEK_SET)
        os.lseek(stdout, 0, os.SEEK_SET)
        return stdin, stdout

    def connect(self, request: bytes) -> None:
        """Connect descriptor 0 to a file with the request, and descriptor 1 to the stdout file."""
        stdin, stdout = self.load(request)
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        os.dup2(self._stderr, 2)

    def written(self) -> bytes:
        """Return all output on stdout since `connect` or `load`."""
        return memfd.read_all(self.files()[1], self.written_size())

    def written_size(self) -> int:
        """Return the size in bytes of the output on stdout: the file position of the descriptor."""
        return os.lseek(self.files()[1], 0, os.SEEK_CUR)

    def forget(self) -> None:
        """Discard the recorded output on stderr and stdout."""
        os.ftruncate(self._stderr, 0)
        self._flush()
        self._tail.end = b""

    def _flush(self) -> None:
        with suppress(OSError, ValueError):  # a program may close it, or what is behind it
            io.TextIOWrapper.flush(self._printed)

    def stdout_tail(self) -> str:
        """Return the end of the text printed since `forget`, without a script's protocol answer."""
        self._flush()
        return memfd.as_text(self._tail.end)

    def stderr_tail(self) -> str:
        """Return the end of the output on stderr."""
        return memfd.tail(self._stderr)
