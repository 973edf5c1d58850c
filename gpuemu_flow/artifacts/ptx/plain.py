"""PTX reduced to its code: without comments, line information and debug sections."""

from __future__ import annotations

import re

from gpuemu_flow.artifacts.ptx.source import blank_comments
from gpuemu_flow.quick_dataclass import dataclass

_LOCATION = re.compile(r"\s*(?:\.loc\b|\.file\b|@@DWARF\b)", re.ASCII)
_SECTION = re.compile(r"\s*\.section\b[^\n]*\.debug", re.ASCII)


@dataclass(frozen=True)
class PlainPtx:
    """PTX reduced to its code: equal code gives equal text, whichever source lines it comes from.

    Attributes
    ----------
    text : bytes
    lines : tuple of int
        For each line of `text`, its 1-based line number in the file.
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
