"""Format a report as readable text, or as the lines that ``test`` prints for editors to parse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from gpuemu_flow.judge.results import Absence, CaseVerdict, KernelResult, OpResult
from gpuemu_flow.model.types import Verdict
from gpuemu_flow.report.document import CHANGED, MISSING, BaselineDiff, Report, kind_of
from gpuemu_flow.report.failure_text import failure_row
from gpuemu_flow.report.formats import ReaderOptions
from gpuemu_flow.report.text import (
    Style,
    condition_lines,
    duration,
    number,
    plural,
    printable,
    render_run,
    share,
    time_taken,
)

_WORDS = {
    Verdict.PASSED: "PASS",
    Verdict.FAILED: "FAIL",
    Verdict.ERROR: "ERROR",
    Verdict.INCONCLUSIVE: "UNSURE",
    Verdict.SKIPPED: "SKIP",
}
MAX_RECORDED = 10
MAX_NAMES = 40
"""Maximum number of ops and kernels without a verdict that the first line names."""
_ABSENT = {Absence.CUT_OFF: "cut off by the time limit: ", Absence.UNABLE: "", Absence.OUTDATED: ""}
MAX_FAIL_LINES = 3
"""Maximum number of failing cases per op and dtype that ``test`` lists."""


def write(report: Report, look: ReaderOptions) -> str:
    """Return the report as readable text; `look` holds the options of the reader."""
    style = Style(look.color)
    return render_report(report, style, warn_threshold=look.warn_threshold) + "\n"


def render_report(report: Report, style: Style, *, warn_threshold: float) -> str:
    """Format a report as ``run`` prints it, with the totals and any comparison with a baseline."""
    lines = [headline(report)] if report.missing or report.timed_out else []
    lines += [render_run(report.run, style, warn_threshold=warn_threshold)]
    lines += list(_after(report))
    return "\n".join(lines)


MAX_REASON = 120
"""Maximum number of characters of a common reason of missing verdicts, which is shown first."""


def headline(report: Report) -> str:
    said = f"{report.verdict.upper()}: {len(report.missing)} not validated"
    groups = []
    for absence, words in _ABSENT.items():
        absent = [m for m in report.missing if m.absence is absence]
        names = [printable(m.what) for m in absent]
        if names:
            more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
            reasons = {printable(m.reason) for m in absent}
            why = reasons.pop() if len(names) > 1 and len(reasons) == 1 else ""
            more += f" ({why})" if 0 < len(why) <= MAX_REASON else ""
            groups.append(f"{words}{', '.join(names[:MAX_NAMES])}{more}")
    if report.timed_out and not any(m.absence is Absence.CUT_OFF for m in report.missing):
        groups.insert(0, "the time limit came before the last tasks")
    return f"{said}: {'; '.join(groups)}"


def render_test(report: Report, style: Style, *, warn_threshold: float) -> str:
    """Format one line per op and dtype, and ``[FAIL] OP (seed: N): MESSAGE`` for failing cases.
    Editors search these lines for an op's name and ``FAIL``, so no line of a passed op contains
    both."""
    checks = len(report.run.results) + len(report.run.kernels)
    lines = [f"{plural(checks, 'check')}, mode {printable(report.mode)}"]
    for result in report.run.results:
        lines += _op_lines(result, style)
    lines += [_kernel_line(kernel, style) for kernel in report.run.kernels]
    close = [
        r
        for r in report.run.results
        if r.verdict is Verdict.PASSED and r.tolerance_used > warn_threshold
    ]
    lines += [
        f"warning: {printable(r.op)} {r.dtype} used {r.tolerance_used:.0%} of its tolerance"
        for r in close
    ]
    lines += condition_lines(report.run)
    lines += [printable(str(problem)) for problem in report.run.problems]
    lines += list(_after(report))
    return "\n".join(lines)


def _after(report: Report) -> Iterator[str]:
    if report.recorded:
        yield f"{plural(len(report.recorded), 'recorded failure')} besides, newest first:"
        yield from (f"  {failure_row(record)}" for record in report.recorded[:MAX_RECORDED])
    if report.baseline is not None:
        count = len(report.regressions)
        yield (
            f"against baseline {printable(report.baseline.baseline.tag)}: "
            f"{plural(count, 'regression') if count else 'nothing got worse'}"
        )
        yield from _not_compared(report.baseline)
    if report.baseline is not None or report.fail_on_regression:
        yield from (f"regression: {printable(r.sentence)}" for r in report.regressions)
    yield totals_line(report)


def _not_compared(found: BaselineDiff) -> Iterator[str]:
    lost = [r for r in found.results if r.status == MISSING and r.old is not None]
    other = [r for r in found.results if r.status == CHANGED and not r.what]
    for results, words in ((lost, "judged then, not now"), (other, "judged on other cases")):
        if results:
            named = ", ".join(f"{printable(r.op)} {r.dtype}" for r in results[:MAX_NAMES])
            more = len(results) - MAX_NAMES
            yield f"  not compared, {words}: {named}" + (f" and {more} more" if more > 0 else "")


def totals_line(report: Report) -> str:
    """Return the overall verdict, and the number of cases by verdict."""
    words = ", ".join(f"{n} {word}" for word, n in counts(report.totals)) or "nothing checked"
    return f"{report.verdict.upper()}: {words}{time_taken(report.run)}"


def counts(totals: Mapping[str, int]) -> list[tuple[str, int]]:
    return [
        ("in error" if name == "errors" else name, count)
        for name, count in totals.items()
        if name != "total" and count
    ]


def _word(verdict: Verdict, style: Style) -> str:
    return f"[{style.verdict(verdict, word=_WORDS[verdict])}]"


def _op_lines(result: OpResult, style: Style) -> Iterator[str]:
    name = printable(result.op)
    word = _word(result.verdict, style)
    if not result.cases:
        why = f": {printable(result.reason)}" if result.reason else ""
        yield f"{word} {name} {result.dtype}{why}"
        return
    if result.verdict is Verdict.PASSED:
        yield (
            f"{word} {name} {result.dtype}: {result.passed}/{result.cases} cases, "
            f"max abs {number(result.max_abs)}, {share(result.tolerance_used)} of the tolerance, "
            f"{duration(result.duration_s)}"
        )
        return
    failing = [f for f in result.failures if f.result.verdict in (Verdict.FAILED, Verdict.ERROR)]
    for failure in failing[:MAX_FAIL_LINES]:
        first = failure.result.failures[0] if failure.result.failures else None
        message = failure.result.verdict.value if first is None else first.message
        kind = "" if first is None else f" [{first.kind.value}]"
        text = " ".join(printable(message).split())
        # An error is FAIL here, too, since editors know no other word.
        yield (
            f"{_word(Verdict.FAILED, style)} {name} (seed: {failure.case.seed}): {text}{kind} "
            f"dtype: {failure.case.dtype}"
        )
    more = len(failing) - MAX_FAIL_LINES
    counts = f"{result.passed}/{result.cases} cases passed"
    rest = f", {more} more like these" if more > 0 else ""
    rest += f": {printable(result.reason)}" if result.failed_as_a_whole else ""
    yield f"{word} {name} {result.dtype}: {counts}{rest}"


def _kernel_line(kernel: KernelResult, style: Style) -> str:
    found = [violation for entry in kernel.entries for violation in entry.errors]
    why = found[0].message if found else kernel.reason
    name = printable(f"{kernel.kernel} {kernel.arch}".rstrip())
    text = f"{_word(kernel.verdict, style)} kernel {name}"
    return f"{text}: {printable(why)}" if why else text


# Describe a failing case in one line, and count cases of the same kind by cause.

MAX_LINE = 220

Kind = tuple[str, str, str]
"""Op, dtype and kind of failure."""


def kind_key(failure: CaseVerdict) -> Kind:
    """Return the op, dtype and kind of a failing case: the key for grouping cases."""
    return failure.op, failure.case.dtype, kind_of(failure)


def count_causes(report: Report) -> Mapping[Kind, Counter[str]]:
    """Count the failing cases of each kind by cause; '' stands for an unknown cause."""
    found: dict[Kind, Counter[str]] = {}
    for failure in report.run.failures:
        cause = report.causes.get(report.key(failure), "")
        found.setdefault(kind_key(failure), Counter())[cause] += 1
    return found


def is_common(cause: str, counts: Counter[str]) -> bool:
    """Tell whether at least half of the cases in `counts` have this cause."""
    return 2 * counts[cause] >= counts.total()


def describe_failure(report: Report, failure: CaseVerdict, counts: Counter[str]) -> str:
    """Describe a failing case in one line: its cause, then its diagnosis or first message. The
    cause is left out if it is unknown, or if fewer than half of the cases in `counts` have it."""
    result = failure.result
    cause = report.causes.get(report.key(failure), "")
    said = result.failures[0].message if result.failures else ""
    # A diagnosis is shorter than numbers of elements, and more informative.
    told = result.notes if result.verdict is Verdict.FAILED else ()
    text = " ".join((told[0] if told else said).split())
    if cause and is_common(cause, counts):
        text = f"{cause}: {text}" if text else cause
    return one_line(text)


def one_line(text: str) -> str:
    """Fold a text to one line of at most `MAX_LINE` characters."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_LINE else text[: MAX_LINE - 1] + "…"
