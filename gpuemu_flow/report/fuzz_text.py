"""Format fuzz runs, mutation scores and coverage as readable text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuemu_flow.cases.coverage import table
from gpuemu_flow.judge.fuzz_results import CauseGroup, CoverageReport, FuzzReport, Mutation
from gpuemu_flow.model.types import Verdict
from gpuemu_flow.model.verdicts import MOST_WITHOUT_VERDICT
from gpuemu_flow.report.failure_text import failure_lines
from gpuemu_flow.report.text import Style, described, duration, percent, plural, printable

if TYPE_CHECKING:
    from gpuemu_flow.numerics.output_mutants import MutationScore

_BARS = " ▁▂▃▄▅▆▇█"


def exit_code(reports: Sequence[FuzzReport]) -> int:
    if any(report.interrupted for report in reports):
        return 130
    if any(report.failed or report.verdict is Verdict.FAILED for report in reports):
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
    if report.verdict is Verdict.PASSED and report.inconclusive:
        lines.append(
            f"  no verdict on {report.inconclusive} of {plural(report.iterations, 'case')}; an op "
            f"passes with up to {100 * MOST_WITHOUT_VERDICT:.0f} % of them"
        )
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
    lines += [f"  {line}" for line in failure_lines(smallest, group.shown)]
    if group.telling is not None:
        lines.append(f"  larger: {printable(described(group.telling.case))}")
    lines += [f"  {printable(note)}" for note in group.notes]
    lines += [f"  {line}" for line in _shape_classes(group)]
    if group.minimized is not None:
        case = group.minimized.case
        lines.append(f"  minimized: {group.minimized.id}  {printable(described(case))}")
    return lines


def _scored(score: MutationScore, what: str, cases: int) -> list[str]:
    total = len(score.killed) + len(score.survivors)
    lines = [
        f"{len(score.killed)} of {plural(total, what)} "
        f"found on {plural(cases, 'case')} ({score.share:.0%})"
    ]
    for survivor in score.survivors:
        lines.append(
            f"  survives: {survivor.name} ({survivor.kind}): {survivor.why}; "
            f"applied in {plural(survivor.cases, 'case')}"
        )
    return lines


def render_mutation(found: Mutation, style: Style) -> str:
    score = found.score
    total = len(score.killed) + len(score.survivors)
    name = style.paint(printable(found.op), "1")
    if not total:
        why = "no case has a finite value to compare" if not found.cases else "none applies"
        return f"{name}: no bug could be planted in {plural(found.cases, 'case')}: {why}"
    lines = _scored(score, "planted bug", found.cases)
    lines[0] = f"{name}: {lines[0]}"
    if found.kernel is not None:
        told = found.cases - found.kernel_untold
        first, *rest = _scored(found.kernel, "planted PTX bug", told)
        lines += [f"{name}, the kernel: {first}", *rest]
    if found.kernel_untold:
        left_out = plural(found.kernel_untold, "case")
        lines.append(
            f"{name}, the kernel: {left_out} left out, as it does not pass as it is; fix it first"
        )
    if score.not_applicable:
        lines.append(f"  not applicable to this op: {', '.join(score.not_applicable)}")
    candidates = sorted(found.trivial.candidates, key=lambda one: one.passed < one.tried)
    for one in candidates:
        strategies = ", ".join(one.strategies)
        if one.passed == one.tried:
            word = style.paint("too weak", "31;1")
            text = f"{one.name} passes every case on which it is wrong ({strategies})"
            lines.append(f"  {word}: {text}")
        elif one.passed:
            lines.append(f"  {one.name} passes {one.passed} of {one.tried} cases ({strategies})")
    return "\n".join(lines)


def render_coverage(found: CoverageReport) -> str:
    lines = table(found.rows)
    widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
    shown = [
        "  ".join(
            cell.ljust(width) if n < 2 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    for gap in found.gaps:
        missing = ", ".join(gap.missing)
        shown.append(f"gap: {gap.op} {gap.dtype}: {gap.aspect.replace('_', ' ')} {missing}")
    return "\n".join(shown)
