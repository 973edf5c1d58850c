"""Write the run report as JSON; its schema is ``schemas/run.schema.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import to_builtins

from gpuemu_flow.plain_text import inert_json
from gpuemu_flow.results.model import (
    SCHEMA_VERSION,
    CaseFailure,
    KernelResult,
    OpResult,
    RunReport,
)
from gpuemu_flow.store.keys import BuildReason
from gpuemu_flow.types import Json, number_to_json


def run_to_json(report: RunReport) -> dict[str, Json]:
    """Return a run report as plain JSON; non-finite numbers become strings such as NaN."""
    tasks = report.tasks
    return {
        "schema_version": SCHEMA_VERSION,
        "tasks": {
            "total": tasks.total,
            "current": tasks.current,
            "ran": tasks.ran,
            "restored": tasks.restored,
            "failed": tasks.failed,
            "skipped": tasks.skipped,
        },
        "executed": list(report.executed),
        "results": [_result(result) for result in report.results],
        "failures": [failure_record(failure) for failure in report.failures],
        "changes": [change.to_json() for change in report.changes],
        "problems": [
            {
                "slug": p.slug,
                "message": p.message,
                "hint": p.hint,
                "file": p.file,
                "line": p.line,
                "warning": p.warning,
            }
            for p in report.problems
        ],
        "duration_s": round(report.duration_s, 6),
        "interrupted": report.interrupted,
        "drawn_seed": report.drawn_seed,
        "kernels": [record for result in report.kernels for record in kernel_records(result)],
    }


def kernel_records(result: KernelResult) -> list[dict[str, Json]]:
    """Return a record for each entry of a linted kernel.

    A kernel that could not be linted gives one record without figures.
    """
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
            "verdict": result.verdict.value,
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


def _result(result: OpResult) -> dict[str, Json]:
    return {
        "op": result.op,
        "dtype": result.dtype,
        "verdict": result.verdict.value,
        "cases": result.cases,
        "passed": result.passed,
        "failed": result.failed,
        "inconclusive": result.inconclusive,
        "errors": result.errors,
        "skipped": result.skipped,
        "max_abs": number_to_json(result.max_abs),
        "max_rel": number_to_json(result.max_rel),
        "max_ulp": number_to_json(result.max_ulp),
        "tolerance_used": number_to_json(result.tolerance_used),
        "unjudged": result.unjudged,
        "duration_s": round(result.duration_s, 6),
        "cached": result.cached,
        "reason": result.reason,
        "causes": [msgspec.to_builtins(cause) for cause in result.causes],
        "sandbox": result.sandbox,
        "untried": list(result.untried),
    }


def failure_record(failure: CaseFailure) -> dict[str, Json]:
    """Return one failing case in the form that ``run.schema.json`` defines."""
    case, result = failure.case, failure.result
    first = result.failures[0] if result.failures else None
    stats = result.stats
    index = first.index if first is not None and first.index is not None else stats.worst_index
    findings = [f.finding.to_json() for f in result.failures if f.finding is not None]
    return {
        "op": failure.op,
        "verdict": result.verdict.value,
        "seed": case.seed,
        "seed_str": str(case.seed),
        "dtype": case.dtype,
        "shape": list(case.inputs[0].shape) if case.inputs else [],
        "shapes": {i.name: list(i.shape) for i in case.inputs},
        "layout": case.layout,
        "strategy": case.strategy,
        "kind": first.kind.value if first is not None else "",
        "message": first.message if first is not None else "",
        "messages": [f.message for f in result.failures],
        "notes": list(result.all_notes),
        "max_abs": number_to_json(stats.max_abs),
        "max_rel": number_to_json(stats.max_rel),
        "max_ulp": number_to_json(stats.max_ulp),
        "unjudged": stats.unjudged,
        "index": None if index is None else list(index),
        "expected": number_to_json(first.expected if first is not None else None),
        "actual": number_to_json(first.actual if first is not None else None),
        "reproduce": failure.reproduce,
        **({"findings": findings} if findings else {}),
    }


def plan_to_json(
    status: Mapping[str, str], reasons: Mapping[str, Sequence[BuildReason]]
) -> dict[str, Json]:
    """Return the result of a dry run: the tasks that would run, and why."""
    pending = [name for name, state in status.items() if state == "pending"]
    return {
        "schema_version": SCHEMA_VERSION,
        "would_run": [
            {"task": name, "reasons": [reason.to_json() for reason in reasons.get(name, ())]}
            for name in pending
        ],
        "current": sum(state == "current" for state in status.values()),
    }


def dumps(value: Mapping[str, Json]) -> str:
    """Format a JSON object as text that CI services cannot mistake for their commands."""
    return inert_json(json.dumps(value, indent=2, allow_nan=False))
