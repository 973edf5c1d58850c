"""Convert a shard's report to the JSON from which `report --merge` rebuilds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import msgspec
from msgspec import convert, to_builtins

from gpuemu_flow.cases.cause import Cause
from gpuemu_flow.errors import Problem
from gpuemu_flow.results.changes import KernelChange, ResultChange
from gpuemu_flow.results.document import (
    CaseVerdict,
    FileLine,
    KnownFailure,
    Report,
    ShardPart,
    TaskState,
)
from gpuemu_flow.results.model import (
    Absence,
    CaseFailure,
    KernelResult,
    OpResult,
    RunReport,
    TaskCounts,
)
from gpuemu_flow.results.regressions import Regression
from gpuemu_flow.tasks import stages
from gpuemu_flow.types import (
    BAD,
    Case,
    CheckResult,
    Json,
    Verdict,
    number_from_json,
    number_to_json,
)

FORMAT = 1
_NUMBERS = ("max_abs", "max_rel", "max_ulp", "tolerance_used", "unjudged", "duration_s")
_PLAIN = (
    "op", "dtype", "cases", "passed", "failed", "inconclusive", "errors", "skipped", "cached",
    "reason", "sandbox",
)  # fmt: skip
_FLAGS = ("fail_on_regression", "timed_out", "require_all")
_WORDS = ("project", "project_version", "mode", "created", "version", "prefix")


def document_to_json(report: Report) -> dict[str, Json]:
    """Return a report as JSON, without drawings, history and baseline; `rebuilt` is the inverse."""
    run = report.run
    return {
        "format": FORMAT,
        **{name: getattr(report, name) for name in (*_WORDS, *_FLAGS)},
        "tasks": dict(vars(run.tasks)),
        "executed": list(run.executed),
        "results": [_result(result) for result in run.results],
        "problems": [dict(vars(problem)) for problem in run.problems],
        "changes": [change.to_json() for change in run.changes],
        "duration_s": run.duration_s,
        "interrupted": run.interrupted,
        "drawn_seed": run.drawn_seed,
        "build_only": run.build_only,
        "nothing_due": run.nothing_due,
        "kernels": [_kernel(kernel) for kernel in run.kernels],
        "cases": [[c.op, c.case.to_json(), c.result.to_json()] for c in report.cases],
        "places": {op: [place.file, place.line] for op, place in report.places.items()},
        "kernel_places": {k: [p.file, p.line] for k, p in report.kernel_places.items()},
        "known": [[*key, known.id, known.time] for key, known in report.known.items()],
        "regressions": [dict(vars(worse)) for worse in report.regressions],
        "states": [dict(vars(task)) for task in report.tasks],
        "edges": [list(edge) for edge in report.edges],
    }


def rebuilt(part: ShardPart, data: Mapping[str, Json]) -> Report:
    """Rebuild a report from the result of `document_to_json`.

    Parameters
    ----------
    part : ShardPart
    data : mapping
        JSON that is valid according to ``schemas/report.schema.json``; see
        `shard_schema.violation`.

    Returns
    -------
    Report

    Raises
    ------
    ValueError
        If a name is unknown, such as a kind of failure; if a case passed although nothing was
        compared; or if a result is missing, or contradicts its cases.
    """
    cases = tuple(
        CaseVerdict(op, Case.from_json(case), CheckResult.from_json(result))
        for op, case, result in data["cases"]
    )
    by_op: dict[tuple[str, str], list[CaseVerdict]] = {}
    for case in cases:
        by_op.setdefault((case.op, case.case.dtype), []).append(case)
    run = RunReport(
        tasks=TaskCounts(**data["tasks"]),
        executed=tuple(data["executed"]),
        results=tuple(
            _result_from(result, by_op.get((result["op"], result["dtype"]), []))
            for result in data["results"]
        ),
        problems=tuple(Problem(**problem) for problem in data["problems"]),
        changes=tuple(ResultChange.from_json(c["op"], c) for c in data["changes"]),
        duration_s=data["duration_s"],
        interrupted=data["interrupted"],
        kernels=tuple(_kernel_from(kernel) for kernel in data["kernels"]),
        drawn_seed=data["drawn_seed"],
        build_only=data["build_only"],
        nothing_due=data["nothing_due"],
    )
    report = Report(
        run=run,
        cases=cases,
        places={op: FileLine(*place) for op, place in data["places"].items()},
        kernel_places={kernel: FileLine(*place) for kernel, place in data["kernel_places"].items()},
        known={
            (op, seed, dtype): KnownFailure(name, time)
            for op, seed, dtype, name, time in data["known"]
        },
        regressions=tuple(Regression(**worse) for worse in data["regressions"]),
        tasks=tuple(TaskState(**task) for task in data["states"]),
        edges=tuple((before, after) for before, after in data["edges"]),
        shard=part,
        **{name: data[name] for name in (*_WORDS, *_FLAGS)},
    )
    _check_results(report)
    return report


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


def _result(result: OpResult) -> dict[str, Json]:
    return {
        **{name: getattr(result, name) for name in _PLAIN},
        **{name: number_to_json(getattr(result, name)) for name in _NUMBERS},
        "verdict": result.verdict.value,
        "absence": result.absence.value,
        "loose": list(result.loose),
        "constant": [[name, number_to_json(value)] for name, value in result.constant],
        "causes": msgspec.to_builtins(result.causes),
        "kept_finite": list(result.kept_finite),
        "untried": list(result.untried),
    }


def _result_from(data: Mapping[str, Json], own: Sequence[CaseVerdict]) -> OpResult:
    """Rebuild the result of an op and dtype from JSON.

    `own` holds the verdicts on the cases of this op and dtype. From these, the lists of failing and
    passing cases are rebuilt.
    """
    good = (Verdict.PASSED, Verdict.SKIPPED)
    failures = [CaseFailure(c.op, c.case, c.result) for c in own if c.result.verdict not in good]
    passing = [c.case for c in own if c.result.verdict is Verdict.PASSED]
    return OpResult(
        **{name: data[name] for name in _PLAIN},
        **{name: number_from_json(data[name]) for name in _NUMBERS},
        verdict=Verdict(data["verdict"]),
        absence=Absence(data["absence"]),
        loose=tuple(data["loose"]),
        constant=tuple((name, number_from_json(value)) for name, value in data["constant"]),
        causes=msgspec.convert(data["causes"], tuple[Cause, ...]),
        kept_finite=tuple(data["kept_finite"]),
        untried=tuple(data["untried"]),
        failures=tuple(sorted(failures, key=lambda failure: failure.case.numel)),
        passing=tuple(passing) if failures else (),
    )


def _kernel(kernel: KernelResult) -> dict[str, Json]:
    return {
        "kernel": kernel.kernel,
        "arch": kernel.arch,
        "verdict": kernel.verdict.value,
        "reason": kernel.reason,
        "cached": kernel.cached,
        "absence": kernel.absence.value,
        "entries": to_builtins(kernel.entries),
        "changes": [asdict(change) for change in kernel.changes],
    }


def _kernel_from(data: Mapping[str, Json]) -> KernelResult:
    from gpuemu_flow.artifacts.kernel import KernelRecord  # noqa: PLC0415 - with kernels only

    return KernelResult(
        kernel=data["kernel"],
        arch=data["arch"],
        verdict=Verdict(data["verdict"]),
        reason=data["reason"],
        cached=data["cached"],
        absence=Absence(data["absence"]),
        entries=convert(data["entries"], tuple[KernelRecord, ...]),
        changes=tuple(KernelChange.from_json(change) for change in data["changes"]),
    )
