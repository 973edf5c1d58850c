"""Write reports as JSON: what ``--format json`` prints; the schemas are in ``schemas/``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from msgspec import to_builtins
from msgspec.structs import asdict

from gpuemu_flow.judge.fuzz_results import CoverageReport, FuzzReport, Minimization, Reproduction
from gpuemu_flow.judge.results import (
    SCHEMA_VERSION,
    CaseVerdict,
    KernelResult,
    Minimal,
    OpResult,
    RunReport,
)
from gpuemu_flow.model.decoding import plain
from gpuemu_flow.model.plain_text import inert_json
from gpuemu_flow.model.types import Json
from gpuemu_flow.report.document import (
    REPORT_VERSION,
    BaselineDiff,
    Report,
    ShardPart,
    causes_by_case,
    key_of,
)
from gpuemu_flow.report.formats import ReaderOptions
from gpuemu_flow.store.keys import BuildReason

_RESULT = (
    "op", "dtype", "verdict", "cases", "passed", "failed", "inconclusive", "errors", "skipped",
    "max_abs", "max_rel", "max_ulp", "tolerance_used", "unjudged", "duration_s", "cached", "reason",
    "causes", "sandbox", "untried",
)  # fmt: skip
_TOTALS = ("passed", "failed", "errors", "inconclusive", "skipped")
_FUZZ_COUNTS = ("iterations", "passed", "failed", "inconclusive", "errors", "verdict", "reason",
                "unjudged", "cached")  # fmt: skip


def dumps(value: object) -> str:
    return inert_json(json.dumps(plain(value), indent=2, allow_nan=False))


def write(report: Report, _look: ReaderOptions) -> str:
    return dumps(whole_report(report)) + "\n"


def whole_report(report: Report) -> dict[str, Json]:
    totals, run = report.totals, run_report(report.run)
    return {
        **run,
        "schema_version": REPORT_VERSION,
        "tool": {"name": "gpuemu-flow", "version": report.version},
        "project": report.project,
        "project_version": report.project_version,
        "mode": report.mode,
        "created": report.created,
        "verdict": report.verdict,
        "exit_code": report.exit_code,
        "total_tests": totals["total"],
        **{name: totals[name] for name in _TOTALS},
        "duration_ms": round(report.run.duration_s * 1000),
        "timed_out": report.timed_out,
        "require_all": report.require_all,
        "not_validated": report.missing,
        "failures": [
            _placed(report, failure, case)
            for failure, case in zip(run["failures"], report.run.failures, strict=True)
        ],
        "recorded": [record.to_public_json() for record in report.recorded],
        "cases": [_case(case) for case in report.cases],
        "baseline": None if report.baseline is None else baseline_diff(report.baseline),
        "regressions": [worse.sentence for worse in report.regressions],
        "regressed": [{**asdict(r), "sentence": r.sentence} for r in report.regressions],
        "fail_on_regression": report.fail_on_regression,
        **({} if report.shard is None else {"shard": _shard(report, report.shard)}),
    }


def _shard(report: Report, part: ShardPart) -> dict[str, Json]:
    from gpuemu_flow.report.merging import encoded  # noqa: PLC0415 - brings jsonschema

    return {**asdict(part), "report": encoded(report)}


def run_report(report: RunReport) -> dict[str, Json]:
    """Return the content of a run's report; its schema is ``schemas/run.schema.json``."""
    told = causes_by_case(report)
    return {
        "schema_version": SCHEMA_VERSION,
        "tasks": report.tasks,
        "executed": report.executed,
        "results": [_result(result) for result in report.results],
        "failures": [
            _failure(report, failure, told.get(key_of(failure), "")) for failure in report.failures
        ],
        "changes": report.changes,
        "problems": report.problems,
        "duration_s": round(report.duration_s, 6),
        "interrupted": report.interrupted,
        "drawn_seed": report.drawn_seed,
        "kernels": [record for result in report.kernels for record in kernel_records(result)],
    }


def _result(result: OpResult) -> dict[str, Json]:
    shown = {name: getattr(result, name) for name in _RESULT}
    return {**shown, "duration_s": round(result.duration_s, 6)}


def kernel_records(result: KernelResult) -> list[dict[str, Json]]:
    """Return a record for each entry of a linted kernel. A kernel that could not be linted gives
    one record without figures."""
    common = {
        "kernel": result.kernel,
        "cached": result.cached,
        "reason": result.reason,
    }
    if not result.entries:
        nothing: dict[str, Json] = {
            "name": result.kernel,
            "file": "",
            "arch": result.arch,
            "metric_source": "",
            "metrics": None,
            "violations": [],
            "unchecked": [],
            "verdict": result.verdict,
        }
        return [{**nothing, **common, "changes": []}]
    return [
        {
            **to_builtins(entry),
            **common,
            "changes": [
                {"kind": change.kind, "metric": change.metric, "message": change.message}
                for change in result.changes
                if change.kernel == entry.name
            ],
        }
        for entry in result.entries
    ]


def minimal(shown: Minimal) -> dict[str, Json]:
    """Return what is shown of a failure first: inputs, both values, place, command."""
    found: dict[str, Json] = to_builtins(shown)
    return found


def _failure(report: RunReport, failure: CaseVerdict, cause: str) -> dict[str, Json]:
    key = key_of(failure)
    shown, known = report.minima.get(key), report.known.get(key)
    return {
        **failed_case(failure),
        **({} if shown is None else {"minimal": minimal(shown)}),
        "id": None if known is None else known.id,
        "cause": cause,
        "time": None if known is None else known.time,
        "minimized": None if known is None else known.minimized,
        "atol": None if known is None else known.atol,
        "rtol": None if known is None else known.rtol,
    }


def failed_case(failure: CaseVerdict) -> dict[str, Json]:
    """Return one failing case in the form that ``run.schema.json`` defines."""
    case, result = failure.case, failure.result
    first = result.failures[0] if result.failures else None
    stats = result.stats
    index = first.index if first is not None and first.index is not None else stats.worst_index
    findings = [to_builtins(f.finding) for f in result.failures if f.finding is not None]
    return {
        "op": failure.op,
        "verdict": result.verdict,
        "seed": case.seed,
        "seed_str": str(case.seed),
        "dtype": case.dtype,
        "shape": case.inputs[0].shape if case.inputs else [],
        "shapes": {i.name: i.shape for i in case.inputs},
        "layout": case.layout,
        "strategy": case.strategy,
        "kind": first.kind if first is not None else "",
        "message": first.message if first is not None else "",
        "messages": [f.message for f in result.failures],
        "notes": result.all_notes,
        "max_abs": stats.max_abs,
        "max_rel": stats.max_rel,
        "max_ulp": stats.max_ulp,
        "unjudged": stats.unjudged,
        "index": index,
        "expected": first.expected if first is not None else None,
        "actual": first.actual if first is not None else None,
        "reproduce": failure.reproduce,
        **({"findings": findings} if findings else {}),
    }


def _placed(report: Report, failure: dict[str, Json], case: CaseVerdict) -> dict[str, Json]:
    place = report.place_of(case)
    return {
        **failure,
        "name": case.name,
        "file": "" if place is None else place.file,
        "line": 0 if place is None else place.line,
    }


def _case(checked: CaseVerdict) -> dict[str, Json]:
    case, stats = checked.case, checked.result.stats
    return {
        "name": checked.name,
        "op": checked.op,
        "dtype": case.dtype,
        "shapes": {i.name: i.shape for i in case.inputs},
        "shape_class": case.shape_class,
        "layout": case.layout,
        "strategy": case.strategy,
        "seed": case.seed,
        "seed_str": str(case.seed),
        "verdict": checked.result.verdict,
        "max_abs": stats.max_abs,
        "tolerance_used": stats.tolerance_used,
        "unjudged": stats.unjudged,
    }


def baseline_diff(found: BaselineDiff) -> dict[str, Json]:
    """Return what ``diff --format json`` prints."""
    return {
        "schema_version": 1,
        "baseline": {"tag": found.baseline.tag, "created": found.baseline.created},
        "has_regressions": found.has_regressions,
        "kernels": [{"kernel": name, **to_builtins(diff)} for name, diff in found.kernels],
        "results": found.results,
    }


def run_plan(
    status: Mapping[str, str], reasons: Mapping[str, Sequence[BuildReason]]
) -> dict[str, Json]:
    pending = [name for name, state in status.items() if state == "pending"]
    return {
        "schema_version": SCHEMA_VERSION,
        "would_run": [
            {"task": name, "reasons": [reason.to_json() for reason in reasons.get(name, ())]}
            for name in pending
        ],
        "current": sum(state == "current" for state in status.values()),
    }


def fuzz_report(found: FuzzReport) -> dict[str, Json]:
    return {
        "schema_version": SCHEMA_VERSION,
        "op": found.op,
        "seed": found.seed,
        "seed_str": str(found.seed),
        **{name: getattr(found, name) for name in _FUZZ_COUNTS},
        "duration_s": round(found.duration_s, 6),
        "cases_per_s": round(found.cases_per_s, 3),
        "failure_rate": found.failure_rate,
        "worst_margin": found.worst_margin,
        "margins": found.margins,
        "coverage": found.coverage,
        "gaps": found.gaps,
        "causes": [
            {
                "kind": group.kind,
                "feature": group.feature,
                "cause": group.cause,
                "count": len(group.failures),
                "smallest": group.failures[0].id,
                "minimized": group.minimized.id if group.minimized else None,
                "notes": group.notes,
                "shape_classes": {
                    name: {"failed": failed, "passed": passed}
                    for name, (failed, passed) in group.shape_classes.items()
                },
            }
            for group in found.groups
        ],
        "failures": [one.to_public_json() for group in found.groups for one in group.failures],
        **({"not_run": found.not_run} if found.not_run else {}),
        **({"failures_left_out": found.left_out} if found.left_out else {}),
        "interrupted": found.interrupted,
    }


def reproduction(found: Reproduction) -> dict[str, Json]:
    return {
        "schema_version": 1,
        "id": found.record.id,
        "still_fails": found.still_fails,
        **({"did_not_show": True} if found.did_not_show else {}),
        "failure": found.record.to_public_json(),
        "result": {**plain(found.result), "notes": found.result.all_notes},
    }


def minimization(found: Minimization) -> dict[str, Json]:
    smaller = found.minimized
    return {
        "schema_version": 1,
        **asdict(found),
        "original": found.original.to_public_json(),
        "minimized": None if smaller is None else smaller.to_public_json(),
    }


def coverage(found: CoverageReport, form: str) -> dict[str, Json]:
    ops = sorted({row.op for row in found.rows})
    covered = [op for op in ops if any(row.op == op and row.cases for row in found.rows)]
    percent = 100.0 * len(covered) / len(ops) if ops else 0.0
    if form == "codecov":
        lines = {f"gpuemu/{op}.op": {"1": int(op in covered)} for op in ops}
        summary = f"{len(covered)} of {len(ops)} ops exercised"
        return {"coverage": lines, "messages": {"gpuemu_summary": summary}}
    return {
        "schema_version": 1,
        "covered": covered,
        "uncovered": [op for op in ops if op not in covered],
        "configured_total": len(ops),
        "percent": percent,
        "rows": [
            {"op": r.op, "dtype": r.dtype, "cases": r.cases, "unjudged": r.unjudged, "seen": r.seen}
            for r in found.rows
        ],
        "gaps": to_builtins(found.gaps),
        "cells": found.coverage.counted,
    }  # fmt: skip
