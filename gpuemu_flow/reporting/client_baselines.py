"""Store results and kernel figures that clients of the daemon submitted, as part of a baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpuemu_flow import __version__
from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.errors import UsageError
from gpuemu_flow.fuzz.results_folder import results_folder
from gpuemu_flow.reporting.submissions import submitted_results, submitted_summaries
from gpuemu_flow.store.artifacts import ArtifactMetrics, ArtifactStore
from gpuemu_flow.store.baselines import Baseline, BaselineStore, SubmittedResult
from gpuemu_flow.store.failure_record import now
from gpuemu_flow.store.result_records import StoredResult
from gpuemu_flow.store.results import FOLDER, ResultStore
from gpuemu_flow.types import Json, Verdict


def store_submitted(workspace: Workspace, tag: str, latest: Iterable[StoredResult]) -> int:
    """Store the clients' newest results in a baseline, and leave its other parts unchanged.

    Summaries of the ops that only clients run are stored, too, so that ``diff`` compares them.
    """
    submitted = as_submitted(latest)
    counted = submitted_results(workspace, workspace.graph.skips)
    results: dict[str, dict[str, Json]] = {}
    for (op, dtype), summary in submitted_summaries(workspace, counted.values()).items():
        results.setdefault(op, {})[dtype] = summary
    before = _baseline(workspace, tag)
    _put(workspace, replace(before, submitted=submitted, results={**before.results, **results}))
    return len(submitted)


def store_artifacts(workspace: Workspace, tag: str, figures: Mapping[str, ArtifactMetrics]) -> None:
    """Store in a baseline the kernel figures that clients submitted; change nothing else in it."""
    _put(workspace, replace(_baseline(workspace, tag), artifacts=figures))


def of_clients(
    workspace: Workspace,
) -> tuple[tuple[SubmittedResult, ...], dict[str, ArtifactMetrics]]:
    """Return the clients' newest results and their kernel figures, for a complete baseline."""
    folder = results_folder(workspace.config, workspace.cache)
    submitted: tuple[SubmittedResult, ...] = ()
    if (folder / FOLDER).exists():
        results = ResultStore(workspace.cache, folder, max_results=0)
        try:
            submitted = as_submitted(results.latest().values())
        finally:
            results.close()
    artifacts = ArtifactStore(workspace.cache)
    try:
        return submitted, artifacts.everything()
    finally:
        artifacts.close()


def as_submitted(latest: Iterable[StoredResult]) -> tuple[SubmittedResult, ...]:
    """Return results in the form that a baseline stores."""
    return tuple(
        SubmittedResult(
            stored.op, stored.seed, stored.judged.verdict is Verdict.PASSED, stored.judged.max_abs
        )
        for stored in latest
    )


def _baseline(workspace: Workspace, tag: str) -> Baseline:
    """Return baseline `tag`, or a new empty one if there is none.

    Its time, tool version and environment are set to the present ones.
    """
    environment = dict(workspace.environment)
    try:
        known = BaselineStore(workspace.cache).get(tag)
    except UsageError:
        return Baseline(tag, now(), __version__, environment, of_run=False)
    return replace(known, created=now(), tool=__version__, environment=environment)


def _put(workspace: Workspace, baseline: Baseline) -> None:
    known = BaselineStore(workspace.cache)
    known.put(baseline)
    known.trim(workspace.config.storage.max_baselines, baseline.tag)
