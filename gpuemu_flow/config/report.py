"""Find the lines of keys in TOML, and collect every problem of one file with its place."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from gpuemu_flow.model.errors import Problem, did_you_mean, nearest

# Find positions in TOML: the lines of keys, and the beginnings and ends of whole statements.

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
            self.table = path
        self.skip(_REST_OF_LINE)

    def within_arrays(self, parts: list[str], line: int) -> KeyPath:
        """Return a table header's key path, with an index after each array of tables. The index is
        that of the array's last element so far. Tables that the path names for the first time are
        recorded as being on line `line`."""
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
        if self.key_and_equals(self.table, recorded=True):
            self.skip(_SPACE)
            self.value(self.key_path)
        self.skip(_REST_OF_LINE)

    def key_and_equals(self, parent: KeyPath, *, recorded: bool) -> bool:
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


def _unescape(token: str) -> str:
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
    return scan(text).lines


MAX_PROBLEMS = 200
MAX_SHOWN = 80
MAX_COMPARED = 50_000  # comparisons of names for all hints of a file
MAX_WARNINGS = 2_000  # a file with more is hardly a configuration


def dotted(path: KeyPath) -> str:
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + shortened(part)
    return text


def shortened(text: str) -> str:
    """Return `text` without control characters, shortened for a message."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[: MAX_SHOWN * 2])
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def shown(value: object) -> str:
    """Return a value in TOML's notation, shortened for a message."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return repr(shortened(value))
    if isinstance(value, int) and abs(value) >= 10**30:
        return "an integer of more than 30 digits"
    if isinstance(value, (list, dict)):
        return "[…]" if isinstance(value, list) else "{…}"
    return shortened(str(value))


class Reporter(Struct):
    """A collector of the problems of one file."""

    # Path of the file as the user sees it.
    file: str
    # Lines of the file's keys.
    positions: Positions = field(default_factory=Positions)
    # Problems in the order found: at most `MAX_PROBLEMS` errors, and as many warnings.
    problems: list[Problem] = []
    # Maps the path of a key, with the key's main name, to the path as written in the file.
    aliases: dict[KeyPath, KeyPath] = {}
    # Maps the path of an op to the path of its template and the template's values for this
    # op. Empty if there are no templates. See `foreach`.
    origins: dict[KeyPath, tuple[KeyPath, str]] = {}
    untold_errors: int = 0
    untold_warnings: int = 0
    compared: int = 0
    _told_warnings: int = 0
    _told_of_templates: set[tuple[str, KeyPath, str]] = set()

    def line(self, path: KeyPath) -> int:
        """Return the line of the key at `path`, even if the file has the key under an alias. If the
        file does not have the key, return the line of the key's nearest ancestor."""
        for end in range(len(path), 0, -1):
            written = self.aliases.get(path[:end])
            if written is not None:
                return self.positions.line(self._in_text((*written, *path[end:])))
        return self.positions.line(self._in_text(path))

    def _in_text(self, path: KeyPath) -> KeyPath:
        """Return the path that a key has in the text, before templates were expanded."""
        origin = self.origins.get(path[:2])
        return path if origin is None else (*origin[0], *path[2:])

    def add(
        self, slug: str, path: KeyPath, message: str, hint: str = "", *, warning: bool = False
    ) -> None:
        """Report a problem of the key at `path`."""
        origin = self.origins.get(path[:2])
        if origin is not None:
            message = message.replace(dotted(path[:2]), dotted(origin[0]))
            told = (slug, self._in_text(path), message)
            if origin[1] and told in self._told_of_templates:
                return
            self._told_of_templates.add(told)
            message += f" (with {origin[1]})" if origin[1] else ""
        self.problem_at(slug, self.line(path), message, hint, warning=warning)

    @property
    def hopeless(self) -> bool:
        """Tell whether the limit of problems is reached; further checks would add nothing."""
        return self.untold_errors > 0 or self.untold_warnings > MAX_WARNINGS

    def nearest(self, name: str, known: Collection[str], *, or_all: bool = False) -> str:
        """Return a hint with the known name most similar to `name`. If no name is similar, the hint
        lists all names if `or_all` is true; else it is empty. It is also empty after `MAX_COMPARED`
        comparisons, since comparing many names takes long."""
        self.compared += len(known)
        if self.compared > MAX_COMPARED:
            return ""
        name, names = name[:MAX_SHOWN], tuple(known)
        return did_you_mean(name, names) if or_all or nearest(name, names) else ""

    def problem_at(
        self, slug: str, line: int, message: str, hint: str = "", *, warning: bool = False
    ) -> None:
        """Report a problem at a line; line 0 means the whole file."""
        if warning and self._told_warnings >= MAX_PROBLEMS:
            self.untold_warnings += 1
            return
        if not warning and len(self.problems) - self._told_warnings >= MAX_PROBLEMS:
            self.untold_errors += 1
            return
        self._told_warnings += warning
        self.problems.append(Problem(slug, message, hint, self.file, line, warning))

    def collected(self, *, strict: bool = False) -> list[Problem]:
        """Return all problems, sorted by line; if `strict`, every warning is an error."""
        out = sorted(self.problems, key=lambda problem: problem.line)
        if self.untold_errors:
            text = f"{self.untold_errors} more errors in this file are not shown"
            out.append(Problem("config-too-many", text, "", self.file))
        if self.untold_warnings:
            text = f"{self.untold_warnings} more warnings in this file are not shown"
            mild = self.untold_warnings <= MAX_WARNINGS
            out.append(Problem("config-too-many", text, "", self.file, warning=mild))
        return [replace(problem, warning=False) for problem in out] if strict else out


# Judge unknown keys: a key whose loss could weaken a check or a limit is an error.
