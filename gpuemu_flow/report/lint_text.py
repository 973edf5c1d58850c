"""Format kernels as readable text: lint findings, figures, and differences to a baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpuemu_flow.judge.results import KernelResult, RunReport
from gpuemu_flow.report.text import (
    Style,
    number,
    plural,
    printable,
    render_kernels,
    table,
    verdicts_line,
    violation_line,
    wrapped,
)

if TYPE_CHECKING:
    from gpuemu_flow.lint.diff import KernelDiff, MetricChange
    from gpuemu_flow.lint.kernel import KernelRecord, MachineMix, Occupancy
    from gpuemu_flow.report.document import ResultDiff

_MIX_SHOWN = 8
_STATUS_COLORS = {
    "regression": "31;1", "improvement": "32", "new": "36", "missing": "33", "refused": "33",
    "warning": "33",
}  # fmt: skip


def render_lint(report: RunReport, style: Style) -> str:
    if not report.kernels:
        return "no kernels are configured: add [[kernels]], or name .ptx or .cubin files"
    lines = render_kernels([replace(r, changes=()) for r in report.kernels], style)
    findings = [
        violation_line(found, entry.name, style)
        for entry in _entries(report.kernels)
        for found in entry.violations
        if found not in entry.errors
    ]
    lines += dict.fromkeys(findings)  # code shared by architectures is shown once
    unchecked: dict[tuple[str, str], list[str]] = {}
    for entry in _entries(report.kernels):
        for item in entry.unchecked:
            unchecked.setdefault((entry.name, item.reason), []).append(item.rule)
    lines += [
        printable(f"unchecked: {name} {reason}: {', '.join(dict.fromkeys(rules))}")
        for (name, reason), rules in unchecked.items()
    ]
    lines += [printable(str(problem)) for problem in report.problems]
    entries = list(_entries(report.kernels))
    lines.append(f"{plural(len(entries), 'kernel')} linted; {verdicts_line(report)}")
    return "\n".join(lines)


def _entries(results: Iterable[KernelResult]) -> Iterable[KernelRecord]:
    return (entry for result in results for entry in result.entries)


def render_artifacts(report: RunReport, style: Style) -> str:
    """Format the figures of each kernel and architecture, and the tool that each comes from."""
    lines = []
    for result in report.kernels:
        for entry in result.entries:
            lines += [*_figures(result, entry, style), ""]
        if not result.entries:
            name = printable(f"{result.kernel} {result.arch}".strip())
            reason = printable(result.reason)
            lines += [f"{style.paint(name, '1')}: {style.verdict(result.verdict)}: {reason}", ""]
    lines += [printable(str(problem)) for problem in report.problems]
    return "\n".join(lines).rstrip() or "no kernels are configured"


def _figures(result: KernelResult, entry: KernelRecord, style: Style) -> list[str]:
    metrics = entry.metrics

    def figure(value: int | None, unit: str = "") -> str:
        return "unknown" if value is None else f"{value}{unit}"

    title = f"{entry.name}  {entry.arch}"
    if result.kernel != entry.name:
        title += f"  ({result.kernel})"
    estimate = entry.metric_source == "estimate"
    source = f"figures from {entry.metric_source}" + (", not exact" if estimate else "")
    spills = figure(metrics.spill_instructions, " instructions")
    if metrics.spill_bytes:
        spills += f", {metrics.spill_bytes} bytes"
    rows = [
        ("file", entry.file),
        ("registers", f"{figure(metrics.registers)} per thread"),
        ("spills", spills),
        ("stack", figure(metrics.stack_bytes, " bytes per thread")),
        ("shared memory", figure(metrics.shared_bytes, " bytes per block, static")),
        ("occupancy", _occupancy(metrics.occupancy)),
        (
            "PTX",
            f"{figure(metrics.instructions)} instructions, "
            f"{figure(metrics.declared_registers)} virtual registers, "
            f"{figure(metrics.max_live)} live at most, {figure(metrics.local_bytes)} local bytes",
        ),
        ("PTX mix", _mix(metrics.families)),
        *_machine_rows(metrics.sass),
    ]
    lines = [f"{style.paint(printable(title), '1')}  {source}"]
    shown = [f"  {name:14}{printable(str(value))}" for name, value in rows if value]
    return lines + [line for row in shown for line in wrapped(row, 16)]


def _machine_rows(sass: MachineMix | None) -> list[tuple[str, str]]:
    if sass is None:
        return []
    total = f"{plural(sass.instructions, 'instruction')}, listed by {sass.source}"
    return [("machine code", total), ("machine mix", _mix(sass.families))]


def _occupancy(reached: Occupancy | None) -> str:
    if reached is None:
        return "unknown"
    assumed = " (assumed)" if reached.assumed_threads else ""
    return (
        f"{reached.fraction:.0%}: {plural(reached.blocks, 'block')} of "
        f"{reached.threads} threads{assumed}, limited by {' and '.join(reached.limited_by)}"
    )


def _mix(families: Mapping[str, int]) -> str:
    total = sum(families.values())
    largest = sorted(families.items(), key=lambda item: (-item[1], item[0]))[:_MIX_SHOWN]
    return ", ".join(f"{name} {count} ({count / total:.0%})" for name, count in largest if count)


def render_diff(
    kernels: Sequence[tuple[str, KernelDiff]],
    results: Sequence[ResultDiff],
    style: Style,
    *,
    title: str,
) -> str:
    lines = [title]
    counts: dict[str, int] = {}
    for name, diff in kernels:
        words = _words(diff)
        for word in words:
            counts[word] = counts.get(word, 0) + 1
        if words == ["unchanged"]:
            continue
        shown = " and ".join(style.paint(word, _STATUS_COLORS.get(word, "")) for word in words)
        label = f"{diff.name} {diff.arch}" + (f" ({name})" if name != diff.name else "")
        reason = f": {diff.reason}" if diff.reason else ""
        lines.append(f"{shown}  {printable(label + reason)}")
        lines += [f"  {j.kind}: {printable(j.message)}" for j in diff.judgements]
        rows = [_change_row(change) for change in (*diff.changes, *diff.families)]
        if rows:
            heading = ("figure", "old", "new", "delta", "percent")
            lines += [f"  {line}" for line in table(heading, rows, {0})]
        if len(set(diff.occupancy_limited_by)) > 1:
            before, after = diff.occupancy_limited_by
            lines.append(f"  occupancy limited by {before or 'unknown'}, now {after or 'unknown'}")
    for result in results:
        counts[result.status] = counts.get(result.status, 0) + 1
        if result.status != "unchanged":
            shown = style.paint(result.status, _STATUS_COLORS.get(result.status, ""))
            lines.append(f"{shown}  {printable(_result_text(result))}")
    summary = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    lines.append(summary or "nothing to compare")
    return "\n".join(lines)


def _words(diff: KernelDiff) -> list[str]:
    """Return ``regression`` and ``improvement`` as far as they apply, or else the diff's status."""
    words = []
    if diff.is_regression:
        words.append("regression")
    if diff.is_improvement:
        words.append("improvement")
    return words or [diff.status]


def _change_row(change: MetricChange) -> list[str]:
    def text(value: float | None) -> str:
        return "-" if value is None else f"{value:.4g}"

    delta = "-" if change.delta is None else f"{change.delta:+.4g}"
    percent = "-" if change.percent is None else f"{change.percent:+.1f} %"
    return [change.metric, text(change.old), text(change.new), delta, percent]


def _result_text(result: ResultDiff) -> str:
    name = f"{result.op} {result.dtype}"
    if not result.what:
        return f"{name}: not compared, judged on other cases than in the baseline"
    old, new = (
        "none" if v is None else v if "verdict" in result.what else number(float(v))
        for v in (result.old, result.new)
    )
    return f"{name}: {result.what} {old} -> {new}"
