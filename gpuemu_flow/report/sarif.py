"""Write lint findings as SARIF 2.1.0, which code review services show at the line.

Source: OASIS, "Static Analysis Results Interchange Format (SARIF) Version 2.1.0".
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from msgspec.structs import asdict

from gpuemu_flow import __version__
from gpuemu_flow.judge.results import CaseVerdict, RunReport
from gpuemu_flow.lint.kernel import KernelRecord, Violation
from gpuemu_flow.lint.rules import RULES
from gpuemu_flow.model.errors import Problem
from gpuemu_flow.model.types import FailureKind, Json, Verdict
from gpuemu_flow.report.document import FileLine, Report
from gpuemu_flow.report.formats import ReaderOptions
from gpuemu_flow.report.json_writer import dumps
from gpuemu_flow.report.report_text import headline
from gpuemu_flow.report.text import number, plural, printable, sandbox_levels

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def lint_to_sarif(report: RunReport) -> dict[str, Json]:
    """Return a report's lint findings as a SARIF log with one run. Accepted findings are included,
    with their justification."""
    index = {rule.id: number for number, rule in enumerate(RULES)}
    results: dict[str, dict[str, Json]] = {}
    for kernel in report.kernels:
        for entry in kernel.entries:
            for found in entry.violations:
                result = _result(found, entry, index)
                # If a source is built for several architectures, a line is reported once.
                results.setdefault(repr(result), result)
    failed = any(not problem.warning for problem in report.problems)
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "gpuemu-flow",
                        "version": __version__,
                        "rules": [
                            {
                                "id": rule.id,
                                "shortDescription": {"text": rule.what},
                                "fullDescription": {"text": rule.why},
                                "help": {"text": rule.instead},
                                "defaultConfiguration": {"level": _LEVELS[rule.severity]},
                            }
                            for rule in RULES
                        ],
                    }
                },
                "invocations": [
                    {
                        "executionSuccessful": not failed,
                        "toolExecutionNotifications": [_notice(p) for p in report.problems],
                    }
                ],
                "results": list(results.values()),
            }
        ],
    }


def _result(found: Violation, entry: KernelRecord, index: Mapping[str, int]) -> dict[str, Json]:
    # GitHub refuses a result without a line, so unknown lines get one.
    location = physical_location(found.file or entry.file, found.line or 1)
    location["logicalLocations"] = [{"name": entry.name, "kind": "function"}]
    result: dict[str, Json] = {
        "ruleId": found.rule,
        "level": _LEVELS[found.severity],
        "message": {"text": f"{entry.name}: {found.message}"},
        "locations": [location],
    }
    if found.rule in index:
        result["ruleIndex"] = index[found.rule]
    if found.allowed:
        result["suppressions"] = [{"kind": "external", "justification": found.allowed}]
    return result


def physical_location(file: str, line: int) -> dict[str, Json]:
    path = PurePath(file)
    uri = uri_path(path.as_posix())
    if path.is_absolute():
        uri = f"file://{uri}"
    physical: dict[str, Json] = {"artifactLocation": {"uri": uri}}
    if line:
        physical["region"] = {"startLine": line}
    return {"physicalLocation": physical}


def uri_path(path: str) -> str:
    try:
        return quote(path.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return quote(path.encode("utf-8", "replace"))


def _notice(problem: Problem) -> dict[str, Json]:
    notice: dict[str, Json] = {
        "level": "warning" if problem.warning else "error",
        "message": {"text": f"{problem.slug}: {problem.message}"},
    }
    if problem.file:
        notice["locations"] = [physical_location(problem.file, problem.line)]
    return notice


MAX_RESULTS = 25_000
"""Maximum number of results per run; GitHub refuses more, and shows only 5,000."""
MAX_TEXT = 700
MAX_SAID = 300
"""Maximum number of characters of a finding, so that the command to reproduce it has room."""
MAX_COMMAND = 260
MAX_NAME = 200
"""Maximum number of characters of a name; configured names are not longer."""
MAX_SEEDS = 10

_RULES = {
    FailureKind.TOLERANCE: "an element differs from the reference by more than its tolerance",
    FailureKind.NAN: "NaN where the reference has a number, or the reverse",
    FailureKind.INF: "Inf where the reference has a finite number, or the reverse",
    FailureKind.SHAPE: "an output has another shape",
    FailureKind.OUTPUT_NAMES: "an output is missing, or one is given that was not expected",
    FailureKind.DTYPE: "an output has another dtype",
    FailureKind.INVARIANT: "an invariant of the op does not hold",
    FailureKind.REFERENCE: "the reference failed, so that nothing is known of the op",
    FailureKind.EXECUTION: "the op crashed, ended in an error or took too long",
    FailureKind.INPUT_MODIFIED: "the op changed an input that it may not change",
    FailureKind.UNWRITTEN: "the op did not write all of its output",
    FailureKind.OUT_OF_BOUNDS: "the op wrote outside of its output",
    FailureKind.OUT_OF_BOUNDS_READ: "the op read outside of its tensors",
    FailureKind.MISALIGNED: "a kernel accessed memory at an address that its size does not divide",
    FailureKind.UNINITIALIZED_READ: "a kernel read memory that nobody had written",
    FailureKind.RACE: "threads of a kernel accessed one place without anything that orders them",
    FailureKind.BARRIER: "threads of a kernel did not come together at a barrier",
    FailureKind.TRAP: "a kernel stopped itself: a failed assertion, or a trap",
    FailureKind.KERNEL_BYPASSED: "a library computed what a kernel of the op had to",
    FailureKind.GENERATOR: "a function that makes an input failed, so that nothing was run",
    FailureKind.NON_DETERMINISTIC: "two runs on the same inputs gave different outputs",
}
"""Description of each rule ``validation/KIND``."""


def write(report: Report, _look: ReaderOptions) -> str:
    return dumps(report_to_sarif(report)) + "\n"


def report_to_sarif(report: Report) -> dict[str, Json]:
    """Return one SARIF run with failing ops, lint findings and regressions."""
    whole = lint_to_sarif(report.run)
    (run,) = whole["runs"]
    lints = run["results"]
    for result in lints:
        result["message"]["text"] = _text(result["message"]["text"])
        logical = result["locations"][0]["logicalLocations"][0]
        logical["name"] = _text(logical["name"], MAX_NAME)
        artifact = result["locations"][0]["physicalLocation"]["artifactLocation"]
        artifact["uri"] = _in_repository(report, artifact["uri"])
    rules = [
        {
            "id": f"validation/{kind.value}",
            "name": kind.value,
            "shortDescription": {"text": text[0].upper() + text[1:]},
            "defaultConfiguration": {"level": "error"},
        }
        for kind, text in _RULES.items()
    ]
    rules.append(
        {
            "id": "regression",
            "name": "Regression",
            "shortDescription": {"text": "Something got worse"},
            "defaultConfiguration": {"level": "error"},
        }
    )
    for notice in run["invocations"][0]["toolExecutionNotifications"]:
        notice["message"]["text"] = _text(notice["message"]["text"])
    driver = run["tool"]["driver"]
    driver["rules"] = [*driver["rules"], *rules]
    index = {rule["id"]: number for number, rule in enumerate(driver["rules"])}
    found = [*_failures(report), *_without_cases(report), *lints, *_regressions(report)]
    run["invocations"][0]["exitCode"] = report.exit_code
    if report.missing or report.timed_out:
        level = "warning" if report.exit_code == 0 else "error"
        notice = {"level": level, "message": {"text": _text(headline(report))}}
        run["invocations"][0]["toolExecutionNotifications"].append(notice)
    for result in found:
        if result["ruleId"] in index:
            result["ruleIndex"] = index[result["ruleId"]]
    run["results"] = found[:MAX_RESULTS]
    _fingerprint(run["results"])
    if len(found) > MAX_RESULTS:
        text = f"{len(found) - MAX_RESULTS} more results were left out"
        run["invocations"][0]["toolExecutionNotifications"].append(
            {"level": "warning", "message": {"text": text}}
        )
    run["automationDetails"] = {"id": f"gpuemu-flow/{printable(report.mode)[:100]}/"}
    run["properties"] = {
        "verdict": report.verdict,
        "created": report.created,
        "drawnSeed": report.run.drawn_seed,
        "sandbox": sandbox_levels(report.run),
        "notValidated": [_text(f"{m.what}: {m.reason}") for m in report.missing],
        "unjudged": [
            {
                "op": _text(r.op, MAX_NAME),
                "dtype": r.dtype,
                "verdict": r.verdict.value,
                "share": r.unjudged,
                "sandbox": r.sandbox,
                "reason": _text(r.reason),
            }
            for r in report.run.results
            if r.cases
        ],
    }
    return whole


def _in_repository(report: Report, uri: str) -> str:
    """Convert a URI relative to the workspace to one relative to the repository."""
    if not report.prefix or "://" in uri or uri.startswith("/"):
        return uri
    return f"{uri_path(report.prefix)}/{uri}"


def _failures(report: Report) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str], list[CaseVerdict]] = {}
    for failure in report.worst_first():
        first = failure.result.failures[0] if failure.result.failures else None
        if failure.result.verdict in (Verdict.FAILED, Verdict.ERROR):
            kind = first.kind if first is not None else FailureKind.EXECUTION
            groups.setdefault((failure.op, kind.value), []).append(failure)
    return [_group(report, op, kind, members) for (op, kind), members in groups.items()]


def _group(report: Report, op: str, kind: str, members: list[CaseVerdict]) -> dict[str, Any]:
    worst = members[0]
    first = worst.result.failures[0] if worst.result.failures else None
    said = first.message if first is not None else worst.result.verdict.value
    dtypes = list(dict.fromkeys(m.case.dtype for m in members))
    facts = (
        f"{plural(len(members), 'case')} in {', '.join(dtypes)}; seed {worst.case.seed}, "
        f"max abs {number(worst.result.stats.max_abs)}; {worst.reproduce}"
    )
    text = f"{_text(op, MAX_NAME)}: {_text(said, MAX_SAID)} ({facts})"
    return {
        "ruleId": f"validation/{kind}",
        "level": "error",
        "message": {"text": _text(text)},
        "locations": [_location(report.place_of(worst), op)],
        "occurrenceCount": len(members),
        "properties": {
            "op": _text(op, MAX_NAME),
            "dtypes": dtypes,
            "seeds": [str(m.case.seed) for m in members[:MAX_SEEDS]],
            "reproduce": _text(worst.reproduce, MAX_COMMAND),
        },
    }


def _without_cases(report: Report) -> list[dict[str, Any]]:
    return [
        {
            "ruleId": f"validation/{kind.value}",
            "level": "error",
            "message": {"text": _text(f"{r.op} {r.dtype}: {r.reason}")},
            "locations": [_location(report.places.get(r.op), r.op)],
        }
        for r in report.run.results
        for kind, told in (
            (FailureKind.EXECUTION, r.verdict is Verdict.ERROR and not r.cases),
            (FailureKind.TOLERANCE, r.failed_as_a_whole),
        )
        if told
    ]


def _regressions(report: Report) -> list[dict[str, Any]]:
    level = "error" if report.fail_on_regression else "warning"
    return [
        {
            "ruleId": "regression",
            "level": level,
            "message": {"text": _text(worse.sentence)},
            "locations": [_location(report.place_of_regression(worse), "regression")],
            "properties": {
                name: _text(value, MAX_NAME) if isinstance(value, str) else value
                for name, value in asdict(worse).items()
            },
        }
        for worse in report.regressions
    ]


def _text(text: str, limit: int = MAX_TEXT) -> str:
    flat = printable(text[: limit + 1])
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def _location(place: FileLine | None, name: str) -> dict[str, Json]:
    """Make the location of a result; without a place, use the first line of ``gpuemu.toml``. Code
    review services require a file in each location."""
    at = place or FileLine("gpuemu.toml")
    found = physical_location(at.file, at.line)
    found["logicalLocations"] = [{"name": _text(name, MAX_NAME), "kind": "function"}]
    return found


def _fingerprint(results: Iterable[dict[str, Any]]) -> None:
    """Set each result's fingerprint, a digest of rule, subject, file and a counter. The digest does
    not cover the line number, so that the fingerprint stays the same when the line moves."""
    counts: dict[tuple[str, str, str], int] = {}
    for result in results:
        location = result["locations"][0]
        subject = _subject(location)
        uri = location["physicalLocation"]["artifactLocation"]["uri"]
        key = (result["ruleId"], subject, uri)
        counts[key] = counts.get(key, 0) + 1
        text = "\0".join((*key, str(counts[key])))
        digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]
        result["partialFingerprints"] = {"gpuemuFlow/v1": digest}


def _subject(location: Mapping[str, Any]) -> str:
    names = location.get("logicalLocations") or [{"name": ""}]
    return str(names[0]["name"])
