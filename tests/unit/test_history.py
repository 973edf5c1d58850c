"""The history of runs: it survives torn lines, forgets the oldest, and stays small."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from msgspec.structs import replace
from report_samples import report_of, sample

from gpuemu_flow.judge.results import RunReport
from gpuemu_flow.model.types import Json
from gpuemu_flow.report import history
from gpuemu_flow.store.cache import WorkspaceCache


@pytest.fixture
def cache(tmp_path: Path) -> WorkspaceCache:
    found = WorkspaceCache(tmp_path / "cache")
    found.create()
    return found


def run_with(error: float) -> RunReport:
    run = sample().run
    return replace(run, results=(replace(run.results[0], max_abs=error),))


def test_skipped_ops_and_interrupted_runs_leave_nothing(cache: WorkspaceCache) -> None:
    run = sample().run
    history.append(cache, replace(run, results=run.results[-1:]))
    history.append(cache, replace(run, interrupted=True))
    history.append(cache, report_of([]).run)
    assert history.rows(cache) == []


def test_a_run_that_executed_nothing_may_repeat_the_last_line(cache: WorkspaceCache) -> None:
    idle = replace(run_with(math.inf), executed=())
    assert not history.ends_with(cache, idle)
    history.append(cache, idle)
    assert history.ends_with(cache, idle)
    assert not history.ends_with(cache, replace(idle, executed=("op:softmax:float32",)))
    assert not history.ends_with(cache, replace(run_with(2.0), executed=()))


@pytest.mark.parametrize(
    "rubbish",
    [[], {"version": 2, "time": 1, "results": []}, None, "x",
     {"version": 1, "time": "x", "results": []},
     {"version": 1, "time": 1, "results": [["a"]]}],
)  # fmt: skip
def test_rubbish_is_left_out(cache: WorkspaceCache, rubbish: Json) -> None:
    history.append(cache, run_with(1.0), when=1.0)
    cache.state.put(f"{history.ROW}{1.5:017.3f}", rubbish)
    history.append(cache, run_with(2.0), when=2.0)
    assert history.checked_since(cache, 0.5) == {("softmax", "float32")}
    assert history.checked_since(cache, 2.5) == set()


def test_only_the_newest_are_kept(cache: WorkspaceCache) -> None:
    many = history.MAX_RUNS + 5
    for n in range(many):
        history.append(cache, run_with(float(n)), when=1000.0 + n)
    times = [row["time"] for row in history.rows(cache)]
    assert times == [1000.0 + n for n in range(5, many)]
