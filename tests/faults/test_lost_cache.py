"""A cache that is deleted during a run, whole or in part, is made again by the next run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from mini_workspace import Mini
from whole import sample

from gpuemu_flow.build.graph import Listener, TaskEvent
from gpuemu_flow.build.session import RunOptions
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.model.errors import FlowError
from gpuemu_flow.report.report import run_and_report

CAUSES = False

EVERYTHING = "."
PARTS = (
    EVERYTHING,
    "blobs",
    "state",
    "actions",
)
MOMENTS = ("plan", "ended", "end")
OP, REFERENCE = "scripts/scale.py", "scripts/scale_ref.py"
DELETED = [
    *((OP, part, moment) for part in PARTS for moment in MOMENTS),
    *((REFERENCE, part, moment) for part in (EVERYTHING, "state") for moment in MOMENTS),
    *((OP, part, "ended compare") for part in (EVERYTHING, "state")),
]


def delete(cache: Path, part: str) -> None:
    """Delete a part of the cache, as `rm -rf` does."""
    for path in [cache] if part == EVERYTHING else cache.glob(part):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


class Deleting(Listener):
    """Deletes a part of the cache at a moment of a run."""

    def __init__(self, cache: Path, part: str, moment: str) -> None:
        self._cache, self._part, self._moment = cache, part, moment
        self.deleted = False

    def at(self, moment: str) -> None:
        if moment == self._moment and not self.deleted:
            self.deleted = True
            delete(self._cache, self._part)

    def on_plan(self, total: int, todo: int) -> None:
        self.at("plan")

    def on_task(self, event: TaskEvent) -> None:
        what = event.what if event.what == "started" else "ended"
        self.at(what)
        self.at(f"{what} {event.task.partition(':')[0]}")


def verdicts(report: dict[str, Any]) -> list[tuple[Any, ...]]:
    names = ("op", "dtype", "verdict", "cases", "max_abs", "max_ulp", "tolerance_used")
    return [tuple(result[name] for name in names) for result in report["results"]]


def run_and_delete(mini: Mini, part: str, moment: str) -> None:
    """Run in this process, and delete a part of the cache meanwhile; the run may fail."""
    cache = mini.root / ".gpuemu-cache"
    listener = Deleting(cache, part, moment)
    workspace = Workspace(mini.root, environ=mini.environment())
    workspace.trusted = True
    try:
        run_and_report(workspace, RunOptions(jobs=1), listener)
    except FlowError as error:
        print(error)
    listener.at("end")
    assert listener.deleted


@pytest.mark.parametrize(("edited", "part", "moment"), sample(DELETED, 4, lambda d: d[1]))
def test_the_next_run_makes_it_again(mini: Mini, edited: str, part: str, moment: str) -> None:
    mini.keep_only("scale")
    undisturbed = verdicts(mini.run())
    path = mini.root / edited
    path.write_text(path.read_text() + "\n# edited\n")
    run_and_delete(mini, part, moment)
    again = mini.run()
    assert verdicts(again) == undisturbed
    assert not [p for p in again["problems"] if not p["warning"]]
    last = mini.run()
    assert (verdicts(last), last["executed"]) == (undisturbed, [])
    wrong = path.read_text().replace("* 3)", "* 4)").replace("x + x + x", "x + x")
    path.write_text(wrong)
    assert mini.run(code=1)["results"][0]["verdict"] == "failed"


class Losing(Listener):
    """Deletes the result of each task of a stage once it is stored, as a hostile op may do."""

    def __init__(self, workspace: Workspace, stage: str) -> None:
        self._workspace, self._stage = workspace, stage

    def on_task(self, event: TaskEvent) -> None:
        if event.what != "started" and event.task.startswith(f"{self._stage}:"):
            self._workspace.cache.state.delete(f"result:{event.task}")


@pytest.mark.parametrize("stage", ["compare", "diff"])
def test_a_result_that_is_gone_before_the_report_is_told_in_it(mini: Mini, stage: str) -> None:
    mini.keep_only("scale")
    workspace = Workspace(mini.root, environ=mini.environment())
    workspace.trusted = True
    _, report = run_and_report(workspace, RunOptions(jobs=1), Losing(workspace, stage))
    assert [result.op for result in report.results] == ["scale"]
    assert report.exit_code == 3
    told = [str(p) for p in report.problems] + [result.reason for result in report.results]
    assert any("cache-result" in text for text in told)
    assert mini.run()["results"][0]["verdict"] == "passed"


def test_one_job_makes_the_lost_outputs_of_many_cases_again(mini: Mini) -> None:
    """Of each batch before a judge holds the only worker."""
    many = ("scale", "--cases", "80")
    mini.run(*many)
    shutil.rmtree(mini.root / ".gpuemu-cache" / "blobs")
    again = mini.run(*many, "-j", "1", "--forcerun", "compare:scale:float32")
    assert {(r["verdict"], r["cases"]) for r in again["results"]} == {("passed", 80)}
