"""Format fuzz runs as readable text."""

from __future__ import annotations

from collections.abc import Sequence

from gpuemu_flow.reports.failure_text import failure_lines
from gpuemu_flow.reports.text import Style, duration, percent, plural, printable
from gpuemu_flow.results.fuzz_model import CauseGroup, FuzzReport
from gpuemu_flow.types import Verdict

_BARS = " ▁▂▃▄▅▆▇█"


def exit_code(reports: Sequence[FuzzReport]) -> int:
    """Return the exit code: 0 passed, 1 failed, 3 crashed, 4 nothing validated, 130 interrupted."""
    if any(report.interrupted for report in reports):
        return 130
    if any(report.failed for report in reports):
        return 1
    if any(report.errors for report in reports):
        return 3
    return 0 if any(report.verdict is Verdict.PASSED for report in reports) else 4


def histogram(counts: Sequence[int]) -> str:
    """Draw counts as a row of bars; every non-zero bar is visible."""
    most = max(counts, default=0)
    if not most:
        return ""
    return "".join(_BARS[-(-c * (len(_BARS) - 1) // most)] for c in counts)


def render(report: FuzzReport, style: Style) -> str:
    """Format one op's fuzz run."""
    counts = [
        f"{report.passed} passed",
        *(f"{n} {word}" for n, word in _other_counts(report) if n),
    ]
    cached = f", {report.cached} of them cached" if report.cached else ""
    lines = [
        f"{style.paint(printable(report.op), '1')}: {plural(report.iterations, 'case')}{cached} in "
        f"{duration(report.duration_s)} ({report.cases_per_s:.0f}/s), seed {report.seed}: "
        f"{', '.join(counts)}"
    ]
    if report.unjudged:
        lines.append(f"  unjudged: {percent(report.unjudged)} of the elements have no verdict")
    if report.reason:
        lines.append(f"  {style.verdict(report.verdict)}: {printable(report.reason)}")
    if report.failure_rate.total:
        lines.append(f"  over seeds, {report.failure_rate.sentence}")
    if report.passed:
        lines.append(
            f"  tolerance used by passing cases: at most {report.worst_margin:.0%}  "
            f"|{histogram(report.margins)}| 0 to 100 %"
        )
    if report.coverage:
        covered = ", ".join(f"{len(v)} {name}" for name, v in report.coverage.items())
        lines.append(f"  exercised: {covered}")
    lines += [f"  not exercised: {gap}" for gap in report.gaps]
    for group in report.groups:
        lines += ["", *(f"  {line}" for line in _group(group, style))]
    if report.left_out:
        kinds = ", ".join(f"{count} {kind}" for kind, count in report.left_out.items())
        lines.append(f"  more failures, counted but neither listed nor recorded: {kinds}")
    if report.stopped_early:
        lines.append(f"  {report.stopped_early}")
    return "\n".join(lines)


def _other_counts(report: FuzzReport) -> list[tuple[int, str]]:
    return [
        (report.failed, "failed"),
        (report.inconclusive, "inconclusive"),
        (report.errors, "in error"),
        (report.not_run, "not run"),
    ]


def _shape_classes(group: CauseGroup) -> list[str]:
    """List the shape classes with failures, most frequent first, then the classes without."""
    classes = group.shape_classes.items()
    fails = sorted((-f / (f + p), name, f, f + p) for name, (f, p) in classes if f)
    passes = [name for name, (failed, _) in classes if not failed]
    told = ", ".join(f"{name} ({failed} of {total})" for _, name, failed, total in fails)
    rest = f"; never in {', '.join(passes)}" if passes else ""
    return [f"by shape class: fails in {told}{rest}"] if told else []


def _group(group: CauseGroup, style: Style) -> list[str]:
    smallest = group.failures[0]
    verdict = style.verdict(Verdict(smallest.verdict))
    feature = f": {group.feature}" if group.feature else ""
    lines = [f"{verdict} {group.kind} in {plural(len(group.failures), 'case')}{feature}"]
    lines += [f"  {line}" for line in failure_lines(smallest)]
    lines += [f"  {printable(note)}" for note in group.notes]
    lines += [f"  {line}" for line in _shape_classes(group)]
    if group.minimized is not None:
        lines.append("  minimized:")
        lines += [f"    {line}" for line in failure_lines(group.minimized)]
    return lines
