"""Pass a script's input and output as objects, so that megabytes need not pass through files.

A protocol script reads its whole request from ``sys.stdin`` and writes its answer to
``sys.stdout``. Once a script has been seen to do so, its requests are *lent*: descriptor 0 is
empty, and `quick_json` passes parsed and dumped documents on as objects.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Protocol

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Json


class PendingRequest(Protocol):
    """The request that a script is about to read; see `codec.EncodedRequest`."""

    @property
    def text(self) -> str:
        """Return the request as text."""

    @property
    def data(self) -> bytes:
        """Return the request as bytes."""

    def document(self) -> Json:
        """Parse the request into a new object."""


@dataclass(frozen=True)
class Captured:
    """A dumped JSON document whose long base64 strings are stored separately.

    Attributes
    ----------
    short : str
        The JSON text with a unique placeholder in place of each long string.
    taken : mapping of str to (str, bytes)
        For each placeholder, the long string and the bytes that the string decodes to.
    """

    short: str
    taken: Mapping[str, tuple[str, bytes]]

    @cached_property
    def text(self) -> str:
        """Return the whole document."""
        pieces = []
        rest = self.short
        for mark, (value, _) in self.taken.items():
            before, _, rest = rest.partition(mark)
            pieces += [before, value]
        return "".join([*pieces, rest])

    @property
    def size(self) -> int:
        """Return the number of characters, approximately."""
        return len(self.short) + sum(len(value) for value, _ in self.taken.values())


class ScriptCall:
    """One call of a script: its request, and the document that it dumped.

    Parameters
    ----------
    request : PendingRequest
    lent : bool
        True if the request is passed as an object instead of through descriptor 0. The answer may
        then be passed as an object, too, instead of through descriptor 1.
    limit : int
        Maximum size, in characters, of an answer that is passed as an object.

    Attributes
    ----------
    served : int
        Number of times that the script has read the whole request from ``sys.stdin`` at once.
    denied : bool
        True if the request is lent, but the script tried to read it in a way that only works if
        descriptor 0 holds the request.
    dumped : Captured or None
        The document that the script dumped last; None before the first.
    """

    def __init__(self, request: PendingRequest, *, lent: bool = False, limit: int = 0) -> None:
        self.request = request
        self.lent = lent
        self.limit = limit
        self.served = 0
        self.denied = False
        self.dumped: Captured | None = None
        found = os.fstat(0)
        self._identity = (found.st_dev, found.st_ino)

    def take(self) -> bool:
        """Mark the whole request as read; return False if part of it was already read."""
        try:
            found = os.fstat(0)
            if self._identity != (found.st_dev, found.st_ino):
                return False
            if self.lent:
                self.denied = self.denied or self.served > 0
                unread = not self.served
            else:
                unread = os.lseek(0, 0, os.SEEK_CUR) == 0
                if unread:
                    os.lseek(0, 0, os.SEEK_END)
        except OSError:
            return False
        self.served += unread
        return unread

    def deny(self) -> None:
        """Record that requests must not be lent to this script, because of the way it reads them.

        Does nothing if the present request was not lent, but passed through descriptor 0.
        """
        self.denied = self.denied or self.lent


current: ScriptCall | None = None


def begin(exchange: ScriptCall | None) -> None:
    """Record `exchange` as the script call in progress; None if no call is in progress."""
    global current  # noqa: PLW0603 - the functions that scripts call know no other way to it
    current = exchange


class _Bytes(io.BufferedReader):
    """A ``sys.stdin.buffer`` whose whole content is read without a copy."""

    def read(self, size: int | None = -1, /) -> bytes:
        if current is not None:
            if (size is None or size < 0) and current.take():
                return current.request.data
            current.deny()
        return super().read(size)


class _Text(io.TextIOWrapper):
    """A ``sys.stdin`` whose whole content is read without a copy."""

    def read(self, size: int | None = -1, /) -> str:
        if current is not None:
            if (size is None or size < 0) and current.take():
                return current.request.text
            current.deny()
        return super().read(size)


class Output(io.TextIOWrapper):
    """A ``sys.stdout`` that holds back a script's JSON document as an object.

    The document is written as text only if the script writes other output after it.
    """

    held: Captured | None = None
    _written = False

    def hold(self, captured: Captured) -> bool:
        """Keep a document instead of writing it; return False if it has to be written."""
        if current is None or not current.lent or self._written or self.held is not None:
            return False
        if captured.size > current.limit:
            return False
        self.held = captured
        return True

    def write(self, text: str, /) -> int:
        """Write text; if a document is held back, write the document first.

        There are two exceptions. If `text` is the document that ``json.dumps`` made last, it is
        held back if possible. If `text` is only white space, it is dropped while a document is held
        back.
        """
        if current is not None and current.dumped is not None and text is current.dumped.text:
            if self.hold(current.dumped):
                return len(text)
        elif self.held is not None and text.isspace():
            return len(text)
        self.release()
        return super().write(text)

    def release(self) -> None:
        """Write the document that is held back, if any."""
        held, self.held = self.held, None
        self._written = True
        if held is not None:
            super().write(held.text)

    @property
    def buffer(self) -> Any:
        """Return the binary stream, after writing the document that is held back, if any."""
        self.release()
        return super().buffer


def open_stdin() -> io.TextIOWrapper:
    """Open descriptor 0 as an interpreter opens its standard input."""
    return _Text(_Bytes(io.FileIO(0, closefd=False)), encoding="utf-8")


def open_stdout() -> Output:
    """Open descriptor 1 as an interpreter opens its standard output."""
    return Output(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), encoding="utf-8")


def is_input(stream: object) -> bool:
    """Tell whether a stream was opened by `open_stdin`, or is the buffer of such a stream."""
    return isinstance(stream, (_Text, _Bytes))
