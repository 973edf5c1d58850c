"""An edited gpuemu.toml, even an invalid one: positions, diagnostics, completions, hover texts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from lsprotocol.types import CompletionItem, CompletionItemKind
from msgspec import Struct, field

from gpuemu_flow.config.fields import (
    Table,
    describe,
    key_at,
    keys_of,
    names_of,
    plain,
    rows_of,
    table_at,
    words_of,
)
from gpuemu_flow.config.load import check_config
from gpuemu_flow.config.read import MAX_BYTES, parse_toml, read_source
from gpuemu_flow.config.report import KeyPath, Reporter, scan
from gpuemu_flow.config.tables import File
from gpuemu_flow.judge.results import OpResult
from gpuemu_flow.model.errors import AddKey, FlowError, Hint, Problem, Rename
from gpuemu_flow.model.types import Verdict
from gpuemu_flow.report.failure_text import failure_row
from gpuemu_flow.report.last_results import LastResults
from gpuemu_flow.report.text import Style, plural, printable, render_failures, render_results

# Find the positions of tables and keys in an edited gpuemu.toml, even if it is invalid.

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
        """Return the parts of the name of the table that a line is in; () above all tables."""
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
    This works even after a bracket or quote that is not closed."""
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


# Make diagnostics for an edited gpuemu.toml: errors in the text, and failures of its ops.

ERROR, WARNING, INFORMATION = 1, 2, 3
MAX_MESSAGE = 2_000

_LEVELS = {
    Verdict.FAILED: ERROR,
    Verdict.ERROR: ERROR,
    Verdict.INCONCLUSIVE: WARNING,
}


class Fix(Struct, frozen=True):
    """An edit that fixes a finding: `span` is replaced by `text`."""

    title: str
    span: Span
    text: str


class Diagnosis(Struct, frozen=True):
    """One problem of an edited text, as an editor shows it."""

    span: Span
    # Severity, by the protocol's numbers: 1 error, 2 warning, 3 information.
    level: int
    # Slug of a problem, or kind of a failure.
    code: str
    message: str
    fix: Fix | None = None
    # The op that failed; empty if the finding is not a failure.
    op: str = ""


def text_findings(outlined: Outline, path: Path | None, environ: dict[str, str]) -> list[Diagnosis]:
    shown_as = path.name if path is not None else "gpuemu.toml"
    try:
        if path is None:
            problems = read_source(Path(os.devnull), shown_as, outlined.text).out.collected()
        else:
            problems = check_config(path, environ=environ, edited=outlined.text)
    except FlowError as error:
        problems = list(error.problems)
    own = (str(path), shown_as)
    return [_of_problem(problem, outlined, own) for problem in problems]


def _of_problem(problem: Problem, outlined: Outline, own: tuple[str, str]) -> Diagnosis:
    span, fix = outlined.line_span(problem.line - 1 if problem.line else 0), None
    message = problem.message
    if problem.hint:
        message += f"; {problem.hint}"
    if problem.file and problem.file not in own:
        message = f"{problem.file}:{problem.line}: {message}"
        span = outlined.line_span(0)
    elif problem.line:
        fix = _fix_of(problem, outlined)
        span = fix.span if fix is not None and fix.span.start < fix.span.end else span
    level = WARNING if problem.warning else ERROR
    return Diagnosis(span, level, problem.slug, printable(message)[:MAX_MESSAGE], fix)


def _fix_of(problem: Problem, outlined: Outline) -> Fix | None:
    edit = problem.hint.edit if isinstance(problem.hint, Hint) else None
    if isinstance(edit, Rename):
        return _renamed(edit, outlined, problem.line - 1)
    return _added(edit, outlined, problem.line - 1) if edit is not None else None


def _renamed(edit: Rename, outlined: Outline, line: int) -> Fix | None:
    for word, span in outlined.tokens(line):
        for spoken in (word, word.rpartition(".")[2]):
            if spoken != edit.right and spoken.lower() == edit.wrong.lower():
                there = Span(span.line, span.end - len(spoken), span.end)
                return Fix(f"Change to {edit.right!r}", there, edit.right)
    return None


def _added(edit: AddKey, outlined: Outline, line: int) -> Fix | None:
    header = outlined.line_span(line)
    if not outlined.lines[header.line].lstrip().startswith("["):
        return None
    end = len(outlined.lines[header.line])
    return Fix(f"Add {edit.name!r}", Span(header.line, end, end), f'\n{edit.name} = ""')


def result_findings(outlined: Outline, last: LastResults) -> list[Diagnosis]:
    """List one finding for each last result that is bad or inconclusive, at the op's name."""
    found = []
    for table in outlined.ops:
        for result in last.results.get(table.name, ()):
            if result.verdict in _LEVELS:
                outdated = table.name in last.outdated
                found.append(_of_result(table, result, outdated=outdated))
    return found


class SourceFinding(Struct, frozen=True):
    """A finding of a check of a compiled kernel, at a line of its source."""

    # Path of the source, relative to the workspace.
    file: str
    # 1-based.
    line: int
    # Severity, as in `Diagnosis`.
    level: int
    # Kind of the failure.
    code: str
    message: str


def source_findings(last: LastResults) -> list[SourceFinding]:
    """List the findings in compiled kernels, at most one for each op, line and kind."""
    found: dict[tuple[str, int, str, str], SourceFinding] = {}
    for op, results in last.results.items():
        level = INFORMATION if op in last.outdated else ERROR
        for failed in (failure for result in results for failure in result.failures):
            for reason in failed.result.failures:
                if reason.finding is None or not reason.finding.place.is_inside:
                    continue
                place, kind = reason.finding.place, reason.kind.value
                message = printable(f"{op}: {reason.message}\n{failed.reproduce}")[:MAX_MESSAGE]
                key = (place.file, place.line, kind, op)
                found.setdefault(key, SourceFinding(place.file, place.line, level, kind, message))
    return list(found.values())


def _of_result(table: OpTable, result: OpResult, *, outdated: bool) -> Diagnosis:
    first = result.failures[0] if result.failures else None
    reason = next(iter(first.result.failures), None) if first is not None else None
    bad = result.failed + result.errors + result.inconclusive
    lines = [
        f"{result.op} {result.dtype}: {result.verdict.value}, {bad} of "
        f"{plural(result.cases, 'case')}{'; changed since' if outdated else ''}"
    ]
    if first is not None and reason is not None:
        shapes = " ".join(f"{i.name}{list(i.shape)}" for i in first.case.inputs)
        lines += [f"{reason.message}", f"smallest: {shapes}, strategy {first.case.strategy}"]
        lines.append(f"seed: {first.case.seed}; {first.reproduce}")
    elif result.reason:
        lines.append(result.reason)
    level = INFORMATION if outdated else _LEVELS[result.verdict]
    code = reason.kind.value if reason is not None else result.verdict.value
    text = printable("\n".join(lines))[:MAX_MESSAGE]
    return Diagnosis(table.place, level, code, text, op=table.name)


# Make completions for a position in gpuemu.toml: tables, keys and words.

_TABLE_BEGIN = re.compile(r"\s*\[{1,2}[\w.-]*")
_KEY = re.compile(r"\s*([\w.-]*)")
_VALUE = re.compile(r"""\s*([\w.-]+)\s*=.*?(["'][^"']*|\w*)""")


def completions_at(outlined: Outline, line: int, column: int) -> list[CompletionItem]:
    """List all completions at a position, whatever text is already there."""
    if not 0 <= line < len(outlined.lines):
        return []
    before = outlined.lines[line][:column]
    if _TABLE_BEGIN.fullmatch(before):
        return _tables()
    table = outlined.table_at(line)
    if _KEY.fullmatch(before):
        found = table_at(File, table)
        return _keys(found) if found is not None else []
    value = _VALUE.fullmatch(before)
    return (
        _words((*table, *value[1].split(".")), quoted=value[2][:1] in ("'", '"')) if value else []
    )


def _tables() -> list[CompletionItem]:
    found = []
    for key in keys_of(File).values():
        shown = f"[{key.name}]" if rows_of(key.type) is None else f"[[{key.name}]]"
        found.append(_item(key.name, CompletionItemKind.Module, shown, key.doc))
    schema = "ops.schema", CompletionItemKind.Module, "[ops.schema]", "Dims, inputs and outputs."
    found.append(_item(*schema))
    return found


def _keys(table: type[Table]) -> list[CompletionItem]:
    return [
        _item(key.name, CompletionItemKind.Property, describe(key.type)[:120], plain(key.doc))
        for key in keys_of(table).values()
        if rows_of(key.type) is None
    ]


def _words(path: tuple[str, ...], *, quoted: bool) -> list[CompletionItem]:
    key = key_at(File, path)
    found = words_of(key.type) if key is not None else ()
    bare = ("true", "false")
    return [
        _item(word if quoted or word in bare else f'"{word}"', CompletionItemKind.EnumMember)
        for word in found
        if not (quoted and word in bare)
    ]


def _item(text: str, kind: CompletionItemKind, detail: str = "", doc: str = "") -> CompletionItem:
    return CompletionItem(text, kind=kind, detail=detail or None, documentation=doc or None)


# Make hover texts for a position in gpuemu.toml: an op's last results, or a key's meaning.

MAX_LINES = 40
MAX_WIDTH = 240
RECENT = 5


def hover_text(outlined: Outline, last: LastResults, line: int, column: int, *, rich: bool) -> str:
    """Return the hover text for a position, as Markdown if `rich`; empty if there is none."""
    for table in outlined.ops:
        if line in (table.header, table.place.line) and table.name:
            return results_card(table, last, rich=rich)
    path = outlined.path_at(line, column)
    key = key_at(File, path) if path and isinstance(path[-1], str) else None
    if key is None:
        return ""
    return "\n\n".join(part for part in (f"{_title(key.name, rich=rich)}: {describe(key.type)}",
                                         key.doc, _default(key.default_text)) if part)  # fmt: skip


def _title(name: str, *, rich: bool) -> str:
    return f"**`{name}`**" if rich else name


def _default(text: str) -> str:
    return f"Default: {text}." if text else ""


def results_card(table: OpTable, last: LastResults, *, rich: bool) -> str:
    results = last.results.get(table.name, ())
    failures = last.failures.get(table.name, ())
    style = Style(False)
    if not results and not failures:
        return f"{table.name}: no results yet"
    lines = ["something changed since these results"] if table.name in last.outdated else []
    lines += render_results(results, style) if results else []
    lines += ["", *render_failures(results, style)]
    if failures:
        lines += ["", f"recorded failures: {len(failures)}"]
        lines += [failure_row(record) for record in failures[:RECENT]]
    shown = [line[:MAX_WIDTH] for line in "\n".join(lines).strip("\n").split("\n")]
    if len(shown) > MAX_LINES:
        shown = [*shown[:MAX_LINES], "…"]
    text = "\n".join(shown)
    if not rich:
        return text
    # In a fenced block nothing is markup, but the text must not contain its closing fence.
    return "```text\n" + text.replace("```", "'''") + "\n```"
