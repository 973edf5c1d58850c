"""Find positions in TOML: the lines of keys, and the beginnings and ends of whole statements."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping

from msgspec import Struct

KeyPath = tuple["str | int", ...]

MAX_DEPTH = 64
MAX_TOKEN = 1000
MAX_ELEMENTS = 300_000

_SPACE = re.compile(r"[ \t]*")
_GAP = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_REST_OF_LINE = re.compile(r"[^\n]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BASIC = re.compile(r'"(?:[^"\\\n]+|\\.)*"?')
_LITERAL = re.compile(r"'[^'\n]*'?")
_LONG_BASIC = re.compile(r'"""(?:[^"\\]+|\\[\s\S]|"{1,2}(?!"))*(?:"{3,5})?')
_LONG_LITERAL = re.compile(r"'''(?:[^']+|'{1,2}(?!'))*(?:'{3,5})?")
# A date may contain a space, so a plain value ends at punctuation and not at white space.
_PLAIN = re.compile(r"[^,\[\]{}\"'#\n]+")


class Statement(Struct, frozen=True):
    """A table header, or a key with its value."""

    # Keys from the root, without the indices of arrays of tables.
    path: tuple[str, ...]
    # Lines of the statement, 0-based; `stop` is the first line after it.
    start: int
    stop: int
    # Offsets in characters of the value's beginning and end, counted from the beginning of
    # line `start`; None for a header.
    value: tuple[int, int] | None = None

    @property
    def header(self) -> bool:
        """Tell whether the statement begins a table."""
        return self.value is None


class Positions(Struct):
    """Lines of the key paths of one TOML text."""

    # Maps a key path (``("ops", 0, "name")``) to its 1-based line. It also contains the paths
    # of array elements, up to `MAX_ELEMENTS` in the whole text.
    lines: dict[KeyPath, int] = {}
    # Line on which nesting exceeds `MAX_DEPTH`; 0 if there is none.
    too_deep: int = 0
    # Line of a key, number or date of more than `MAX_TOKEN` characters; 0 if there is none.
    too_long: int = 0
    # Line of the bracket, brace or quote that is still open at the end of the text; 0 if
    # there is none.
    unclosed: int = 0
    # The statements in the order of the text, without keys inside a value.
    statements: list[Statement] = []

    def line(self, path: KeyPath) -> int:
        """Return the line of `path`, or of its nearest known ancestor; 0 if no line is known."""
        for end in range(len(path), 0, -1):
            found = self.lines.get(path[:end])
            if found is not None:
                return found
        return 0


class _Frame(Struct):
    """An array or inline table that is open while its elements are scanned."""

    path: KeyPath
    closer: str
    line: int
    recorded: bool
    index: int = 0


class _TooDeepError(Exception):
    """Raised for text that nests more deeply than the scanner follows."""


class _Scanner:
    """Scans a text in one pass, skipping invalid lines."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0
        self.found = Positions()
        self.table: KeyPath = ()
        self.array_sizes: dict[KeyPath, int] = {}
        self.elements = 0
        self.newlines = [m.start() for m in re.finditer("\n", text)]

    def line_at(self, pos: int) -> int:
        return bisect_right(self.newlines, pos - 1) + 1

    def run(self) -> Positions:
        try:
            while True:
                self.skip(_GAP)
                if self.pos >= len(self.text):
                    break
                if self.text[self.pos] == "[":
                    self.header()
                else:
                    self.assignment()
        except _TooDeepError:
            self.found.too_deep = self.line_at(self.pos)
        return self.found

    def skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.pos)
        if match is None:
            return ""
        self.pos = match.end()
        return match.group()

    def peek(self) -> str:
        return self.text[self.pos : self.pos + 1]

    def header(self) -> None:
        """Scan ``[table]`` or ``[[array of tables]]``."""
        line = self.line_at(self.pos)
        brackets = 2 if self.text.startswith("[[", self.pos) else 1
        self.pos += brackets
        parts = self.dotted_key()
        if parts:
            path = (*self.within_arrays(parts[:-1], line), parts[-1])
            if brackets == 2:
                self.found.lines.setdefault(path, line)
                size = self.array_sizes.get(path, 0)
                self.array_sizes[path] = size + 1
                path = (*path, size)
            self.found.lines[path] = line
            self.found.statements.append(Statement(_names(path), line - 1, line))
            self.table = path
        self.skip(_REST_OF_LINE)

    def within_arrays(self, parts: list[str], line: int) -> KeyPath:
        """Return a table header's key path, with an index after each array of tables.

        The index is that of the array's last element so far. Tables that the path names for the
        first time are recorded as being on line `line`.
        """
        path: KeyPath = ()
        for part in parts:
            path = (*path, part)
            self.found.lines.setdefault(path, line)
            size = self.array_sizes.get(path)
            if size is not None:
                path = (*path, size - 1)
        return path

    def dotted_key(self) -> list[str]:
        parts: list[str] = []
        while True:
            self.skip(_SPACE)
            start = self.pos
            if self.peek() == '"':
                parts.append(_unescape(self.skip(_BASIC)))
            elif self.peek() == "'":
                parts.append(self.skip(_LITERAL)[1:-1])
            else:
                bare = self.skip(_BARE_KEY)
                if not bare:
                    return parts
                parts.append(bare)
            if self.pos - start > MAX_TOKEN and not self.found.too_long:
                self.found.too_long = self.line_at(start)
            if len(parts) > MAX_DEPTH:
                raise _TooDeepError
            self.skip(_SPACE)
            if self.peek() != ".":
                return parts
            self.pos += 1

    def assignment(self) -> None:
        """Scan ``key = value`` outside of brackets."""
        line = self.line_at(self.pos)
        if not self.key_and_equals(self.table, recorded=True):
            self.skip(_REST_OF_LINE)
            return
        self.skip(_SPACE)
        path, begin = self.key_path, self.pos
        self.value(path)
        end = begin + len(self.text[begin : self.pos].rstrip())
        first = self.newlines[line - 2] + 1 if line > 1 else 0
        stop = self.line_at(max(begin, end - 1))
        value = (begin - first, end - first)
        self.found.statements.append(Statement(_names(path), line - 1, stop, value))
        self.skip(_REST_OF_LINE)

    def key_and_equals(self, parent: KeyPath, *, recorded: bool) -> bool:
        """Scan ``a.b =`` and store the path in `key_path`; return False if there is none."""
        line = self.line_at(self.pos)
        parts = self.dotted_key()
        path = parent
        for part in parts:
            path = (*path, part)
            if recorded:
                self.found.lines.setdefault(path, line)
        self.key_path = path
        self.skip(_SPACE)
        if not parts or self.peek() != "=":
            return False
        self.pos += 1
        return True

    def value(self, path: KeyPath) -> None:
        """Scan a value with everything nested in it, using a stack instead of recursion."""
        stack: list[_Frame] = []
        self.open_or_skip(path, stack, recorded=True)
        while stack:
            frame = stack[-1]
            self.skip(_GAP)
            char = self.peek()
            if not char:
                self.found.unclosed = frame.line
                return
            if char == frame.closer:
                self.pos += 1
                stack.pop()
            elif char in ",]}" or (frame.closer == "}" and char == "="):
                self.pos += 1
            elif frame.closer == "}":
                before = self.pos
                if self.key_and_equals(frame.path, recorded=frame.recorded):
                    self.skip(_GAP)
                    self.open_or_skip(self.key_path, stack, recorded=frame.recorded)
                elif self.pos == before:
                    self.pos += 1
            else:
                self.element(frame, stack)

    def element(self, frame: _Frame, stack: list[_Frame]) -> None:
        path = (*frame.path, frame.index)
        frame.index += 1
        recorded = frame.recorded and self.elements < MAX_ELEMENTS
        if recorded:
            self.elements += 1
            self.found.lines[path] = self.line_at(self.pos)
        self.open_or_skip(path, stack, recorded=recorded)

    def open_or_skip(self, path: KeyPath, stack: list[_Frame], *, recorded: bool) -> None:
        """Begin an array or inline table, as a new frame on `stack`; skip any other value."""
        start = self.pos
        char = self.peek()
        if char in ("[", "{"):
            if len(stack) + len(path) > 2 * MAX_DEPTH or len(stack) >= MAX_DEPTH:
                raise _TooDeepError
            self.pos += 1
            closer = "]" if char == "[" else "}"
            stack.append(_Frame(path, closer, self.line_at(start), recorded))
        elif char in ('"', "'"):
            self.string(char)
        else:
            token = self.skip(_PLAIN).rstrip()
            if len(token) > MAX_TOKEN and not self.found.too_long:
                self.found.too_long = self.line_at(start)

    def string(self, quote: str) -> None:
        start = self.pos
        if self.text.startswith(quote * 3, start):
            token = self.skip(_LONG_BASIC if quote == '"' else _LONG_LITERAL)
            if len(token) < 6 or not token.endswith(quote * 3):
                self.found.unclosed = self.line_at(start)
                self.pos = len(self.text)
        else:
            self.skip(_BASIC if quote == '"' else _LITERAL)


def _names(path: KeyPath) -> tuple[str, ...]:
    return tuple(part for part in path if isinstance(part, str))


def _unescape(token: str) -> str:
    """Return the text of a quoted key, unchanged if it is no valid TOML string."""
    if "\\" not in token:
        return token.strip('"')
    import tomli  # noqa: PLC0415 - escapes in keys are rare

    try:
        return str(tomli.loads(f"k = {token}")["k"])
    except ValueError:
        return token.strip('"')


def scan(text: str) -> Positions:
    """Return the positions in a text, which may be invalid, in linear time."""
    return _Scanner(text).run()


def positions(text: str) -> Mapping[KeyPath, int]:
    """Map each key path of a TOML text to its line; see `Positions.lines`."""
    return scan(text).lines
