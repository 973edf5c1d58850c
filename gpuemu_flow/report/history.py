"""Keep a history of runs, one row per run, to know what was checked when."""

from __future__ import annotations

import time
from contextlib import suppress

from gpuemu_flow.judge.results import OpResult, RunReport
from gpuemu_flow.model.decoding import plain
from gpuemu_flow.model.types import Json, Verdict
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


def _shorts(report: RunReport) -> list[list[Json]]:
    return [_short(r) for r in report.results if r.verdict is not Verdict.SKIPPED]


def _short(result: OpResult) -> list[Json]:
    return [
        result.op,
        result.dtype,
        result.verdict.value,
        plain(result.max_abs),
        plain(result.tolerance_used),
    ]


def checked_since(cache: WorkspaceCache, begin: float) -> set[tuple[str, str]]:
    """Return the ops and dtypes that runs since `begin` checked, or found to be up to date."""
    found: set[tuple[str, str]] = set()
    for row in rows(cache):
        with suppress(ValueError, KeyError, TypeError):
            if row["version"] == VERSION and float(row["time"]) >= begin:
                found.update((str(op), str(dtype)) for op, dtype, *_ in row["results"])
    return found
