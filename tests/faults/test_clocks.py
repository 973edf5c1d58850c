"""Clocks that are put forward and back, and files of the past and the future."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from mini_workspace import Mini, make_mini
from native import preloadable
from test_run_damage import verdicts

from gpuemu_flow.model.types import Verdict
from gpuemu_flow.store.cache import WorkspaceCache
from gpuemu_flow.store.results import DAY_NS, CountedResult, NewResult, ResultStore

YEAR = 31_557_600
MOMENTS = {"1960": -10 * YEAR, "1970": 0, "2001": 31 * YEAR, "2100": 130 * YEAR}


def test_a_run_whose_clock_steps(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    library = preloadable(tmp_path_factory, "stepping_clock")
    mini = make_mini(tmp_path / "workspace")
    mini.keep_only("scale")
    expected = verdicts(mini.run())
    mini.command("clean", "--cache")
    steps = "0,86400,-86400,315576000,-946684800,4102444800,3"
    mini.env = {"LD_PRELOAD": library, "CLOCK_EVERY": "7", "CLOCK_STEPS": steps}
    report = mini.run()
    assert verdicts(report) == expected
    assert report["problems"] == []
    assert mini.run()["executed"] == []
    mini.env = {}
    assert verdicts(mini.run()) == expected


@pytest.mark.parametrize("moment", MOMENTS)
def test_files_of_another_time(checked_mini: Mini, moment: str) -> None:
    """Times are no content; content under a time that was put back is another content."""
    mini = checked_mini
    paths = [path for path in (mini.root, *mini.root.rglob("*")) if "home" not in path.parts]
    for path in paths:
        os.utime(path, (MOMENTS[moment],) * 2)
    report = mini.run()
    assert (report["executed"], report["problems"]) == ([], [])
    mini.edit("scripts/scale.py", "* 3)", "* 4)")
    os.utime(mini.root / "scripts" / "scale.py", (MOMENTS[moment],) * 2)
    found = {r["op"]: r["verdict"] for r in mini.run("scale", code=1)["results"]}
    assert found == {"scale": "failed"}


def test_a_submission_after_the_clock_was_put_back_is_the_newest(tmp_path: Path) -> None:
    """Else a report would show the verdict of code that was replaced since."""
    cache = WorkspaceCache(tmp_path / ".gpuemu-cache")
    first = ResultStore(cache)
    first._last_ns = time.time_ns() + 3650 * DAY_NS  # as a clock that is ten years fast leaves it
    first.add(NewResult("op", 1, "float32", CountedResult(Verdict.PASSED), {}, source="submit"))
    later = ResultStore(WorkspaceCache(cache.folder))
    later.add(NewResult("op", 1, "float32", CountedResult(Verdict.FAILED), {}, source="submit"))
    for store in (later, ResultStore(WorkspaceCache(cache.folder))):
        assert [found.judged.verdict for found in store.newest(2)] == [
            Verdict.FAILED,
            Verdict.PASSED,
        ]
        assert store.latest()["op", 1].judged.verdict is Verdict.FAILED
