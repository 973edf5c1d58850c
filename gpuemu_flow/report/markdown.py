"""Write a report as Markdown, for a comment on a pull request or the summary of a job."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from gpuemu_flow.judge.results import CaseVerdict
from gpuemu_flow.lint.kernel import KernelRecord, Violation
from gpuemu_flow.model.types import Verdict
from gpuemu_flow.report import report_text
from gpuemu_flow.report.document import Report, kind_of
from gpuemu_flow.report.formats import ReaderOptions
from gpuemu_flow.report.report_text import counts, headline
from gpuemu_flow.report.text import (
    condition_lines,
    duration,
    minimal_lines,
    note_lines,
    percent,
    printable,
    share,
)

MARKER = "<!-- gpuemu-flow report -->"
"""First line of every report, by which a bot finds its own comment to edit it."""

MAX_COMMENT = 65_000
"""Maximum size in bytes; GitHub refuses comments of 65,536 characters."""

MAX_CELL = 160
MAX_ROWS, MAX_DETAILS = 100, 20
"""Limits for one table in a comment, so that the next table has room; longer texts may exceed
them."""

_RUNS = re.compile("`+")
_ICONS = {
    "passed": "✅", "failed": "❌", "error": "💥", "nothing validated": "⚠️", "interrupted": "⏹️",
    "timed out": "⌛", "not all validated": "⚠️", "nothing to do": "⚪",
}  # fmt: skip


class _Section(Struct, frozen=True):
    """A section of the report: a table or blocks. Rows or blocks beyond `most` are only counted."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[str]
    most: int = MAX_ROWS


def write(report: Report, _look: ReaderOptions) -> str:
    """Return the report as Markdown."""
    return report_to_markdown(report)


def report_to_markdown(report: Report, limit: int = MAX_COMMENT) -> str:
    """Return the report as Markdown of at most `limit` bytes of UTF-8, worst results first."""
    lines = [MARKER, *_head(report)]
    # Room for the lines that say what was left out, and for the footer.
    room = limit - 1000 - _size(lines)
    for section in _sections(report):
        if not section.rows:
            continue
        head = ["", f"### {section.title}", "", *section.head]
        room -= _size(head)
        shown = []
        for row in section.rows[: section.most * max(1, limit // MAX_COMMENT)]:
            if room - _size([row]) < 0:
                break
            room -= _size([row])
            shown.append(row)
        if shown:
            lines += [*head, *shown]
        if len(shown) < len(section.rows):
            more = len(section.rows) - len(shown)
            lines += ["", f"… {more} more in “{section.title}”; see the full report."]
    lines += ["", f"<sub>gpuemu-flow {code_free(report.version)}, {report.created}</sub>", ""]
    return "\n".join(lines)


def code(text: str, limit: int = MAX_CELL, *, cell: bool = True) -> str:
    """Format untrusted text as a code span, in which nothing is interpreted as markup."""
    flat = " ".join(printable(text[: 4 * limit]).split()) or " "
    if len(flat) > limit:
        flat = flat[: limit - 1] + "…"
    fence = "`" * (1 + max((len(run) for run in _RUNS.findall(flat)), default=0))
    padded = f" {flat} " if flat[0] == "`" or flat[-1] == "`" else flat
    span = f"{fence}{padded}{fence}"
    return span.replace("|", "\\|") if cell else span


def code_free(text: str) -> str:
    """Escape HTML and Markdown in text outside of code."""
    flat = html.escape(" ".join(printable(text).split()), quote=False)
    return re.sub(r"([\\`*_{}\[\]()#+!|~@])", r"\\\1", flat)


def _size(lines: Iterable[str]) -> int:
    return sum(len(line.encode("utf-8", "replace")) + 1 for line in lines)


def _head(report: Report) -> Iterator[str]:
    totals = report.totals
    icon = _ICONS.get(report.verdict, "")
    project = f" of {code(report.project, cell=False)}" if report.project else ""
    yield f"## {icon} gpuemu-flow correctness report{project}: {report.verdict}"
    yield ""
    parts = [f"**{count}** {word}" for word, count in counts(totals)] or ["nothing checked"]
    took = f", {duration(report.run.duration_s)}" if report.run.duration_s else ""
    yield f"{', '.join(parts)}; mode {code(report.mode, cell=False)}{took}."
    for line in condition_lines(report.run):
        yield ""
        yield f"{line[0].upper()}{line[1:]}."
    if report.missing or report.timed_out:
        yield ""
        yield f"**Not validated:** {code(headline(report), 1000, cell=False)}"
    if report.timed_out:
        yield ""
        yield "The time limit was reached: what was cut off is counted as skipped."


def _sections(report: Report) -> Iterator[_Section]:
    counts = report_text.count_causes(report)
    yield _Section(
        "Failing cases",
        (
            "| op | dtype | kind | what | of tolerance | seed |",
            "|---|---|---|---|---:|---|",
        ),
        [
            _failure_row(
                failure,
                report_text.describe_failure(
                    report, failure, counts[report_text.kind_key(failure)]
                ),
            )
            for failure in report.representatives()
        ],
    )
    if report.fail_on_regression or report.baseline is not None:
        yield _Section(
            "Regressions",
            (),
            [f"- {code(r.sentence, 400, cell=False)}" for r in report.regressions],
        )
    yield _Section(
        "Kernels",
        (
            "| kernel | rule | finding | registers | spills | occupancy |",
            "|---|---|---|---:|---:|---:|",
        ),
        list(_kernel_rows(report)),
    )
    problems = [p for p in report.run.problems if not p.warning]
    yield _Section("Problems", (), [f"- {code(str(p), 400, cell=False)}" for p in problems])
    yield _Section(
        "Details",
        (),
        [_details(report, f) for f in report.representatives()],
        MAX_DETAILS,
    )
    yield _Section(
        "Recorded before, not seen by this run",
        ("| op | dtype | kind | seed | source |", "|---|---|---|---|---|"),
        [
            "| "
            + " | ".join(code(str(w)) for w in (r.op, r.dtype, r.kind, r.seed, r.source))
            + " |"
            for r in report.recorded
        ],
    )
    skipped = [r for r in report.run.results if r.verdict is Verdict.SKIPPED]
    yield _Section(
        "Skipped",
        (),
        [
            f"- {code(f'{r.op} {r.dtype}', cell=False)}: {code(r.reason, cell=False)}"
            for r in skipped
        ],
    )
    warnings = [p for p in report.run.problems if p.warning]
    yield _Section("Warnings", (), [f"- {code(str(p), 400, cell=False)}" for p in warnings])
    yield _Section(
        "All ops",
        (
            "| op | dtype | verdict | cases | of tolerance | unjudged |",
            "|---|---|---|---:|---:|---:|",
        ),
        [
            f"| {code(r.op)} | {r.dtype} | {r.verdict.value} | {r.passed}/{r.cases} | "
            f"{share(r.tolerance_used)} | {percent(r.unjudged)} |"
            for r in report.run.results
            if r.cases
        ],
    )


def _failure_row(failure: CaseVerdict, what: str) -> str:
    stats = failure.result.stats
    cells = (
        code(failure.op),
        failure.case.dtype,
        kind_of(failure),
        code(what),
        share(stats.tolerance_used) if stats.count else "-",
        code(str(failure.case.seed)),
    )
    return f"| {' | '.join(cells)} |"


def _details(report: Report, failure: CaseVerdict) -> str:
    """Return one failure as a folded section, with its text in a code block."""
    case, result = failure.case, failure.result
    shapes = " ".join(f"{i.name}{list(i.shape)}" for i in case.inputs)
    minimal = report.run.minimal_of(failure)
    lines = [] if minimal is None else minimal_lines(minimal, failure.reproduce)
    lines += [f"{f.kind.value}: {f.message}" for f in result.failures[:3]]
    lines.append(f"{case.dtype}  {shapes}  layout {case.layout}  strategy {case.strategy}")
    if cause := report.causes.get(report.key(failure)):
        lines.append(f"cause: {cause}")
    lines += note_lines(result)
    place = report.place_of(failure)
    if place is not None and minimal is None:
        lines.append(f"at {place.file}:{place.line}")
    if minimal is None:
        lines.append(failure.reproduce)
    text = printable("\n".join(lines))[:2000]
    fence = "`" * max(3, 1 + max((len(run) for run in _RUNS.findall(text)), default=0))
    title = html.escape(" ".join(printable(f"{failure.op} {case.dtype}").split())[:MAX_CELL])
    summary = f"<details><summary>{title}: {kind_of(failure)}</summary>"
    return f"{summary}\n\n{fence}text\n{text}\n{fence}\n\n</details>"


def _kernel_rows(report: Report) -> Iterator[str]:
    for kernel in report.run.kernels:
        if kernel.verdict in (Verdict.ERROR, Verdict.SKIPPED) and not kernel.entries:
            reason = code(kernel.reason)
            yield f"| {code(kernel.kernel)} | {kernel.verdict.value} | {reason} | | | |"
        for entry in kernel.entries:
            for found in entry.errors:
                yield _kernel_row(entry, found)


def _kernel_row(entry: KernelRecord, found: Violation) -> str:
    figures = entry.metrics
    cells = (
        code(f"{entry.name} {entry.arch}"),
        found.rule,
        code(found.message),
        "-" if figures.registers is None else str(figures.registers),
        "-" if figures.spill_instructions is None else str(figures.spill_instructions),
        "-" if figures.occupancy is None else f"{figures.occupancy.fraction:.0%}",
    )
    return f"| {' | '.join(cells)} |"
