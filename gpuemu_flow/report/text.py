"""Format results as readable text: one line per op and dtype, with failures grouped by cause."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from gpuemu_flow.judge.results import (
    NONFINITE_HINT,
    NONFINITE_SLUG,
    CaseVerdict,
    KernelResult,
    Minimal,
    OpResult,
    ResultChange,
    RunReport,
    most_telling,
)
from gpuemu_flow.judge.verdicts import EXCEPTION
from gpuemu_flow.model import plain_text
from gpuemu_flow.model.types import (
    BAD,
    SCALAR,
    Case,
    CheckResult,
    Failure,
    FailureKind,
    InputSpec,
    Verdict,
)
from gpuemu_flow.model.verdicts import shown_values
from gpuemu_flow.report.document import Explained, causes
from gpuemu_flow.tasks.stages import OTHER_CASES
from gpuemu_flow.workers.sandbox.spec import OFF, lacks, shown_level

if TYPE_CHECKING:
    from gpuemu_flow.lint.kernel import Violation


_COLORS = {
    Verdict.PASSED: "32",
    Verdict.FAILED: "31;1",
    Verdict.ERROR: "35;1",
    Verdict.INCONCLUSIVE: "33",
    Verdict.SKIPPED: "33",
}
_SEVERITY_COLORS = {"error": "31;1", "warning": "33", "info": "2"}
MAX_WRITTEN = 12
"""Maximum number of lines of a program's output: a stream's last lines, or printf's first lines."""
MOST_UNTRIED = 3
"""Maximum number of ops that are named, or listed on separate lines, for a common reason."""
plural = plain_text.plural
printable = plain_text.printable
"""Function for every part of a line that may be untrusted text."""
LARGEST_SHARE = 10_000
"""Multiple of the tolerance, or of the expected value, above which the figure says no more."""
LONGEST_FIRST = 100
"""Largest number of characters of a failure's first line; longer ones are broken after inputs."""
NO_MINIMA: Mapping[tuple[str, int, str], Minimal] = {}
_NO_DISTANCE = float((1 << 64) - 1)  # the result of `numerics.dtypes` for NaN and Inf


class Style(Struct, frozen=True):
    """A style of output: coloured or plain."""

    color: bool = False

    def paint(self, text: str, code: str) -> str:
        """Return `text` in an ANSI colour; unchanged in plain style."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.color else text

    def verdict(self, verdict: Verdict, width: int = 0, word: str = "") -> str:
        """Return a verdict's name, or `word`, in the verdict's colour, padded to `width`."""
        shown = word or verdict.value
        return self.paint(shown, _COLORS[verdict]) + " " * (width - len(shown))


def number(value: float) -> str:
    """Format a number with three digits, and zero as ``0``."""
    if value == 0:
        return "0"
    return f"{value:.2e}" if math.isfinite(value) else str(value)


def duration(seconds: float) -> str:
    """Format a duration in seconds or milliseconds."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"


def _ulps(value: float) -> str:
    """Format an error in ulp; ``-`` if the expected or the actual value is not finite."""
    if value >= _NO_DISTANCE:
        return "-"
    return f"{value:.0f}" if value < 1e6 else number(value)


def share(value: float) -> str:
    """Format a share of the tolerance in per cent, or as a multiple if it is 10 or more."""
    if not math.isfinite(value):
        return "inf"
    if value >= LARGEST_SHARE:
        return f"> {LARGEST_SHARE} x"
    if value < 10:
        return f"{value * 100:.0f} %"
    return f"{value:.3g} x" if value < 1000 else f"{value:,.0f} x"


def percent(part: float) -> str:
    """Format a share in per cent; 0 and 100 are shown only if they are exact."""
    if part <= 0 or part >= 1:
        return f"{part:.0%}".replace("%", " %")
    if part < 0.001 or part > 0.999:
        return "<0.1 %" if part < 0.5 else ">99.9 %"
    return f"{part * 100:.1f} %"


def _used(result: OpResult) -> str:
    """Format the largest share of the tolerance; ``-`` if the op failed by something else."""
    fails = result.verdict in BAD and result.tolerance_used <= 1
    return "-" if fails else share(result.tolerance_used)


def _row(result: OpResult) -> list[str]:
    if result.verdict is Verdict.SKIPPED:
        return [result.op, result.dtype, result.verdict.value, *[""] * 6, result.reason]
    errors = ["-"] * 4
    if result.passed + result.failed + result.inconclusive:
        errors = [
            number(result.max_rel) if result.max_rel < LARGEST_SHARE else f"> {LARGEST_SHARE} x",
            _ulps(result.max_ulp),
            _used(result),
            percent(result.unjudged),
        ]
    return [
        result.op,
        result.dtype,
        result.verdict.value,
        f"{result.passed} of {result.cases}",
        *errors,
        duration(result.duration_s),
        result.reason or ("cached" if result.cached else "run"),
    ]


HEADINGS = (
    "op", "dtype", "verdict", "passed", "max rel", "ulp", "of tolerance", "unjudged", "time", "",
)  # fmt: skip
KERNEL_HEADINGS = (
    "kernel", "arch", "lint", "entries", "registers", "spills", "occupancy", "errors",
    "warnings", "",
)  # fmt: skip
_LEFT = {"op", "kernel", "arch", "lint", "dtype", "verdict", ""}
WIDTH = 80
"""Number of columns that every terminal has."""
_NO_BREAK = "\N{NO-BREAK SPACE}"
_LEAST_NEEDED = ("unjudged", "max rel", "ulp", "time")
"""Columns that are left out, in this order, if the table is too wide; JSON has all figures."""
_KERNELS_LEAST_NEEDED = ("entries", "spills", "errors", "warnings")
_USUAL = {
    "unjudged": {"0 %", "-", ""},
    "entries": {"1", "-"},
    "spills": {"0", "-"},
    "errors": {"0", "-"},
    "warnings": {"0", "-"},
}
"""Columns that are left out if they contain only these values."""


def render_results(results: Sequence[OpResult], style: Style) -> list[str]:
    """Lay out the table of results, a line per op and dtype, within `WIDTH` columns if possible."""
    rows = [[printable(cell) for cell in _row(result)] for result in results]
    verdicts = [result.verdict for result in results]
    return _verdict_table(HEADINGS, rows, _LEAST_NEEDED, verdicts, style)


def wrapped(text: str, indent: int) -> list[str]:
    """Break a line after commas into lines of `WIDTH` columns; indent all except the first."""
    joined = re.sub(r"(?<!,) ", _NO_BREAK, text)
    lines = textwrap.wrap(
        joined,
        WIDTH,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_NO_BREAK, " ") for line in lines]


def _width(columns: Mapping[str, Sequence[str]]) -> int:
    """Return the width of a table's lines, without the reasons in the last column.

    Every duration counts with the same width. Otherwise, a longer duration could make the table too
    wide, and runs with the same verdicts would show different columns.
    """
    widths = [
        len("10.0 ms") if name == "time" else max(len(name), *map(len, cells))
        for name, cells in columns.items()
        if name
    ]
    return sum(widths) + 2 * len(widths) + len("cached")


def _verdict_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    least_needed: Sequence[str],
    verdicts: Sequence[Verdict],
    style: Style,
) -> list[str]:
    """Lay out a table with verdicts in the third column, each in its colour.

    If the table is wider than `WIDTH`, columns of `least_needed` are left out first, except those
    with unusual values. Then the space between columns is halved.
    """
    columns = dict(zip(headings, zip(*rows, strict=True), strict=True)) if rows else {}
    columns = {name: cells for name, cells in columns.items() if {*cells} - {"", "-"} or not name}
    for name in least_needed:
        cells = columns.get(name, ())
        if _width(columns) > WIDTH and _USUAL.get(name, set(cells)).issuperset(cells):
            columns.pop(name, None)
    gap = " " if _width(columns) > WIDTH else "  "
    left = {n for n, name in enumerate(columns) if name in _LEFT}
    heading, *lines = _padded([list(columns), *zip(*columns.values(), strict=True)], left)
    shown = [style.paint(gap.join(heading).rstrip(), "2")]
    for row, verdict in zip(lines, verdicts, strict=True):
        row[2] = style.verdict(verdict, len(row[2]))
        shown.append(gap.join(row).rstrip())
    return shown


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int]
) -> list[str]:
    """Return the lines of a table; align the columns in `left` to the left, others to the right."""
    return ["  ".join(row).rstrip() for row in _padded([headings, *rows], left)]


def _padded(rows: Sequence[Sequence[str]], left: Collection[int]) -> list[list[str]]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        [
            cell.ljust(width) if n in left else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    ]


def render_kernels(results: Sequence[KernelResult], style: Style) -> list[str]:
    """Lay out the table of the linted kernels, then list their violations and changes."""
    rows = [_kernel_row(result) for result in results]
    verdicts = [result.verdict for result in results]
    shown = _verdict_table(KERNEL_HEADINGS, rows, _KERNELS_LEAST_NEEDED, verdicts, style)
    for result in results:
        shown += [
            violation_line(found, entry.name, style)
            for entry in result.entries
            for found in entry.errors
        ]
        shown += [printable(f"{c.kind}: {c.kernel} {c.arch}: {c.message}") for c in result.changes]
    return shown


def violation_line(found: Violation, kernel: str, style: Style) -> str:
    """Format one violation: location, severity, rule, kernel, message."""
    place = f"{found.file}:{found.line}: " if found.line else ""
    severity = style.paint(found.severity, _SEVERITY_COLORS.get(found.severity, ""))
    reason = f" (allowed: {found.allowed})" if found.allowed else ""
    text = printable(f"{found.rule}: {kernel}: {found.message}{reason}")
    return f"{printable(place)}{severity}: {text}"


def _kernel_row(result: KernelResult) -> list[str]:
    def worst(figures: Iterable[int | None]) -> str:
        values = [value for value in figures if value is not None]
        estimated = any(entry.metric_source == "estimate" for entry in result.entries)
        return f"{'~' if estimated else ''}{max(values)}" if values else "-"

    figures = [entry.metrics for entry in result.entries]
    reached = [f.occupancy.fraction for f in figures if f.occupancy is not None]
    found = [violation for entry in result.entries for violation in entry.counted]
    arch = result.arch or ", ".join(dict.fromkeys(entry.arch for entry in result.entries))
    cells = ["-"] * 6
    if result.entries:
        cells = [
            str(len(result.entries)),
            worst(f.registers for f in figures),
            worst(f.spill_instructions for f in figures),
            f"{min(reached):.0%}" if reached else "-",
            str(sum(v.severity == "error" for v in found)),
            str(sum(v.severity == "warning" for v in found)),
        ]
    note = result.reason or ("cached" if result.cached else "run")
    return [printable(cell) for cell in (result.kernel, arch, result.verdict.value, *cells, note)]


def minimal_lines(minimal: Minimal, drawn: str = "") -> list[str]:
    """Return the block that begins every failure: inputs and values, place, command.

    `drawn` is the command that runs the case before it was shrunk, on any machine.
    """
    command = minimal.command or drawn
    lines = shown_lines(minimal)
    lines += [f"  reproduce: {printable(command)}"] if command else []
    return lines + ([f"  unshrunk: {printable(drawn)}"] if drawn and drawn != command else [])


def shown_lines(minimal: Minimal) -> list[str]:
    """Return inputs and values of a failure, and the place."""
    inputs = [f"{name} = {value.text}" for name, value in minimal.inputs.items()]
    first = "  ".join([*inputs, minimal.says]).rstrip()
    lines = [first] if len(first) <= LONGEST_FIRST else [*inputs, minimal.says]
    where = (
        [f"{minimal.output or 'output'}{list(minimal.index)}"] if minimal.index is not None else []
    )
    where += [minimal.place] if minimal.place else []
    lines += [f"  at {', '.join(where)}"] if where else []
    return [printable(line) for line in lines if line]


def render_failures(
    results: Sequence[OpResult],
    style: Style,
    minima: Mapping[tuple[str, int, str], Minimal] = NO_MINIMA,
) -> list[str]:
    """Format failing cases grouped by cause, each represented by its smallest case.

    Groups whose shrunk cases are equal are one.
    """
    by_op: dict[str, list[OpResult]] = {}
    for result in results:
        if result.failures:
            by_op.setdefault(result.op, []).append(result)
    lines = []
    for op, same in by_op.items():
        fails = any(result.verdict in BAD for result in same)  # then nobody asks what was unjudged
        groups: dict[object, tuple[Minimal | None, list[Explained]]] = {}
        for found in causes(same):
            case = found.members[0].case
            shown = minima.get((op, case.seed, case.dtype))
            key = id(found) if shown is None else shown.shows
            groups.setdefault(key, (shown, []))[1].append(found)
        for shown, alike in groups.values():
            members = [member for group in alike for member in group.members]
            smallest = members[0]
            kind = next((f.kind.value for f in smallest.result.failures), "no verdict")
            verdict = style.verdict(smallest.result.verdict)
            dtypes = ", ".join(dict.fromkeys(f.case.dtype for f in members))
            name = f"{verdict} {printable(op)}"
            lines.append(f"{name}: {kind} in {plural(len(members), 'case')} ({dtypes})")
            if fails and smallest.result.verdict not in BAD:
                command = smallest.reproduce if shown is None else shown.command
                lines += [f"  reproduce: {printable(command)}", ""]
                continue
            block = minimal_lines(shown, smallest.reproduce) if shown is not None else []
            lines += [f"  {line}" for line in block]
            lines += [f"  cause: {printable(group.text)}" for group in alike if group.text]
            lines += [f"  {line}" for line in _case_lines(members, shown)]
            lines.append("")
    return lines


def says(failure: Failure, dtype: str) -> str:
    """Return both values, or what happened in their place."""
    digits = 17 if dtype == "float64" else 9
    if failure.expected is not None and failure.actual is not None:
        return f"expected {failure.expected:.{digits}g}  got {failure.actual:.{digits}g}"
    text = next(iter(failure.message.splitlines()), "")
    text = text.removesuffix(f" ({failure.place})")
    who, raised, what = text.partition(f": {EXCEPTION}: ")
    if raised:
        return f"{who} raises {what}"
    own = failure.finding is not None or failure.kind is FailureKind.EXECUTION
    return text if own else f"{failure.kind.value}: {text}"


def _case_lines(members: Sequence[CaseVerdict], shown: Minimal | None) -> list[str]:
    """Describe the first of some failing cases; what is `shown` of it stands above, and is not said
    again. Where and how results are wrong is said of the case that tells most."""
    failure, telling = members[0], members[most_telling([(f.case, f.result) for f in members])]
    case, result = failure.case, failure.result
    # Where a shrunk case stands above, that one is the smallest.
    lines = [_case_line("smallest" if shown is None else "drawn as", case)]
    if shown is not None and not shown.inputs:  # it fails whatever the inputs
        lines = []
    for reason in result.failures[:3]:
        said = says(reason, case.dtype)
        repeated = shown is not None and (None, said) == (shown.expected, shown.says)
        lines += printable(reason.message).splitlines()[repeated:]
        above = shown and (shown.says, shown.output, shown.index)
        if "worst at" not in reason.message and above != (said, reason.output, reason.index):
            lines += [f"  {values}"] if (values := shown_values(reason)) else []
    if telling is not failure:
        lines += [_case_line("larger", telling.case)]
        lines += printable(telling.result.failures[0].message).splitlines()
    lines += [f"  {line}" for line in note_lines(telling.result)]
    lines += [f"reproduce: {printable(failure.reproduce)}"] if shown is None else []
    return lines


def _case_line(label: str, case: Case) -> str:
    target = f" of {case.target}" if case.target else ""
    return (
        f"{label}: {case.dtype}  {printable(described(case))}  layout {case.layout}  "
        f"strategy {case.strategy}{printable(target)}  seed {case.seed}"
    )


def note_lines(result: CheckResult) -> list[str]:
    """Format the notes on a verdict, then the program's output, whose lines begin with ``|``."""
    lines = [line for note in result.notes for line in printable(note).splitlines()]
    if result.printed:
        said = printable(result.printed).splitlines()
        lines += ["printf:", *(f"| {line}" for line in said[:MAX_WRITTEN])]
        if len(said) > MAX_WRITTEN:
            lines.append(f"| ... and {plural(len(said) - MAX_WRITTEN, 'line')} more")
    if result.stdout:
        lines += ["stdout:", *_written(result.stdout)]
        lines += ["stderr:"] if result.stderr else []
    return lines + _written(result.stderr)


def _written(text: str) -> list[str]:
    """Return the last lines of a program's output, each marked as output by ``|``."""
    return [f"| {line}" for line in printable(text).splitlines()][-MAX_WRITTEN:]


def totals_line(report: RunReport) -> str:
    """Format the counts of tasks and of verdicts."""
    tasks = report.tasks
    parts = [f"{tasks.ran} ran", f"{tasks.restored} restored", f"{tasks.current} current"]
    if tasks.failed:
        parts.append(f"{tasks.failed} failed")
    if tasks.skipped:
        parts.append(f"{tasks.skipped} skipped")
    return f"{plural(tasks.total, 'task')}: {', '.join(parts)}; {verdicts_line(report)}"


def verdicts_line(report: RunReport) -> str:
    """Format the number of results with each verdict, such as ``3 passed, 1 failed``.

    There is one result for each kernel, and one for each op and dtype.
    """
    counts: dict[Verdict, int] = {}
    verdicts = [r.verdict for r in report.results] + [k.verdict for k in report.kernels]
    for verdict in verdicts:
        counts[verdict] = counts.get(verdict, 0) + 1
    return ", ".join(f"{counts[v]} {v.value}" for v in Verdict if v in counts) or "nothing checked"


def up_to_date_line(report: RunReport) -> str:
    """Format the line that a run prints if nothing has changed."""
    cases = sum(result.passed for result in report.results)
    return (
        f"up to date: {plural(report.tasks.total, 'task')}; "
        f"{verdicts_line(report)} ({plural(cases, 'case')})"
    )


def sandbox_levels(report: RunReport) -> list[str]:
    """Return the description of each sandbox level at which an op of the report ran."""
    levels = sorted({result.sandbox for result in report.results} - {""})
    return [shown_level(level) for level in levels]


def condition_lines(report: RunReport) -> list[str]:
    """Describe the sandbox of the ops, and the seed of the cases if it was drawn."""
    lines = [f"sandbox: {level}" for level in sandbox_levels(report)]
    if report.drawn_seed is not None:
        seed = report.drawn_seed
        lines.append(f"seed: {seed}, drawn for this run; --seed {seed} repeats it")
    return lines


def render_run(report: RunReport, style: Style, *, warn_threshold: float) -> str:
    """Return the whole report of a run."""
    lines = render_results(report.results, style) if report.results else []
    if report.kernels:
        lines += render_kernels(report.kernels, style)
    if not lines:
        done = "built" if report.exit_code == 0 else "not built"
        nothing = "nothing was selected that could be checked"
        if report.nothing_due:
            nothing = "no task is in what was asked for: there is nothing to do"
        if not report.interrupted:
            lines = [done if report.build_only else nothing]
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
    lines += _change_lines(report.changes)
    weak = {r.sandbox for r in report.results if r.sandbox == OFF or lacks(r.sandbox)} - {""}
    conditions = condition_lines(report)
    lines += conditions if weak else [c for c in conditions if not c.startswith("sandbox: ")]
    lines += _untried_lines(report)
    lines.append("")
    lines += render_failures(report.results, style, report.minima)
    lines += _problem_lines(report)
    if report.interrupted:
        lines.append("interrupted: what was finished is kept; run again to go on")
    lines.append(f"{totals_line(report)}{time_taken(report)}")
    return "\n".join(lines)


def time_taken(report: RunReport) -> str:
    """Return words such as "in 2.5 s" to end a line with; empty if the run had nothing to do."""
    counts = report.tasks
    worked = counts.total == 0 or counts.current < counts.total
    return f" in {duration(report.duration_s)}" if worked and report.duration_s else ""


def _problem_lines(report: RunReport) -> list[str]:
    """Return a line for each problem; many ops that were not tried with NaN share one line."""
    untried = list(dict.fromkeys(result.op for result in report.results if result.kept_finite))
    together = len(untried) > MOST_UNTRIED
    lines = [
        printable(str(problem))
        for problem in report.problems
        if not (together and problem.slug == NONFINITE_SLUG)
    ]
    if together:
        names = ", ".join(map(printable, untried[:MOST_UNTRIED]))
        lines.append(
            f"warning: {NONFINITE_SLUG}: no NaN and no Inf was tried in inputs of "
            f"{len(untried)} ops ({names}, …): their ranges have two ends; "
            f"`gpuemu-flow coverage` lists the inputs; {NONFINITE_HINT}"
        )
    return lines


def _untried_lines(report: RunReport) -> list[str]:
    """Return lines on ops that passed although some sizes in their schemas occurred in no case."""
    by_op: dict[str, tuple[str, ...]] = {}
    for result in report.results:
        if result.untried and result.verdict is Verdict.PASSED:
            by_op.setdefault(result.op, result.untried)
    hint = "raise `cases`, or list fewer sizes"
    if len(by_op) > MOST_UNTRIED:
        names = ", ".join(map(printable, list(by_op)[:MOST_UNTRIED]))
        return [f"not tried: some listed sizes of {len(by_op)} ops ({names}, …); {hint}"]
    return [
        f"not tried: {printable(f'{op} with ' + '; '.join(sizes))}; {hint}"
        for op, sizes in by_op.items()
    ]


def _change_lines(changes: Sequence[ResultChange]) -> list[str]:
    lines = [_change_line(change) for change in changes if change.what != OTHER_CASES]
    other = [f"{printable(c.op)} {c.dtype}" for c in changes if c.what == OTHER_CASES]
    if other:
        more = f" and {len(other) - MOST_UNTRIED} more" if len(other) > MOST_UNTRIED else ""
        named = ", ".join(other[:MOST_UNTRIED])
        lines.append(f"not compared with the last run, judged on other cases: {named}{more}")
    return lines


def _change_line(change: ResultChange) -> str:
    old, new = change.old, change.new
    if change.what == "max_abs":
        old, new = (number(error) for error in change.errors())
    return f"{change.kind}: {printable(change.op)} {change.dtype}: {change.what} {old} -> {new}"


# Describe the inputs of a case: shapes of tensors, values of scalars and indices.

_MOST_VALUES = 8


def described(case: Case) -> str:
    """Return a case's inputs as readable text: ``x[2, 300] index[3]=[0, 7, 7] k=3 causal=True``."""
    return " ".join(_one(case, spec) for spec in case.inputs)


def _one(case: Case, spec: InputSpec) -> str:
    shape = list(spec.shape)
    if spec.rule is None or not spec.has_values:
        return f"{spec.name}{shape}"
    scalar = spec.rule.kind == SCALAR
    few = spec.rule.kind == "indices" and 0 < _size(spec) <= _MOST_VALUES
    if not scalar and not few:
        return f"{spec.name}{shape}"
    from gpuemu_flow.cases.generate import input_values  # noqa: PLC0415 - brings numpy

    values = input_values(case, spec)
    if scalar and values.size == 1:
        value = values.reshape(-1)[0].item()
        choices = spec.rule.choices
        return f"{spec.name}={choices[int(value) % len(choices)] if choices else value!r}"
    return f"{spec.name}{shape}={values.tolist()}"


def _size(spec: InputSpec) -> int:
    size = 1
    for length in spec.shape:
        size *= length
    return size
