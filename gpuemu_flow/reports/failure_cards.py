"""Make the cards of the HTML report: failures, and other reasons why a run did not pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from gpuemu_flow.reports import case_lines, charts
from gpuemu_flow.reports.text import note_lines
from gpuemu_flow.results.document import CaseVerdict, Picture, Report, kind_of
from gpuemu_flow.results.model import CaseFailure
from gpuemu_flow.store.failure_record import FailureRecord
from gpuemu_flow.types import Verdict

WRONG = (Verdict.FAILED, Verdict.ERROR)
NOT_DRAWN = "left out, as the page would become too large"
MAX_NOTE = 2000
MAX_MESSAGE = 800
MAX_MESSAGES = 3


class FailureCard(Struct, frozen=True):
    """One failure as the page shows it.

    `lead` is the line that stays visible when the card is folded. `common` is true if at least half
    of the `count` failing cases that the card stands for have the same cause.
    """

    anchor: str
    lead: str
    failure: CaseFailure
    kind: str
    name: str
    count: int
    common: bool
    messages: tuple[str, ...]
    cause: str
    place: str
    failure_id: str
    minimized: FailureRecord | None
    notes: str
    picture: Picture | None
    heat: charts.HeatMap | None
    scatter: charts.Scatter | None
    bars: tuple[charts.Bar, ...]


class OtherProblem(Struct, frozen=True):
    """An op or kernel that did not pass but has no failing case: verdict, text and location."""

    verdict: str
    name: str
    text: str
    anchor: str


def cards(report: Report, most: int, drawn: int) -> tuple[list[FailureCard], list[CaseFailure]]:
    """Return a card for each op, dtype and kind, and the failing cases without a card.

    Both lists are sorted, worst first.
    """
    counts = case_lines.count_causes(report)
    chosen = report.representatives()[:most]
    found = []
    for n, failure in enumerate(chosen, 1):
        same = counts[case_lines.kind_key(failure)]
        found.append(_card(report, failure, f"failure-{n}", n <= drawn, same))
    shown = {id(failure) for failure in chosen}
    return found, [f for f in report.worst_first() if id(f) not in shown]


def _card(
    report: Report, failure: CaseFailure, anchor: str, has_picture: bool, counts: Counter[str]
) -> FailureCard:
    """Make the card of one failing case that represents its op, dtype and kind."""
    key = report.key(failure)
    known = report.known.get(key)
    place = report.place_of(failure)
    picture = report.pictures.get(key)
    if picture is not None and picture.rows and not has_picture:
        picture = Picture(note=NOT_DRAWN, inputs=picture.inputs)
    drawn = picture is not None and bool(picture.rows)
    notes = "\n".join(note_lines(failure.result))
    cause = report.causes.get(key, "")
    return FailureCard(
        anchor=anchor,
        lead=case_lines.describe_failure(report, failure, counts),
        failure=failure,
        kind=kind_of(failure),
        name=CaseVerdict(failure.op, failure.case, failure.result).name,
        count=counts.total(),
        common=case_lines.is_common(cause, counts),
        messages=tuple(f.message[:MAX_MESSAGE] for f in failure.result.failures[:MAX_MESSAGES]),
        cause=cause,
        place=f"{place.file}:{place.line}" if place is not None else "",
        failure_id="" if known is None else known.id,
        minimized=None if known is None else known.minimized,
        notes=notes[:MAX_NOTE],
        picture=picture,
        heat=charts.heat_map(picture) if picture is not None and drawn else None,
        scatter=charts.scatter(picture) if picture is not None and drawn else None,
        bars=charts.histogram(picture) if picture is not None and drawn else (),
    )


def besides(report: Report) -> Iterator[OtherProblem]:
    """Yield the reasons, other than failing cases, why a run did not pass."""
    for problem in report.run.problems:
        if not problem.warning:
            text = problem.message[:MAX_MESSAGE]
            yield OtherProblem("error", problem.slug, text, "problems")
    for result in report.run.results:
        if result.verdict in WRONG and not result.failures:
            name = f"{result.op} {result.dtype}"
            yield OtherProblem(result.verdict.value, name, result.reason[:MAX_MESSAGE], "ops")
    for kernel in report.run.kernels:
        if kernel.verdict in WRONG:
            found = [
                f"{entry.name}: {violation.message}"
                for entry in kernel.entries
                for violation in entry.errors
            ]
            text = found[0] if found else kernel.reason
            more = f", and {len(found) - 1} more" if len(found) > 1 else ""
            name = f"kernel {kernel.kernel} {kernel.arch}".rstrip()
            yield OtherProblem(kernel.verdict.value, name, text[:MAX_MESSAGE] + more, "kernels")
    if report.fail_on_regression and report.regressions:
        more = f", and {len(report.regressions) - 1} more" if len(report.regressions) > 1 else ""
        text = report.regressions[0].sentence[:MAX_MESSAGE] + more
        yield OtherProblem("failed", "regression", text, "baseline")
