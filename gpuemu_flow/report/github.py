"""Output for GitHub: annotations at lines, and the summary of a job."""

from __future__ import annotations

from collections.abc import Iterator

from gpuemu_flow.judge.results import CaseVerdict
from gpuemu_flow.model.types import BAD, Verdict
from gpuemu_flow.report import report_text
from gpuemu_flow.report.document import FileLine, Report, kind_of
from gpuemu_flow.report.report_text import headline
from gpuemu_flow.report.text import minimal_lines, plural

MAX_ANNOTATIONS = 10
"""Maximum number of annotations; GitHub shows no more per step."""
MAX_SUMMARY_BYTES = 1 << 20
_MAX_MESSAGE = 600


def workflow_commands(report: Report) -> list[str]:
    """List the workflow commands for a report, the worst problems first. If there are too many
    problems, a command with the number of omitted ones is added. If the run ran out of time, or
    lacks required results, the last command says so."""
    last = []
    if report.timed_out or (report.require_all and report.missing):
        word = "warning" if report.exit_code == 0 else "error"
        last.append(f"::{word} title=gpuemu-flow::{_data(_short(headline(report)))}")
    found = list(_all(report))
    if len(found) + len(last) > MAX_ANNOTATIONS:
        kept = found[: MAX_ANNOTATIONS - 1 - len(last)]
        more = f"::error title=gpuemu-flow::{len(found) - len(kept)} more; see the report"
        found = [*kept, more]
    return [*found, *last]


def _all(report: Report) -> Iterator[str]:
    counts = report_text.count_causes(report)
    groups: dict[tuple[str, str], list[CaseVerdict]] = {}
    for failure in report.worst_first():
        if failure.result.verdict in BAD:
            groups.setdefault((failure.op, kind_of(failure)), []).append(failure)
    for (op, kind), alike in groups.items():
        failure = alike[0]
        text = next((f.message for f in failure.result.failures), failure.result.verdict.value)
        lines = [f"{op}: {kind} in {plural(len(alike), 'case')}: {_short(text)}"]
        what = report_text.describe_failure(report, failure, counts[report_text.kind_key(failure)])
        lines += [what] if what not in ("", report_text.one_line(text)) else []
        minimal = report.run.minimal_of(failure)
        block = [] if minimal is None else minimal_lines(minimal, failure.reproduce)
        message = "\n".join([*block, *lines] if block else [*lines, failure.reproduce])
        yield _command(report.place_of(failure), f"{op}: {kind}", message)
    for result in report.run.results:
        broken = result.verdict is Verdict.ERROR and not result.cases
        if broken or result.failed_as_a_whole:
            place = report.places.get(result.op)
            title = f"{result.op}: {result.verdict.value}"
            yield _command(place, title, _short(result.reason))
    yield from _lints(report)
    if report.fail_on_regression:
        for worse in report.regressions:
            yield _command(report.place_of_regression(worse), "regression", _short(worse.sentence))
    for problem in report.run.problems:
        if not problem.warning:
            yield _error(problem.file, problem.line, problem.slug, _short(str(problem)))


def _lints(report: Report) -> Iterator[str]:
    shown = set()
    for kernel in report.run.kernels:
        place = report.kernel_places.get(kernel.kernel)
        for entry in kernel.entries:
            for violation in entry.errors:
                file = place.file if place is not None else ""
                if violation.file:
                    inside = violation.file
                    file = f"{report.prefix}/{inside}" if report.prefix else inside
                text = f"{entry.name}: {_short(violation.message)}"
                line = _error(file, violation.line, violation.rule, text)
                if line not in shown:
                    shown.add(line)
                    yield line
        if kernel.verdict is Verdict.ERROR and not kernel.entries:
            text = f"{kernel.kernel}: {_short(kernel.reason)}"
            yield _command(place, "kernel", text)


def _command(place: FileLine | None, title: str, message: str) -> str:
    return _error(
        place.file if place is not None else "",
        place.line if place is not None else 0,
        title,
        message,
    )


def _error(file: str, line: int, title: str, message: str) -> str:
    properties = [("file", file)] if file else []
    properties += [("line", str(line))] if file and line else []
    properties.append(("title", f"gpuemu-flow: {title}"))
    words = ",".join(f"{name}={_property(value)}" for name, value in properties)
    return f"::error {words}::{_data(message)}"


def _short(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 3] + "..."


def _data(text: str) -> str:
    kept = "".join(c for c in text if c.isprintable() or c in "\r\n\t")
    return kept.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
