"""Keep a history of runs, one line per run, to show the trend of each op's worst error."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from gpuemu_flow.judge.results import OpResult, RunReport
from gpuemu_flow.model.types import Json, Verdict, number_from_json, number_to_json
from gpuemu_flow.report.document import HistoryPoint
from gpuemu_flow.store.workspace_cache import WorkspaceCache

NAME = "history.jsonl"
MAX_RUNS = 100
SLACK_RUNS = 25  # lines above the limit at which the file is rewritten
MAX_BYTES = 32 << 20
VERSION = 1


def append(cache: WorkspaceCache, report: RunReport, when: float | None = None) -> None:
    """Append a line with a run's results, except those of skipped ops.

    Nothing is appended if there are no results, or if the run was interrupted.

    Raises StoreError: The file cannot be written.
    """
    results = _shorts(report)
    if not results or report.interrupted:
        return
    line: dict[str, Json] = {"version": VERSION, "time": round(when or time.time(), 3)}
    if report.drawn_seed is not None:
        line["drawn_seed"] = report.drawn_seed
    line["results"] = results
    path = cache.folder / NAME
    data = (json.dumps(line, separators=(",", ":")) + "\n").encode()
    torn = _ends_torn(cache, path)
    cache.files.append(path, b"\n" + data if torn else data)
    _prune(cache, path)


def ends_with(cache: WorkspaceCache, report: RunReport) -> bool:
    """Tell whether a run executed nothing and its results equal the history's last line."""
    lines = () if report.executed else _lines(cache)
    last = next(iter(lines[-1:]), b"")
    try:
        return bool(json.loads(last)["results"] == _shorts(report))
    except (ValueError, KeyError, TypeError):
        return False


def read(cache: WorkspaceCache) -> list[HistoryPoint]:
    """Return all points, oldest first; incomplete lines and those of other versions are skipped."""
    points = [point for line in _lines(cache) for point in _points(line)]
    return sorted(points, key=lambda point: point.time)


def _ends_torn(cache: WorkspaceCache, path: Path) -> bool:
    """Tell whether the history's last line is incomplete because the process writing it died."""
    try:
        with os.fdopen(cache.files.open(path, os.O_RDONLY), "rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return False
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except FileNotFoundError:
        return False


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


def _lines(cache: WorkspaceCache) -> Sequence[bytes]:
    path = cache.folder / NAME
    with contextlib.suppress(OSError):
        if path.lstat().st_size <= MAX_BYTES:
            return cache.files.read(path).splitlines()[-MAX_RUNS:]
    return []


def _points(line: bytes) -> list[HistoryPoint]:
    try:
        data = json.loads(line)
        if data["version"] != VERSION:
            return []
        moment = float(data["time"])
        return [
            HistoryPoint(
                moment,
                str(op),
                str(dtype),
                Verdict(verdict).value,
                float(number_from_json(max_abs)),
                float(number_from_json(used)),
            )
            for op, dtype, verdict, max_abs, used in data["results"]
        ]
    except (ValueError, KeyError, TypeError):
        return []


def _prune(cache: WorkspaceCache, path: Path) -> None:
    with contextlib.suppress(OSError):
        lines = cache.files.read(path).splitlines(keepends=True)
        if len(lines) > MAX_RUNS + SLACK_RUNS:
            cache.files.write(path, b"".join(lines[-MAX_RUNS:]))
