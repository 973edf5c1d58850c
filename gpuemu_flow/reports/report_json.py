"""Write a report as JSON; its schema is ``schemas/report.schema.json``."""

from __future__ import annotations

from gpuemu_flow.reports.formats import ReaderOptions
from gpuemu_flow.reports.json_writer import dumps, failure_record, run_to_json
from gpuemu_flow.results.document import REPORT_VERSION, CaseVerdict, Report, ShardPart
from gpuemu_flow.results.model import CaseFailure
from gpuemu_flow.types import Json, number_to_json


def write(report: Report, _look: ReaderOptions) -> str:
    """Return the report as JSON text."""
    return dumps(report_to_json(report)) + "\n"


def report_to_json(report: Report) -> dict[str, Json]:
    """Return a report as plain JSON.

    Non-finite numbers become strings. The seed of a case is given twice: as a number and as a
    string.
    """
    run = run_to_json(report.run)
    totals = report.totals
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
        "passed": totals["passed"],
        "failed": totals["failed"],
        "errors": totals["errors"],
        "inconclusive": totals["inconclusive"],
        "skipped": totals["skipped"],
        "duration_ms": round(report.run.duration_s * 1000),
        "timed_out": report.timed_out,
        "require_all": report.require_all,
        "not_validated": [missing.to_json() for missing in report.missing],
        "failures": [_failure(report, failure) for failure in report.run.failures],
        "recorded": [record.to_public_json() for record in report.recorded],
        "cases": [_case(case) for case in report.cases],
        "baseline": None if report.baseline is None else report.baseline.to_json(),
        "regressions": [worse.sentence for worse in report.regressions],
        "regressed": [worse.to_json() for worse in report.regressions],
        "fail_on_regression": report.fail_on_regression,
        **({} if report.shard is None else {"shard": _shard(report, report.shard)}),
    }


def _shard(report: Report, part: ShardPart) -> dict[str, Json]:
    """Describe the part of the whole run that a report covers, with the data that a merge needs."""
    from gpuemu_flow.results.shard_document import document_to_json  # noqa: PLC0415 - with shards

    return {**vars(part), "document": document_to_json(report)}


def _failure(report: Report, failure: CaseFailure) -> dict[str, Json]:
    known = report.known.get(report.key(failure))
    place = report.place_of(failure)
    return {
        **failure_record(failure),
        "name": CaseVerdict(failure.op, failure.case, failure.result).name,
        "id": None if known is None else known.id,
        "cause": report.causes.get(report.key(failure), ""),
        "time": None if known is None else known.time,
        "minimized": None if known is None or known.minimized is None else known.minimized.id,
        "file": "" if place is None else place.file,
        "line": 0 if place is None else place.line,
    }


def _case(checked: CaseVerdict) -> dict[str, Json]:
    case, stats = checked.case, checked.result.stats
    return {
        "name": checked.name,
        "op": checked.op,
        "dtype": case.dtype,
        "shapes": {i.name: list(i.shape) for i in case.inputs},
        "shape_class": case.shape_class,
        "layout": case.layout,
        "strategy": case.strategy,
        "seed": case.seed,
        "seed_str": str(case.seed),
        "verdict": checked.result.verdict.value,
        "max_abs": number_to_json(stats.max_abs),
        "tolerance_used": number_to_json(stats.tolerance_used),
        "unjudged": stats.unjudged,
    }
