"""The top level of a PTX file: modules, variables, function headers and the ends of bodies."""

from __future__ import annotations

import math
import re

from gpuemu_flow.lint.ptx.model import (
    VECTOR_WIDTHS,
    Body,
    Function,
    Instruction,
    LaunchBounds,
    Module,
    Opcode,
    PtxFile,
    RegisterDeclaration,
    Scope,
    SourceLocation,
    SourceText,
    Variable,
    decode_path,
    element_bytes,
    parse_integer,
    read_source,
)
from gpuemu_flow.model.errors import Problem

_TOP_LEVEL = re.compile(
    r"""\s*(?:
    \.version\s+(?P<major>\d{1,4})\.(?P<minor>\d{1,4})(?![\w.])
  | \.target\s+(?P<target>\w+)(?P<options>(?:\s*,\s*\w+)*)
  | \.address_size\s+\d{1,4}
  | \.file\s+(?P<file_index>\d{1,9})\s+"(?P<file>[^"\n]*)"(?:\s*,\s*\d+\s*,\s*\d+)?
  | (?P<skipped>\.(?:file|loc)\b[^\n;]*;?|@@DWARF[^\n]*|;)
  | (?P<section>\.section\b[^{;"]*\{)
  | (?P<head>[^;{}"]*(?:"[^"\n]*"[^;{}"]*){0,8})(?P<end>[;{}])
  | (?P<eof>\Z)
    )""",
    re.VERBOSE | re.ASCII,
)
_HEADER = re.compile(r"\.(entry|func)\b\s*(?:\([^)]{0,8192}\)\s*)?([A-Za-z_$%][\w$%]*)", re.ASCII)
_TRAILING_PRAGMA = re.compile(r'\.pragma\s*"[^"\n]*"(?:\s*,\s*"[^"\n]*"){0,7}\s*\Z', re.ASCII)
_ALIAS = re.compile(r"\.alias\s+([\w$%]+)\s*,\s*([\w$%]+)", re.ASCII)
_BRACE_OR_STRING = re.compile(r'[{}]|"[^"\n]*"', re.ASCII)
_LINKAGE_BEFORE = re.compile(r"(?:\.(?:visible|weak|extern|common)\s+)+\Z", re.ASCII)
_LINKAGE_LENGTH = 64
_HEADER_WORDS = (".entry", ".func", ".version")
_AFTER_HEADER_WORD = frozenset(" \t\r\n(")


def read_ptx(data: bytes, file: str = "") -> PtxFile:
    source = read_source(data, file)
    if isinstance(source, Problem):
        return PtxFile(SourceText("", file), [], [source])
    return _Reader(source).read()


class _NextWord:
    """Finds the next occurrence of a word at growing offsets, in linear time overall."""

    def __init__(self, text: str, word: str) -> None:
        self._text = text
        self._word = word
        self._found = -2

    def after(self, offset: int) -> int:
        """Find the word at `offset` or later; return its offset, or -1 if there is none. White
        space or a parenthesis must follow the word, so that longer words do not count."""
        while self._found != -1 and self._found < offset:
            self._found = self._text.find(self._word, max(offset, self._found + 1))
            end = self._found + len(self._word)
            if self._found >= 0 and self._text[end : end + 1] not in _AFTER_HEADER_WORD:
                offset = end
        return self._found


class _Reader:
    def __init__(self, source: SourceText) -> None:
        self._source = source
        self._text = source.text
        self._result = PtxFile(source)
        self._module: Module | None = None
        self._headers = [_NextWord(source.text, word) for word in _HEADER_WORDS]

    def read(self) -> PtxFile:
        position = 0
        pending = -1  # start of an entry header that a ".pragma ...;" has interrupted
        problems = self._result.problems
        while position < len(self._text):
            match = _TOP_LEVEL.match(self._text, position)
            if match is None:
                position = self._recover(position, pending)
                pending = -1
            elif match.group("major") is not None:
                self._start_module(int(match.group("major")), int(match.group("minor")))
                position, pending = match.end(), -1
            elif match.group("eof") is not None:
                break
            elif self._module is None:
                problems.append(self._not_ptx(position))
                return self._result
            elif match.group("end") == "}":
                self._problem("ptx-syntax", "'}' without '{'", match.start("end"))
                position, pending = match.end(), -1
            elif match.group("end") is not None:
                position, pending = self._statement(match, pending, self._module)
            else:
                position = self._directive(match, self._module)
            if len(problems) >= MAX_PROBLEMS:
                self._problem("ptx-too-many-errors", "the rest of the file was not read", position)
                return self._result
        if pending >= 0:
            self._problem("ptx-truncated", "the file ends inside an entry's header", pending)
        if self._module is None and not problems:
            problems.append(self._not_ptx(0))
        return self._result

    def _problem(self, slug: str, message: str, offset: int) -> None:
        self._result.problems.append(self._source.problem(slug, message, offset))

    def _not_ptx(self, position: int) -> Problem:
        start = position
        while self._text[start : start + 1].isspace():
            start += 1
        return self._source.problem(
            "ptx-not-ptx",
            f"not PTX: found {self._source.excerpt(start)!r} where .version must come first",
            start,
        )

    def _start_module(self, major: int, minor: int) -> None:
        self._module = Module(self._source, (major, minor))
        self._result.modules.append(self._module)

    def _recover(self, position: int, pending: int) -> int:
        if self._module is None:
            self._result.problems.append(self._not_ptx(position))
            return len(self._text)
        start = position
        while self._text[start : start + 1].isspace():
            start += 1
        semicolon = self._text.find(";", start)
        if semicolon < 0:
            begin = pending if pending >= 0 else start
            self._problem("ptx-truncated", "the file ends inside a statement", begin)
            return len(self._text)
        self._problem("ptx-syntax", f"no PTX statement: {self._source.excerpt(start)!r}", start)
        return semicolon + 1

    def _directive(self, match: re.Match[str], module: Module) -> int:
        if match.group("target") is not None:
            module.target = match.group("target")
            options = match.group("options").split(",")
            module.target_options = tuple(o.strip() for o in options if o.strip())
        elif match.group("file_index") is not None:
            module.files[int(match.group("file_index"))] = decode_path(match.group("file"))
        elif match.group("section") is not None:
            close = self._text.find("}", match.end())
            if close < 0:
                self._problem("ptx-truncated", ".section is not closed", match.start("section"))
                return len(self._text)
            return close + 1
        return match.end()

    def _statement(self, match: re.Match[str], pending: int, module: Module) -> tuple[int, int]:
        """Read one statement or function. A ``.pragma`` may stand between an entry's header and its
        body. The header is then not complete when the statement ends, and is called pending."""
        end = match.group("end")
        after = match.end()
        ends_in_pragma = end == ";" and _TRAILING_PRAGMA.search(match.group("head")) is not None
        if ends_in_pragma and pending >= 0:
            return after, pending
        start = pending if pending >= 0 else match.start("head")
        head = self._text[start : match.start("end")]
        header = _HEADER.search(head)
        if end == ";":
            if ends_in_pragma and header is not None:
                return after, start
            self._declaration(head, header, start, module)
            return after, -1
        if header is None:
            semicolon = self._text.find(";", after)
            if semicolon < 0:
                self._problem("ptx-truncated", "an initialiser is cut off", start)
                return len(self._text), -1
            module.variables.extend(parse_variables(head, start))
            return semicolon + 1, -1
        return self._function(header, head, start, after, module), -1

    def _declaration(
        self, head: str, header: re.Match[str] | None, start: int, module: Module
    ) -> None:
        if header is not None:
            return  # of a function elsewhere
        alias = _ALIAS.search(head)
        if alias is not None:
            module.aliases[alias.group(1)] = alias.group(2)
            return
        module.variables.extend(parse_variables(head, start))

    def _function(
        self, header: re.Match[str], head: str, start: int, body_start: int, module: Module
    ) -> int:
        name = header.group(2)
        first_word = start + len(head) - len(head.lstrip())
        end, after, closed = self._find_body_end(body_start)
        if not closed:
            self._problem("ptx-truncated", f"the body of {name} is not closed", first_word)
        module.functions.append(
            Function(
                name=name,
                kind=header.group(1),
                header=head.strip(),
                bounds=parse_bounds(head[header.end() :]),
                module=module,
                offset=first_word,
                body_start=body_start,
                body_end=end,
                closed=closed,
            )
        )
        return after

    def _find_body_end(self, start: int) -> tuple[int, int, bool]:
        """Find the closing brace of a body that starts at `start`. Functions do not nest: if
        another header or the end of the file comes first, the body is not closed."""
        limits = [word.after(start) for word in self._headers]
        limit = min((found for found in limits if found >= 0), default=len(self._text))
        depth = 1
        for match in _BRACE_OR_STRING.finditer(self._text, start, limit):
            found = match.group()
            if found == "{":
                depth += 1
            elif found == "}":
                depth -= 1
                if depth == 0:
                    return match.start(), match.end(), True
        window = max(start, limit - _LINKAGE_LENGTH)
        linkage = _LINKAGE_BEFORE.search(self._text[window:limit])
        if linkage is not None:
            limit = window + linkage.start()
        return limit, limit, False


# Declarations: ``.reg`` statements, variables with their sizes, and entry directives.


MAX_NAMES = 100_000
"""Largest number of names read from one declaration; a hostile file may declare millions."""

_MAX_BYTES = 1 << 62
_SPECIFIERS = re.compile(r"\s*\.(\w+)(?:::\w+)?(\s*\([^)]*\)|\s+\d+(?=\s))?", re.ASCII)
_DECLARATOR = re.compile(r"\s*([\w$%.]+)\s*((?:\[[^\]]*\]\s*){0,8})", re.ASCII)
_RANGE = re.compile(r"\s*([\w$%]+)\s*<\s*(\d{1,9})\s*>\s*\Z", re.ASCII)
_DIMENSION = re.compile(r"\[\s*([^\]\s]*)\s*\]", re.ASCII)
_VARIABLE_SPACES = frozenset({"shared", "local", "global", "const", "param"})
_BOUND = re.compile(
    r"\.(maxntid|reqntid|minnctapersm|maxnctapersm|maxnreg|reqnctapercluster)\s+"
    r"(\d{1,9}(?:\s*,\s*\d{1,9}){0,2})",
    re.ASCII,
)


def parse_registers(statement: str) -> list[RegisterDeclaration]:
    """Parse a ``.reg`` statement without its ``;``, such as ``.reg .v4 .f32 v, %r<3>``."""
    type_name, lanes, position = "", 1, 0
    match = _SPECIFIERS.match(statement)
    while match is not None:
        segment = match.group(1)
        if segment in VECTOR_WIDTHS:
            lanes = VECTOR_WIDTHS[segment]
        elif segment != "reg":
            type_name = segment
        position = match.end()
        match = _SPECIFIERS.match(statement, position)
    found = []
    for part in statement[position:].split(",", MAX_NAMES)[:MAX_NAMES]:
        ranged = _RANGE.match(part)
        if ranged is not None:
            found.append(
                RegisterDeclaration(ranged.group(1), int(ranged.group(2)), type_name, lanes)
            )
        elif part.strip():
            found.append(RegisterDeclaration(part.strip(), None, type_name, lanes))
    return found


def parse_variables(statement: str, offset: int) -> list[Variable]:
    """List the variables that one statement declares. The size of a variable is the element size
    times all dimensions times the vector lanes; ``a[]`` has no size."""
    space, type_name, lanes, align, external = "", "", 1, 0, False
    position = 0
    match = _SPECIFIERS.match(statement)
    while match is not None:
        segment, argument = match.group(1), match.group(2)
        if segment in _VARIABLE_SPACES and not space:
            space = segment
        elif segment in VECTOR_WIDTHS:
            lanes = VECTOR_WIDTHS[segment]
        elif segment == "align":
            align = parse_integer(argument or "") or 0
        elif segment == "extern":
            external = True
        elif element_bytes(segment):
            type_name = segment
        position = match.end()
        match = _SPECIFIERS.match(statement, position)
    if not space:
        return []
    variables = []
    for part in statement[position:].partition("=")[0].split(",", MAX_NAMES)[:MAX_NAMES]:
        declarator = _DECLARATOR.match(part)
        if declarator is not None:
            variables.append(
                Variable(
                    declarator.group(1),
                    space,
                    type_name,
                    _size(element_bytes(type_name) * lanes, declarator.group(2)),
                    align,
                    external,
                    offset,
                )
            )
    return variables


def _size(element: int, dimensions: str) -> int | None:
    total = element
    for text in _DIMENSION.findall(dimensions):
        extent = parse_integer(text)
        if extent is None or extent < 0:
            return None
        total = min(total * extent, _MAX_BYTES)
    return total


def parse_bounds(header: str) -> LaunchBounds:
    """Return the performance directives in the header of an entry, such as ``.maxntid``."""
    values: dict[str, list[int]] = {}
    for name, numbers in _BOUND.findall(header):
        values[name] = [int(n) for n in numbers.split(",")]
    threads = values.get("reqntid") or values.get("maxntid") or [0]
    return LaunchBounds(
        max_threads=math.prod(threads),
        required="reqntid" in values,
        min_blocks=values.get("minnctapersm", [0])[0],
        max_registers=values.get("maxnreg", [0])[0],
        cluster=math.prod(values.get("reqnctapercluster", [0])),
    )


MAX_PROBLEMS = 50
"""After so many diagnoses the rest of a body, or of a file, is not read."""

MAX_INSTRUCTIONS = 2_000_000
"""Limit on a function's instructions, to bound memory; a published package has up to 60,000."""

MAX_DEPTH = 200
"""Deepest nesting of scopes; inline assembly needs two or three levels."""

# Each alternative of a statement. Braces in instructions hold no ";" and are counted, so that a
# failed match never looks past the next ";" and reading stays linear on hostile input.
_STATEMENT = re.compile(
    r"""\s*(?:
    (?:@\s*(!?\s*[%\w$]+)\s+)?([a-z][\w.]*(?:::[\w.]+){0,8})(?![\w.]|\s*:)
        ([^;{}"]*(?:\{[^{};"]*\}[^;{}"]*){0,24});
  | ([A-Za-z_$%][\w$%]*)\s*:(?!:)
  | \.loc\s+(\d{1,9}\s+\d{1,9}\s+\d{1,9}
        (?:\s*,\s*function_name\s+[\w$.]+(?:\s*\+\s*\d+)?)?
        (?:\s*,\s*inlined_at\s+\d{1,9}\s+\d{1,9}\s+\d{1,9})?)
        (?:[ \t]+(?:prologue_end|epilogue_begin|basic_block
           |is_stmt[ \t]+\d|discriminator[ \t]+\d+))*
  | (\.file\b[^\n]*|@@DWARF[^\n]*)
  | (\.[a-z][^;"]*(?:"[^"\n]*"[^;"]*){0,8});
  | ([{}])
  | (;)
  | (\Z)
    )""",
    re.VERBOSE | re.ASCII,
)
_GUARD, _OPCODE, _OPERANDS, _LABEL, _LOC, _FILE, _DIRECTIVE, _BRACE, _EMPTY, _END = range(1, 11)

_NUMBER = re.compile(r"\d+", re.ASCII)
_LIST_NAME = re.compile(r"[\w$%.]+", re.ASCII)


def read_body(function: Function) -> Body:
    """Read the statements between a function's braces into a new `Body`. Never raises on malformed
    text: an invalid statement is skipped up to the next ``;`` and recorded in `Body.problems`."""
    source = function.module.source
    text, end = source.text, function.body_end
    opcodes = source.opcodes
    body = Body()
    instructions = body.instructions
    add = instructions.append
    make = tuple.__new__
    state = _State(body)
    scope, location = 0, -1
    position = function.body_start
    while position < end:
        scanner = _STATEMENT.scanner(text, position, end)  # type: ignore[attr-defined]  # not in typeshed
        for match in iter(scanner.match, None):
            kind = match.lastindex
            if kind == _OPERANDS:
                guard, name, operands = match.group(1, 2, 3)
                opcode = opcodes.get(name)
                if opcode is None:
                    opcode = opcodes[name] = Opcode(name)
                add(
                    make(
                        Instruction,
                        (opcode, guard, operands, match.start(2), scope, location),
                    )
                )
            elif kind == _LOC:
                location = state.locate(match.group(_LOC))
            elif kind == _LABEL:
                state.label(match.group(_LABEL), scope)
            elif kind == _DIRECTIVE:
                state.directive(match.group(_DIRECTIVE), match.start(_DIRECTIVE), scope)
            elif kind == _BRACE:
                scope = state.brace(match.group(_BRACE), scope)
            elif kind == _END:
                return body
            position = match.end()
            if len(instructions) > MAX_INSTRUCTIONS:
                message = f"{function.name} has more than {MAX_INSTRUCTIONS} instructions"
                body.problems.append(
                    source.problem("ptx-too-large", f"{message}; the rest was not read", position)
                )
                return body
        position = _skip(function, body, position)
    return body


def _skip(function: Function, body: Body, position: int) -> int:
    """Record an invalid statement at `position`; return the position to continue from."""
    source = function.module.source
    while source.text[position : position + 1].isspace():
        position += 1
    semicolon = source.text.find(";", position, function.body_end)
    if semicolon < 0 and not function.closed:
        slug, message = "ptx-truncated", f"the last statement of {function.name} is cut off"
    else:
        slug, message = "ptx-syntax", f"no PTX statement: {source.excerpt(position)!r}"
    body.problems.append(source.problem(slug, message, position))
    if len(body.problems) >= MAX_PROBLEMS:
        body.problems.append(
            source.problem(
                "ptx-too-many-errors", f"the rest of {function.name} was not read", position
            )
        )
        return function.body_end
    return semicolon + 1 if semicolon >= 0 else function.body_end


class _State:
    """Reads the statements of a body that are not instructions, such as labels and ``.reg``."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._location_numbers: dict[str, int] = {}
        self._last_label: tuple[int, str] | None = None
        self._depth = 0

    def locate(self, numbers_text: str) -> int:
        """Store a ``.loc`` statement, unless an equal one is stored already; return its index."""
        known = self._location_numbers.get(numbers_text)
        if known is not None:
            return known
        before, _, inlined = numbers_text.partition("inlined_at")
        numbers = [int(n) for n in _NUMBER.findall(before.partition(",")[0])]
        call_site = [int(n) for n in _NUMBER.findall(inlined)]
        number = len(self._body.locations)
        self._body.locations.append(
            SourceLocation(
                numbers[0],
                numbers[1],
                numbers[2],
                (call_site[0], call_site[1], call_site[2]) if call_site else None,
            )
        )
        self._location_numbers[numbers_text] = number
        return number

    def label(self, name: str, scope: int) -> None:
        """Record a label, which belongs to the next instruction or ``.branchtargets`` table."""
        self._body.labels[(scope, name)] = len(self._body.instructions)
        self._last_label = (scope, name)

    def brace(self, brace: str, scope: int) -> int:
        """Open or close a scope; return the scope of the statements that follow. Braces nested
        deeper than `MAX_DEPTH` make no new scopes, which bounds the time to look up a name."""
        scopes = self._body.scopes
        self._depth += 1 if brace == "{" else -1
        if brace == "{":
            if self._depth > MAX_DEPTH:
                return scope
            scopes.append(Scope(scope, []))
            return len(scopes) - 1
        return scope if self._depth >= MAX_DEPTH else max(scopes[scope].parent, 0)

    def directive(self, statement: str, offset: int, scope: int) -> None:
        """Read ``.reg``, variables and ``.branchtargets``; ignore other directives."""
        body = self._body
        if statement.startswith(".reg"):
            body.scopes[scope].registers.extend(parse_registers(statement))
        elif statement.startswith(".branchtargets"):
            if self._last_label is not None:
                names = tuple(_LIST_NAME.findall(statement[len(".branchtargets") :]))
                body.branch_targets[self._last_label] = names
        elif not statement.startswith((".pragma", ".callprototype", ".calltargets")):
            body.variables.extend(parse_variables(statement, offset))
