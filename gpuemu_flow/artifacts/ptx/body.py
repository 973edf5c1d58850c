"""Read the statements of a function body, with one regular expression match per statement."""

from __future__ import annotations

import re

from gpuemu_flow.artifacts.ptx.declarations import parse_registers, parse_variables
from gpuemu_flow.artifacts.ptx.model import Body, Function, Instruction, Scope, SourceLocation
from gpuemu_flow.artifacts.ptx.opcode import Opcode

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
_STRING = re.compile(r'"([^"\n]*)"', re.ASCII)


def read_body(function: Function) -> Body:
    """Read the statements between a function's braces into a new `Body`.

    Never raises on malformed text: an invalid statement is skipped up to the next ``;`` and
    recorded in `Body.problems`.
    """
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
        """Open or close a scope; return the scope of the statements that follow.

        Braces nested deeper than `MAX_DEPTH` make no new scopes, which bounds the time to look up a
        name.
        """
        scopes = self._body.scopes
        self._depth += 1 if brace == "{" else -1
        if brace == "{":
            if self._depth > MAX_DEPTH:
                return scope
            scopes.append(Scope(scope, []))
            return len(scopes) - 1
        return scope if self._depth >= MAX_DEPTH else max(scopes[scope].parent, 0)

    def directive(self, statement: str, offset: int, scope: int) -> None:
        """Read ``.reg``, variables, ``.branchtargets`` and ``.pragma``; ignore other directives."""
        body = self._body
        if statement.startswith(".reg"):
            body.scopes[scope].registers.extend(parse_registers(statement))
        elif statement.startswith(".branchtargets"):
            if self._last_label is not None:
                names = tuple(_LIST_NAME.findall(statement[len(".branchtargets") :]))
                body.branch_targets[self._last_label] = names
        elif statement.startswith(".pragma"):
            body.pragmas.extend(_STRING.findall(statement))
        elif not statement.startswith((".callprototype", ".calltargets")):
            body.variables.extend(parse_variables(statement, offset))
