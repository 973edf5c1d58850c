"""A shard's report as JSON, from which `report --merge` rebuilds it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from itertools import islice

from jsonschema import Draft7Validator
from jsonschema.exceptions import best_match
from jsonschema.protocols import Validator
from jsonschema.validators import extend
from msgspec import to_builtins
from msgspec.structs import asdict, replace

from gpuemu_flow.judge.results import (
    Absence,
    CaseVerdict,
    KernelChange,
    KernelResult,
    KnownFailure,
    Minimal,
    OpResult,
    Regression,
    ResultChange,
    RunReport,
    TaskCounts,
    plain,
)
from gpuemu_flow.lint.kernel import KernelRecord
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.errors import Problem
from gpuemu_flow.model.types import BAD, Case, CheckResult, Json, Verdict
from gpuemu_flow.report.document import FileLine, Report, ShardPart, TaskState
from gpuemu_flow.tasks import stages

FORMAT = 1
_OF_REPORT = (
    "project", "project_version", "mode", "created", "version", "prefix", "fail_on_regression",
    "timed_out", "require_all", "places", "kernel_places", "regressions", "edges",
)  # fmt: skip
_OF_RUN = (
    "tasks", "executed", "problems", "changes", "duration_s", "interrupted", "drawn_seed",
    "build_only", "nothing_due",
)  # fmt: skip
_FROM_CASES = ("failures", "passing")
"""Fields of a result that are rebuilt from the cases."""


def document_of(report: Report) -> dict[str, Json]:
    run = report.run
    results = [asdict(result) for result in run.results]
    document: dict[str, Json] = plain(
        {
            "format": FORMAT,
            **{name: getattr(report, name) for name in _OF_REPORT},
            **{name: getattr(run, name) for name in _OF_RUN},
            "results": [{n: r[n] for n in r if n not in _FROM_CASES} for r in results],
            "kernels": [
                {**asdict(kernel), "entries": to_builtins(kernel.entries)} for kernel in run.kernels
            ],
            "cases": [[c.op, c.case.to_json(), c.result.to_json()] for c in report.cases],
            "known": [[*key, known] for key, known in run.known.items()],
            "minima": [[*key, shown] for key, shown in run.minima.items()],
            "states": report.tasks,
        }
    )
    return document


def rebuilt(part: ShardPart, data: Mapping[str, Json]) -> Report:
    """Rebuild a report from a document that is valid according to ``schemas/report.schema.json``.
    Raises ValueError if a name is unknown, such as a kind of failure; if a case passed although
    nothing was compared; or if a result is missing, or contradicts its cases."""
    cases = tuple(
        CaseVerdict(op, Case.from_json(case), CheckResult.from_json(result))
        for op, case, result in data["cases"]
    )
    by_op: dict[tuple[str, str], list[CaseVerdict]] = {}
    for case in cases:
        by_op.setdefault((case.op, case.case.dtype), []).append(case)
    results = convert(data["results"], tuple[OpResult, ...], strict=False)  # which reads "NaN"
    run = RunReport(
        tasks=convert(data["tasks"], TaskCounts),
        executed=tuple(data["executed"]),
        results=tuple(_with_cases(r, by_op.get((r.op, r.dtype), [])) for r in results),
        problems=convert(data["problems"], tuple[Problem, ...]),
        changes=convert(data["changes"], tuple[ResultChange, ...]),
        duration_s=data["duration_s"],
        interrupted=data["interrupted"],
        kernels=tuple(_kernel(kernel) for kernel in data["kernels"]),
        drawn_seed=data["drawn_seed"],
        build_only=data["build_only"],
        nothing_due=data["nothing_due"],
        minima={
            (op, seed, dtype): convert(shown, Minimal, strict=False)
            for op, seed, dtype, shown in data["minima"]
        },
        known={
            (op, seed, dtype): convert(known, KnownFailure)
            for op, seed, dtype, known in data["known"]
        },
    )
    report = Report(
        run=run,
        cases=cases,
        places=convert(data["places"], dict[str, FileLine]),
        kernel_places=convert(data["kernel_places"], dict[str, FileLine]),
        regressions=convert(data["regressions"], tuple[Regression, ...]),
        tasks=convert(data["states"], tuple[TaskState, ...]),
        edges=convert(data["edges"], tuple[tuple[str, str], ...]),
        shard=part,
        **{name: data[name] for name in _OF_REPORT[: _OF_REPORT.index("places")]},
    )
    _check_results(report)
    return report


def _with_cases(result: OpResult, own: Sequence[CaseVerdict]) -> OpResult:
    """Add the lists of failing and passing cases; `own` are the cases of the result."""
    good = (Verdict.PASSED, Verdict.SKIPPED)
    failures = [c for c in own if c.result.verdict not in good]
    passing = [c.case for c in own if c.result.verdict is Verdict.PASSED]
    return replace(
        result,
        failures=tuple(sorted(failures, key=lambda failure: failure.case.numel)),
        passing=tuple(passing) if failures else (),
    )


def _kernel(data: Mapping[str, Json]) -> KernelResult:
    return KernelResult(
        kernel=data["kernel"],
        arch=data["arch"],
        verdict=Verdict(data["verdict"]),
        reason=data["reason"],
        cached=data["cached"],
        absence=Absence(data["absence"]),
        entries=convert(data["entries"], tuple[KernelRecord, ...]),
        changes=convert(data["changes"], tuple[KernelChange, ...]),
    )


def _check_results(report: Report) -> None:
    """Raise ValueError if a result is missing, or is "passed" although one of its cases is not."""
    results = {(result.op, result.dtype): result for result in report.run.results}
    kernels = {kernel.kernel for kernel in report.run.kernels}
    for case in report.cases:
        if (case.op, case.case.dtype) not in results:
            raise ValueError(f"there are cases of {case.op} {case.case.dtype}, but no result")
    for task in report.tasks if not report.run.interrupted else ():
        # A task without a status was not selected: words and dtypes may leave tasks out.
        lost = task.status and (
            (task.stage == stages.COMPARE and (task.subject, task.part) not in results)
            or (task.stage == stages.LINT and task.subject not in kernels)
        )
        if lost:
            raise ValueError(f"the result of {task.name} is missing")
    for result in results.values():
        bad = sum(failure.result.verdict in BAD for failure in result.failures)
        wrong = result.failed + result.errors + bad
        if result.verdict is Verdict.PASSED and wrong:
            raise ValueError(f"{result.op} {result.dtype} passed, but not all of its cases did")


# Check the ``shard`` object of another machine's report against the schema of reports.

_LOOKED_AT = 20
_LONGEST = 300


def violation(shard: Json) -> str:
    """Return the most relevant violation of the schema in the ``shard`` object of a report."""
    worst = best_match(islice(_validator().iter_errors(shard), _LOOKED_AT))
    if worst is None:
        return ""
    return f"{worst.json_path.replace('$', 'shard', 1)}: {worst.message}"[:_LONGEST]


@lru_cache
def _validator() -> Validator:
    text = (files("gpuemu_flow") / "schemas" / "report.schema.json").read_text("utf-8")
    # JSON Schema accepts 1.0 as an integer, but sizes and seeds must not be floats.
    exact = Draft7Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    kind: type[Validator] = extend(  # type: ignore[no-untyped-call]  # its stub has no types
        Draft7Validator, type_checker=exact
    )
    return kind({"$ref": "#/definitions/shard", "definitions": json.loads(text)["definitions"]})
