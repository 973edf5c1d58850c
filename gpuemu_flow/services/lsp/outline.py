"""Find the positions of tables and keys in an edited gpuemu.toml, even if it is invalid."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct, field

from gpuemu_flow.config.fields import names_of
from gpuemu_flow.config.read import MAX_BYTES, parse_toml
from gpuemu_flow.config.report import KeyPath, Reporter, scan
from gpuemu_flow.config.tables import File

_TOKEN = re.compile(r"[A-Za-z0-9_.:/-]+")
_HEADER = re.compile(r"\s*\[{1,2}([^\[\]\n]+)\]{1,2}\s*(?:#.*)?")
_NAME = re.compile(r"""(?<![\w-])["']?name["']?\s*=\s*("(?:[^"\\]|\\.)*"|'[^']*')""")
_OPS = re.compile(r"\s*\[\[\s*ops\s*\]\]\s*(?:#.*)?")
_MAX_SPAN = 400


class Span(Struct, frozen=True):
    """A part of one line: 0-based line, and columns in characters, the last one excluded."""

    line: int
    start: int
    end: int


class OpTable(Struct, frozen=True):
    """One ``[[ops]]`` table."""

    # Empty while the table has no name.
    name: str
    # 0-based line of its header.
    header: int
    # Position of the value of ``name``, or of the header if there is no name.
    place: Span


class Outline(Struct):
    """An edited text with the lines of its keys."""

    text: str
    # Without line ends.
    lines: list[str]
    ops: list[OpTable] = field(default_factory=list)
    # Key paths that begin on a line (0-based), in the order of the text.
    paths: dict[int, list[KeyPath]] = field(default_factory=dict)

    def line_span(self, line: int) -> Span:
        """Return the span of a line (0-based, clamped to the text) without outer white space."""
        line = min(max(line, 0), len(self.lines) - 1)
        text = self.lines[line]
        start = len(text) - len(text.lstrip())
        end = max(len(text.rstrip()), start)
        return Span(line, start, min(end, start + _MAX_SPAN))

    def tokens(self, line: int) -> Iterator[tuple[str, Span]]:
        """Yield the words of a line, without quotes around them, each with its span."""
        if 0 <= line < len(self.lines):
            for match in _TOKEN.finditer(self.lines[line]):
                yield match.group(), Span(line, match.start(), match.end())

    def path_at(self, line: int, column: int) -> KeyPath:
        """Return the key path at a position; empty if there is none."""
        here = self.paths.get(line, [])
        for word, span in self.tokens(line):
            if span.start <= column <= span.end:
                named = [path for path in here if path[-1] == word]
                if named:
                    return named[-1]
                # A dotted key is one word, but each of its prefixes is a separate path.
                last = word.rpartition(".")[2]
                named = [path for path in here if path[-1] == last]
                if named:
                    return named[-1]
        return here[0] if here else ()

    def table_at(self, line: int) -> tuple[str, ...]:
        """Return the dotted name, as its parts, of the table that contains a line.

        The result is empty for a line above all tables.
        """
        for above in range(min(line, len(self.lines)) - 1, -1, -1):
            # Recognise a header by its text alone, since an unfinished line above may leave a
            # bracket open.
            found = _HEADER.fullmatch(self.lines[above])
            if found:
                path = tuple(part.strip().strip("\"'") for part in found[1].split("."))
                if path[0] in names_of(File):
                    return path
        return ()


def outline(text: str) -> Outline:
    """Parse a text, valid or not."""
    found = Outline(text, [line.removesuffix("\r") for line in text.split("\n")])
    if len(text) > MAX_BYTES:
        return found
    scanned = scan(text)
    lines = scanned.lines
    for path, line in lines.items():
        found.paths.setdefault(line - 1, []).append(path)
    index = 0
    while ("ops", index) in lines:
        header = lines["ops", index] - 1
        named_at = lines.get(("ops", index, "name"))
        name, place = "", found.line_span(header)
        if named_at is not None:
            name, place = _name(found, named_at - 1)
        found.ops.append(OpTable(name, header, place))
        index += 1
    if scanned.unclosed:
        found.ops += _ops_by_looks(found, scanned.unclosed)
    return found


def _ops_by_looks(found: Outline, start: int) -> Iterator[OpTable]:
    """Find the named ``[[ops]]`` tables from line `start` on, by matching each line separately.

    This works even after a bracket or quote that is not closed.
    """
    header = -1
    for line in range(start, len(found.lines)):
        if _HEADER.fullmatch(found.lines[line]):
            header = line if _OPS.fullmatch(found.lines[line]) else -1
        elif header >= 0:
            name, place = _name(found, line)
            if name:
                yield OpTable(name, header, place)
                header = -1


def _name(found: Outline, line: int) -> tuple[str, Span]:
    """Return the op's name that a line sets, or "" if it sets none, and the name's position."""
    whole = found.line_span(line)
    text = found.lines[whole.line]
    match = _NAME.search(text)
    if match is None:
        return "", whole
    parsed = parse_toml(f"name = {match[1]}", Reporter("")) or {}
    name = parsed.get("name")
    return (name if isinstance(name, str) else ""), Span(line, match.start(1) + 1, match.end(1) - 1)
