"""Results as lines for people: one per op and dtype, failures folded to their causes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpuemu_flow.judging.verdicts import PRINTED, STDERR
from gpuemu_flow.reports.observed_text import observed_line
from gpuemu_flow.results.causes import causes
from gpuemu_flow.results.model import CaseFailure, KernelResult, OpResult, RunReport
from gpuemu_flow.types import Json, Verdict, number_from_json

_COLORS = {
    Verdict.PASSED: "32",
    Verdict.FAILED: "31;1",
    Verdict.ERROR: "35;1",
    Verdict.INCONCLUSIVE: "33",
    Verdict.SKIPPED: "33",
}
_SEVERITY_COLORS = {"error": "31;1", "warning": "33", "info": "2"}
_VALUE_WIDTH = 70
SHOWN_LINES = 12
"""Lines of what a program wrote that a report shows."""
_UNUSUAL = re.compile(r"[^\x20-\x7e\n\t]")
_COMMAND = re.compile(r"^([ \t]*):(?=:)|#(?=#\w*\[)", re.MULTILINE)
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NO_DISTANCE = float((1 << 64) - 1)  # what `numerics.ulp` says of NaN and Inf
_SHOWN_DIGITS = 12  # of a digest: enough to tell two apart


@dataclass(frozen=True)
class Style:
    """Whether to colour."""

    color: bool = False

    def paint(self, text: str, code: str) -> str:
        """`text` in an ANSI colour, or as it is."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.color else text

    def verdict(self, verdict: Verdict, width: int = 0) -> str:
        """A verdict's word, padded and coloured."""
        return self.paint(verdict.value.ljust(width), _COLORS[verdict])


def printable(text: str) -> str:
    """Text of unknown origin that cannot move the cursor, nor command who reads a job's log.

    Control characters are shown by their number, and so is the first sign of what GitHub
    (``::error::`` at a line's begin, ``##[error]``) and Azure (``##vso[``) would obey.
    """
    plain = _UNUSUAL.sub(lambda c: c[0] if c[0].isprintable() else f"\\x{ord(c[0]):02x}", text)
    return _COMMAND.sub(lambda c: "\\x23" if c[0] == "#" else f"{c[1]}\\x3a", plain)


def number(value: float) -> str:
    """Three digits, and no digits for nothing."""
    if value == 0:
        return "0"
    return f"{value:.2e}" if math.isfinite(value) else str(value)


def duration(seconds: float) -> str:
    """Seconds or milliseconds, as suits."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"


def plural(count: int, noun: str) -> str:
    """A count with its noun, in the plural unless it is one."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _ulps(value: float) -> str:
    """Ulp, or nothing where a finite and a non-finite value are apart by no number of them."""
    if value >= _NO_DISTANCE:
        return "-"
    return f"{value:.0f}" if value < 1e6 else number(value)


def share(value: float) -> str:
    """A share of the tolerance: per cent, or a multiple once it is far beyond."""
    if not math.isfinite(value):
        return "inf"
    return f"{value * 100:.0f} %" if value < 10 else f"{value:.3g} x"


def percent(part: float) -> str:
    """A part of a whole, in which nothing is rounded to none, or to all of it."""
    if part <= 0 or part >= 1:
        return f"{part:.0%}".replace("%", " %")
    if part < 0.001 or part > 0.999:
        return "<0.1 %" if part < 0.5 else ">99.9 %"
    return f"{part * 100:.1f} %"


def _row(result: OpResult) -> list[str]:
    if result.verdict is Verdict.SKIPPED:
        return [result.op, result.dtype, *[""] * 8, result.reason]
    errors = ["-"] * 5
    if result.passed + result.failed + result.inconclusive:
        errors = [
            number(result.max_abs),
            number(result.max_rel),
            _ulps(result.max_ulp),
            share(result.tolerance_used),
            percent(result.unjudged),
        ]
    return [
        result.op,
        result.dtype,
        "",
        f"{result.passed}/{result.cases}",
        *errors,
        duration(result.duration_s),
        result.reason or ("cached" if result.cached else "run"),
    ]


HEADINGS = [
    "op", "dtype", "verdict", "cases", "max abs", "max rel", "ulp", "of tolerance", "unjudged",
    "time", "",
]  # fmt: skip
_LEFT = {0, 1, 2, 10}


def render_results(results: Sequence[OpResult], style: Style) -> list[str]:
    """The table, one line per op and dtype."""
    rows = [_row(result) for result in results]
    for row, result in zip(rows, results, strict=True):
        row[2] = result.verdict.value
    widths = [max(len(row[n]) for row in [HEADINGS, *rows]) for n in range(len(HEADINGS))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.ljust(width) if n in _LEFT else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(padded).rstrip()

    lines = [style.paint(line(HEADINGS), "2")]
    for row, result in zip(rows, results, strict=True):
        text = line([printable(cell) for cell in row])
        word = result.verdict.value
        lines.append(text.replace(f" {word} ", f" {style.verdict(result.verdict)} ", 1))
    return lines


KERNEL_HEADINGS = (
    "kernel", "arch", "verdict", "entries", "registers", "spills", "occupancy", "errors",
    "warnings", "",
)  # fmt: skip
_KERNEL_LEFT = {0, 1, 2, 9}


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int]
) -> list[str]:
    """Lines of a table; columns in `left` are aligned there, the others to the right."""
    widths = [max(len(row[n]) for row in (headings, *rows)) for n in range(len(headings))]
    return [
        "  ".join(
            cell.ljust(width) if n in left else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (headings, *rows)
    ]


def render_kernels(results: Sequence[KernelResult], style: Style) -> list[str]:
    """The table of the linted kernels, what failed them and what changed."""
    heading, *lines = table(KERNEL_HEADINGS, [_kernel_row(r) for r in results], _KERNEL_LEFT)
    shown = [style.paint(heading, "2")]
    for result, line in zip(results, lines, strict=True):
        word = f" {result.verdict.value} "
        shown.append(line.replace(word, f" {style.verdict(result.verdict)} ", 1))
    for result in results:
        shown += [
            violation_line(found, entry["name"], style)
            for entry in result.entries
            for found in entry["violations"]
            if found["severity"] == "error" and "allowed" not in found
        ]
        shown += [
            printable(f"{c['kind']}: {c['kernel']} {c['arch']}: {c['message']}")
            for c in result.changes
        ]
    return shown


def violation_line(found: Mapping[str, Json], kernel: str, style: Style) -> str:
    """One violation: place, severity, rule, kernel, message."""
    place = f"{found['file']}:{found['line']}: " if found["line"] else ""
    severity = style.paint(found["severity"], _SEVERITY_COLORS.get(found["severity"], ""))
    reason = f" (allowed: {found['allowed']})" if "allowed" in found else ""
    text = printable(f"{found['rule']}: {kernel}: {found['message']}{reason}")
    return f"{printable(place)}{severity}: {text}"


def _kernel_row(result: KernelResult) -> list[str]:
    """One line: of several entries the worst figures; ``~`` marks an estimate."""

    def worst(name: str) -> str:
        values = [v for e in result.entries if (v := e["metrics"][name]) is not None]
        estimated = any(e["metric_source"] == "estimate" for e in result.entries)
        return f"{'~' if estimated else ''}{max(values)}" if values else "-"

    reached = [o["fraction"] for e in result.entries if (o := e["metrics"]["occupancy"])]
    found = [v for e in result.entries for v in e["violations"] if "allowed" not in v]
    arch = result.arch or ", ".join(dict.fromkeys(e["arch"] for e in result.entries))
    cells = ["-"] * 6
    if result.entries:
        cells = [
            str(len(result.entries)),
            worst("registers"),
            worst("spill_instructions"),
            f"{min(reached):.0%}" if reached else "-",
            str(sum(v["severity"] == "error" for v in found)),
            str(sum(v["severity"] == "warning" for v in found)),
        ]
    note = result.reason or ("cached" if result.cached else "run")
    return [printable(cell) for cell in (result.kernel, arch, result.verdict.value, *cells, note)]


def render_failures(results: Sequence[OpResult], style: Style) -> list[str]:
    """Failing cases folded to causes; the smallest case stands for each."""
    by_op: dict[str, list[OpResult]] = {}
    for result in results:
        if result.failures:
            by_op.setdefault(result.op, []).append(result)
    lines = []
    for op, same in by_op.items():
        for found in causes(same):
            members = found.members
            smallest = members[0]
            first = smallest.result.failures[0] if smallest.result.failures else None
            kind = first.kind.value if first is not None else "no verdict"
            verdict = style.verdict(smallest.result.verdict)
            dtypes = ", ".join(dict.fromkeys(f.case.dtype for f in members))
            name = f"{verdict} {printable(op)}"
            lines.append(f"{name}: {kind} in {plural(len(members), 'case')} ({dtypes})")
            lines += [f"  {printable(found.line)}"] if found.text else []
            lines += [f"  {line}" for line in _case_lines(smallest)]
            lines.append("")
    return lines


def _case_lines(failure: CaseFailure) -> list[str]:
    case, result = failure.case, failure.result
    shapes = " ".join(f"{i.name}{list(i.shape)}" for i in case.inputs)
    target = f" of {case.target}" if case.target else ""
    lines = [
        f"smallest: {case.dtype}  {printable(shapes)}  layout {case.layout}  "
        f"strategy {case.strategy}{printable(target)}  seed {case.seed}"
    ]
    for reason in result.failures[:3]:
        lines += printable(reason.message).splitlines()
        if reason.index is not None:
            place = f"{reason.output or 'output'}{list(reason.index)}"
            lines.append(f"  {place}: actual {reason.actual!r}, expected {reason.expected!r}")
    for note in result.notes:
        lines += [f"  {line}" for line in note_lines(note)]
    lines.append(f"reproduce: {printable(failure.reproduce)}")
    return lines


def note_lines(note: str) -> list[str]:
    """A note as it is, or a program's own output, its last lines marked as such."""
    lines = printable(note).splitlines()
    if note.startswith(PRINTED):
        said, left = lines[1 : 1 + SHOWN_LINES], len(lines) - 1 - SHOWN_LINES
        more = [f"| ... and {plural(left, 'line')} more"] if left > 0 else []
        return [PRINTED, *(f"| {line}" for line in said), *more]
    if len(lines) == 1 and not note.startswith(STDERR):
        return lines
    return [f"| {line}" for line in lines if line != STDERR][-SHOWN_LINES:]


def totals_line(report: RunReport) -> str:
    """Counts of tasks and of verdicts."""
    tasks = report.tasks
    parts = [f"{tasks.ran} ran", f"{tasks.restored} restored", f"{tasks.current} current"]
    if tasks.failed:
        parts.append(f"{tasks.failed} failed")
    if tasks.skipped:
        parts.append(f"{tasks.skipped} skipped")
    return f"{plural(tasks.total, 'task')}: {', '.join(parts)}; {verdicts_line(report)}"


def verdicts_line(report: RunReport) -> str:
    """Tell how many ops and dtypes got which verdict."""
    counts: dict[Verdict, int] = {}
    verdicts = [r.verdict for r in report.results] + [k.verdict for k in report.kernels]
    for verdict in verdicts:
        counts[verdict] = counts.get(verdict, 0) + 1
    return ", ".join(f"{counts[v]} {v.value}" for v in Verdict if v in counts) or "nothing checked"


def up_to_date_line(report: RunReport) -> str:
    """Return what the next run prints when nothing changed."""
    cases = sum(result.passed for result in report.results)
    return (
        f"up to date: {plural(report.tasks.total, 'task')}; "
        f"{verdicts_line(report)} ({plural(cases, 'case')})"
    )


def render_run(report: RunReport, style: Style, *, warn_threshold: float) -> str:
    """The whole report of a run."""
    lines = render_results(report.results, style) if report.results else []
    if report.kernels:
        lines += render_kernels(report.kernels, style)
    if not lines:
        lines = ["nothing was selected that could be checked"]
    close = [
        r
        for r in report.results
        if r.verdict is Verdict.PASSED and r.tolerance_used > warn_threshold
    ]
    lines += [
        f"warning: {printable(r.op)} {r.dtype} passed with {r.tolerance_used:.0%} of its "
        "tolerance used"
        for r in close
    ]
    lines += [_change_line(change) for change in report.changes]
    lines.append("")
    lines += render_failures(report.results, style)
    lines += [printable(str(problem)) for problem in report.problems]
    if report.interrupted:
        lines.append("interrupted: what was finished is kept; run again to go on")
    lines.append(f"{totals_line(report)} in {duration(report.duration_s)}")
    return "\n".join(lines)


def _change_line(change: Mapping[str, Json]) -> str:
    old, new = (
        number(number_from_json(v)) if change["what"] != "verdict" else v
        for v in (change["old"], change["new"])
    )
    op = printable(change["op"])
    return f"{change['kind']}: {op} {change['dtype']}: {change['what']} {old} -> {new}"


def shown(value: Json) -> str:
    """A key part's value, short."""
    if value is None:
        return "absent"
    if isinstance(value, str) and _DIGEST.fullmatch(value):
        return value[:_SHOWN_DIGITS]
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return printable(text if len(text) <= _VALUE_WIDTH else text[: _VALUE_WIDTH - 1] + "…")


def render_plan(
    status: Mapping[str, str],
    reasons: Mapping[str, Sequence[tuple[str, Json, Json]]],
    style: Style,
    *,
    explain: bool,
) -> str:
    """Tasks that would run, in order."""
    lines = []
    for name, state in status.items():
        if state == "pending":
            lines.append(style.paint(name, "1"))
            if explain:
                lines += [f"  {reason_line(*reason)}" for reason in reasons.get(name, ())]
    current = sum(state == "current" for state in status.values())
    would = sum(state == "pending" for state in status.values())
    lines.append(f"{plural(would, 'task')} may run, {current} current")
    return "\n".join(lines)


def reason_line(what: str, old: Json, new: Json) -> str:
    """One changed part of a key, old and new."""
    kind, _, rest = what.partition(".")
    names = {
        "code": "source changed",
        "params": "configuration changed",
        "input": "input changed",
        "env": "environment changed",
        "output": "its output is not what it wrote",
        "stage": "another version of gpuemu-flow",
        "state": "",
    }
    if kind == "state":
        return str(old)
    if kind == "forced":
        return f"{new} was asked for"
    if kind == "follows":
        return f"may follow from {new}, which would run"
    if kind == "observed":
        return observed_line(rest, old, new)
    label = f"{names.get(kind, kind)}{': ' + rest if rest else ''}"
    return f"{label}: {shown(old)} -> {shown(new)}"


def render_explanations(found: Sequence[Mapping[str, Json]], style: Style) -> str:
    """Each task: current, or why not."""
    lines = []
    for task in found:
        word = "is current" if task["current"] else "would run"
        lines.append(f"{style.paint(task['task'], '1')} {word}")
        lines += [f"  {reason_line(c['what'], c['old'], c['new'])}" for c in task["changes"]]
        if not task["current"] and not task["changes"]:
            for root in task["because"]:
                changed = ", ".join(root["changes"])
                lines.append(f"  may follow from {root['task']}, which would run: {changed}")
        if task["current"]:
            lines.append(f"  key {shown(task['key'])}")
            lines += [f"  reads {path}" for path in task["reads"]]
    return "\n".join(lines)


def render_list(found: Mapping[str, Json], style: Style) -> str:
    """Tasks, then groups, then what is skipped."""
    lines = []
    for task in found["tasks"]:
        state = task.get("status", "")
        code = "32" if state == "current" else "33"
        lines.append(
            f"{task['task']}  {style.paint(state, code)}".rstrip() if state else task["task"]
        )
    groups = ", ".join(f"{name} ({count})" for name, count in found["groups"].items() if count)
    lines.append(f"groups: {groups}")
    lines += [
        f"skipped: {s['op']} {s['dtype']}: {printable(s['reason'])}" for s in found["skipped"]
    ]
    return "\n".join(lines)


def _outdated(count: int) -> str:
    return f"; {count} of them changed since" if count else ""


def render_status(found: Mapping[str, Json], style: Style) -> str:
    """The workspace in a few lines."""
    tasks, cache = found["tasks"], found["cache"]
    verdicts = ", ".join(f"{count} {name}" for name, count in found["verdicts"].items())
    return "\n".join(
        [
            f"workspace {style.paint(found['root'], '1')}",
            f"tasks     {tasks['total']}: {tasks['current']} current, {tasks['stale']} stale, "
            f"{tasks['skipped']} skipped",
            f"results   {verdicts or 'none yet'}{_outdated(found['outdated'])}",
            f"cache     {cache['folder']}: {cache['blobs_bytes'] / 1e6:.1f} MB of tensors, "
            f"{cache['actions_bytes'] / 1e6:.1f} MB of actions, "
            f"limit {cache['size_limit'] / 1e6:.0f} MB",
        ]
    )
