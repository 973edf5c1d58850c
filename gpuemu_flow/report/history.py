"""Keep a history of runs, one row per run, to show the trend of each op's worst error."""

from __future__ import annotations

import time

from gpuemu_flow.judge.results import OpResult, RunReport
from gpuemu_flow.model.types import Json, Verdict, number_from_json, number_to_json
from gpuemu_flow.report.document import HistoryPoint
from gpuemu_flow.store.cache import WorkspaceCache

ROW = "run:"
MAX_RUNS = 100
VERSION = 1


def append(cache: WorkspaceCache, report: RunReport, when: float | None = None) -> None:
    """Add a row with a run's results, except those of skipped ops; drop what is too old. Nothing is
    added if there are no results, or if the run was interrupted. Raises StoreError: The row cannot
    be written."""
    results = _shorts(report)
    if not results or report.interrupted:
        return
    moment = round(when or time.time(), 3)
    row: dict[str, Json] = {"version": VERSION, "time": moment}
    if report.drawn_seed is not None:
        row["drawn_seed"] = report.drawn_seed
    row["results"] = results
    cache.state.put(f"{ROW}{moment:017.3f}", row)
    cache.state.delete_many(sorted(cache.state.keys_from(ROW))[:-MAX_RUNS])


def ends_with(cache: WorkspaceCache, report: RunReport) -> bool:
    last = () if report.executed else rows(cache)[-1:]
    return any(isinstance(row, dict) and row.get("results") == _shorts(report) for row in last)


def rows(cache: WorkspaceCache) -> list[Json]:
    return [cache.state.get(key) for key in sorted(cache.state.keys_from(ROW))]


def read(cache: WorkspaceCache) -> list[HistoryPoint]:
    return [point for row in rows(cache) for point in _points(row)]


def _shorts(report: RunReport) -> list[list[Json]]:
    return [_short(r) for r in report.results if r.verdict is not Verdict.SKIPPED]


def _short(result: OpResult) -> list[Json]:
    return [
        result.op,
        result.dtype,
        result.verdict.value,
        number_to_json(result.max_abs),
        number_to_json(result.tolerance_used),
    ]


def _points(row: Json) -> list[HistoryPoint]:
    try:
        if row["version"] != VERSION:
            return []
        moment = float(row["time"])
        return [
            HistoryPoint(
                moment,
                str(op),
                str(dtype),
                Verdict(verdict).value,
                float(number_from_json(max_abs)),
                float(number_from_json(used)),
            )
            for op, dtype, verdict, max_abs, used in row["results"]
        ]
    except (ValueError, KeyError, TypeError):
        return []
