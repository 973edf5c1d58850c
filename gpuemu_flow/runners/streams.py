"""Provide real descriptors 0, 1 and 2 to protocol programs, one call after another."""

from __future__ import annotations

import fcntl
import os

from gpuemu_flow.runners import memfd

_HIGH = 200  # ops that close or count low descriptors do not meet ours


def keep_high(fd: int) -> int:
    """Move a descriptor to a high number that programs do not use, and return it."""
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    except OSError:  # the system allows fewer descriptors
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return high


class StandardStreams:
    """Memory files behind descriptors 0 and 1; 2 is restored if a program closes it.

    Parameters
    ----------
    stderr_fd : int
        Target of descriptor 2; stays open.
    """

    def __init__(self, stderr_fd: int) -> None:
        self._stderr = stderr_fd
        self._null = keep_high(os.open(os.devnull, os.O_RDWR))
        self._write_only = keep_high(os.open(os.devnull, os.O_WRONLY))
        self._in: int | None = None
        self._out: int | None = None

    def files(self) -> tuple[int, int]:
        """Return the descriptors of the stdin and stdout files, made on first use."""
        if self._in is None or self._out is None:
            self._in = keep_high(memfd.create("stdin"))
            self._out = keep_high(memfd.create("stdout"))
        return self._in, self._out

    def quiet(self) -> None:
        """Connect standard input to an empty file, and standard output to nowhere."""
        os.dup2(self._null, 0)
        os.dup2(self._null, 1)
        os.dup2(self._stderr, 2)

    def load(self, request: bytes) -> tuple[int, int]:
        """Write a request to the stdin file, rewind the stdout file, and return both.

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
        """Connect descriptor 0 to a file with the request, and descriptor 1 to an empty one."""
        stdin, stdout = self.load(request)
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        os.dup2(self._stderr, 2)

    def lend(self) -> None:
        """Connect as `connect` does, but with a descriptor 0 that refuses to be read."""
        os.lseek(self.files()[1], 0, os.SEEK_SET)
        os.dup2(self._write_only, 0)
        os.dup2(self.files()[1], 1)
        os.dup2(self._stderr, 2)

    def written(self) -> bytes:
        """Return all output on stdout since `connect` or `load`."""
        return memfd.read_all(self.files()[1], self.written_size())

    def written_size(self) -> int:
        """Return the size in bytes of the output on stdout, by the descriptor's shared position."""
        return os.lseek(self.files()[1], 0, os.SEEK_CUR)

    def stderr_tail(self) -> str:
        """Return the end of the output on stderr."""
        return memfd.tail(self._stderr)
