"""Make diagnostics for an edited gpuemu.toml: errors in the text, and failures of its ops."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from gpuemu_flow.config.load import check_config
from gpuemu_flow.config.read import read_source
from gpuemu_flow.judge.results import OpResult
from gpuemu_flow.model.errors import AddKey, FlowError, Hint, Problem, Rename
from gpuemu_flow.model.types import Verdict
from gpuemu_flow.report.last_results import LastResults
from gpuemu_flow.report.text import plural, printable
from gpuemu_flow.services.lsp.outline import OpTable, Outline, Span

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
    """List the errors that the loader of configurations finds in a text."""
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
    """Return the edit that a problem's hint proposes; None if it proposes none."""
    edit = problem.hint.edit if isinstance(problem.hint, Hint) else None
    if isinstance(edit, Rename):
        return _renamed(edit, outlined, problem.line - 1)
    return _added(edit, outlined, problem.line - 1) if edit is not None else None


def _renamed(edit: Rename, outlined: Outline, line: int) -> Fix | None:
    """Return the fix that replaces a wrong name in a line of the text by the right name.

    The wrong name may be the last part of a dotted key. The result is None if the line does not
    contain the wrong name.
    """
    for word, span in outlined.tokens(line):
        for spoken in (word, word.rpartition(".")[2]):
            if spoken != edit.right and spoken.lower() == edit.wrong.lower():
                there = Span(span.line, span.end - len(spoken), span.end)
                return Fix(f"Change to {edit.right!r}", there, edit.right)
    return None


def _added(edit: AddKey, outlined: Outline, line: int) -> Fix | None:
    """Return the fix that adds a required key below the header of its table.

    The result is None if `line` is not the line of a header.
    """
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
    """Return the finding for the result of one op and dtype.

    It is placed at the op's name in `table`. For an outdated result, its severity is only
    information, whatever the verdict.
    """
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
