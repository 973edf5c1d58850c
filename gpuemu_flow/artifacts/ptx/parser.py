"""The top level of a PTX file: modules, variables, function headers and the ends of bodies."""

from __future__ import annotations

import re

from gpuemu_flow.artifacts.ptx.body import MAX_PROBLEMS
from gpuemu_flow.artifacts.ptx.declarations import linkage_of, parse_bounds, parse_variables
from gpuemu_flow.artifacts.ptx.model import Function, Module, PtxFile
from gpuemu_flow.artifacts.ptx.source import SourceText, decode_path, read_source
from gpuemu_flow.errors import Problem

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
    """Read a PTX file's top level; bodies are read with `body.read_body`.

    Parameters
    ----------
    data : bytes
    file : str
        Name for diagnostics.

    Returns
    -------
    PtxFile
        Without modules, and with a problem, if the input is not PTX. Never raises on bad input.
    """
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
        """Find the word at `offset` or later; return its offset, or -1 if there is none.

        White space or a parenthesis must follow the word, so that longer words do not count.
        """
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
        """Read one statement or function.

        A ``.pragma`` may stand between an entry's header and its body. The header is then not
        complete when the statement ends, and is called pending.

        Parameters
        ----------
        match : re.Match
            Match of the text up to the statement's end, or up to an opening brace.
        pending : int
            Start of the pending header; -1 if there is none.
        module : Module
            Module to which the statement or function is added.

        Returns
        -------
        tuple of int
            The position at which to continue, and the new value of `pending`.
        """
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
            module.declared_functions[header.group(2)] = ".noreturn" in head
            return
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
                linkage=linkage_of(head),
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
        """Find the closing brace of a body that starts at `start`.

        Functions do not nest: if another header or the end of the file comes first, the body is not
        closed.

        Returns
        -------
        tuple of int, int and bool
            Offset of the body's end, position at which to continue, and True if there is a closing
            brace.
        """
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
