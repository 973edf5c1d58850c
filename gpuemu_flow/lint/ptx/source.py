"""PTX text ready for scanning: decoded, comments blanked out, and lines found by offset."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left

from msgspec import Struct

from gpuemu_flow.lint.ptx.opcode import Opcode
from gpuemu_flow.model.errors import Problem

_COMMENT_OR_STRING = re.compile(r'"[^"\n]*"?|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL | re.ASCII)
_NEWLINE = re.compile("\n", re.ASCII)
_UTF8_BOM = b"\xef\xbb\xbf"
_ELF_MAGIC = b"\x7fELF"
_EXCERPT = 40


class SourceText:
    """Text of one file, with a conversion of offsets to line numbers."""

    __slots__ = ("_newlines", "file", "opcodes", "text")

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.opcodes: dict[str, Opcode] = {}
        self._newlines: array[int] | None = None

    def line_of(self, offset: int) -> int:
        """Return the 1-based line of an offset."""
        if self._newlines is None:
            self._newlines = array("Q", (m.start() for m in _NEWLINE.finditer(self.text)))
        return bisect_left(self._newlines, offset) + 1

    def problem(self, slug: str, message: str, offset: int) -> Problem:
        """Make a diagnosis for the line of an offset."""
        return Problem(slug, message, "", self.file, self.line_of(offset))

    def excerpt(self, offset: int) -> str:
        """Return the start of the text at an offset, within its line, for a message."""
        line = self.text[offset : offset + _EXCERPT].split("\n", 1)[0].rstrip()
        return line.encode("ascii", "backslashreplace").decode("ascii")


def read_source(data: bytes, file: str) -> SourceText | Problem:
    """Decode a file and blank out its comments; return a problem if it cannot be PTX.

    Latin-1 maps every byte to one character, so no input fails to decode. NUL bytes (PTX embedded
    in fat binaries ends in them) become spaces.
    """
    if data.startswith(_ELF_MAGIC):
        return Problem("ptx-is-binary", "an ELF file (cubin or object), not PTX text", "", file, 1)
    data = data.removeprefix(_UTF8_BOM)
    if b"\0" in data:
        data = data.replace(b"\0", b" ")
    if not data.strip():
        return Problem("ptx-empty", "the file is empty", "", file, 1)
    text = blank_comments(data.decode("latin-1"))
    if text.isspace():
        return Problem("ptx-empty", "the file holds nothing but comments", "", file, 1)
    return SourceText(text, file)


def blank_comments(text: str) -> str:
    """Replace each comment by its newlines, or by a space if it has none; leave strings alone."""
    if "/" not in text:
        return text
    return _COMMENT_OR_STRING.sub(_blank, text)


def _blank(match: re.Match[str]) -> str:
    found = match.group()
    if found[0] == '"':
        return found
    return "\n" * found.count("\n") or " "


def decode_path(raw: str) -> str:
    """Decode a file name of a ``.file`` directive as UTF-8, the usual encoding of such names."""
    return raw.encode("latin-1").decode("utf-8", "replace")


_LOCATION = re.compile(r"\s*(?:\.loc\b|\.file\b|@@DWARF\b)", re.ASCII)
_SECTION = re.compile(r"\s*\.section\b[^\n]*\.debug", re.ASCII)


class PlainPtx(Struct, frozen=True):
    """PTX reduced to its code: equal code gives equal text, wherever in the source it comes from.

    ``lines`` are the 1-based numbers in the file of the lines of ``text``.
    """

    text: bytes
    lines: tuple[int, ...]

    def number(self, line: int) -> int:
        """Return a line's number in the reduced text, given its number in the file.

        The result is 0 if the line was left out.
        """
        low, high = 0, len(self.lines)
        while low < high:
            middle = (low + high) // 2
            if self.lines[middle] < line:
                low = middle + 1
            else:
                high = middle
        return low + 1 if low < len(self.lines) and self.lines[low] == line else 0

    def line(self, number: int) -> int:
        """Return a line's number in the file, given its number in the reduced text.

        The result is 0 if there is no such line.
        """
        return self.lines[number - 1] if 1 <= number <= len(self.lines) else 0


def plain_ptx(data: bytes) -> PlainPtx:
    """Remove comments, line information and debug sections from PTX."""
    kept, lines = [], []
    inside = False
    for number, line in enumerate(blank_comments(data.decode("latin-1")).split("\n"), 1):
        if inside:
            inside = "}" not in line
        elif _SECTION.match(line):
            inside = True
        elif line.strip() and not _LOCATION.match(line):
            kept.append(" ".join(line.split()))
            lines.append(number)
    return PlainPtx("\n".join(kept).encode("latin-1"), tuple(lines))
