"""What the last run found, read without compiling or running anything: for editors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuemu_flow.engine import plan, snapshot
from gpuemu_flow.engine.discovery import Discovery
from gpuemu_flow.engine.snapshot import Snapshot
from gpuemu_flow.engine.states import TaskStates
from gpuemu_flow.engine.workspace import SNAPSHOT_NAME
from gpuemu_flow.reports.model import OpResult, ReportBuilder
from gpuemu_flow.store.failures import FailureRecord, FailureStore
from gpuemu_flow.store.workspace_cache import WorkspaceCache

MAX_FAILURES = 2_000


@dataclass(frozen=True)
class LastResults:
    """Results of a workspace's ops as they lie in its cache.

    Attributes
    ----------
    results : mapping of str to tuple of OpResult
        By op, one per dtype.
    outdated : frozenset of str
        Ops of which something changed since: a file, the configuration, or a task before them.
    failures : mapping of str to tuple of FailureRecord
        By op, newest first.
    """

    results: Mapping[str, tuple[OpResult, ...]]
    outdated: frozenset[str]
    failures: Mapping[str, tuple[FailureRecord, ...]]


NOTHING = LastResults({}, frozenset(), {})


def last_results(root: Path) -> LastResults:
    """Read what the last run of a workspace left; nothing when there was none, or it is damaged.

    No program is run and no configuration is read, so that it is safe in a folder of unknown
    origin.
    """
    known = snapshot.load(root / plan.CACHE_NAME / SNAPSHOT_NAME, root)
    if known is None:
        return NOTHING
    folder = known.settings.get("cache_dir")
    cache = WorkspaceCache(Path(folder) if folder else root / plan.CACHE_NAME)
    try:
        return LastResults(
            _results(known, cache), frozenset(_outdated(known, cache)), _failures(cache)
        )
    finally:
        cache.close()


def _results(known: Snapshot, cache: WorkspaceCache) -> dict[str, tuple[OpResult, ...]]:
    builder = ReportBuilder(cache, known.graph.tasks, {})
    found: dict[str, tuple[OpResult, ...]] = {}
    for spec in known.graph.tasks.values():
        result = builder.op_result(spec) if spec.stage == "compare" else None
        if result is not None:
            found[spec.subject] = (*found.get(spec.subject, ()), result)
    return found


def _outdated(known: Snapshot, cache: WorkspaceCache) -> set[str]:
    """Ops with a task whose files changed, or that was not current when the last run ended."""
    states = TaskStates(cache, known.files, {})
    before = dict(known.files.entries)
    changed = known.files.refresh(sorted(before))
    tasks = known.graph.tasks
    used_otherwise = known.observed.changed(Discovery(known.files, ignored=[cache.folder]))
    config = any(
        known.files.digest(path) != digest for path, digest in known.basis.get("config", ())
    )
    moved = {
        name
        for name, spec in tasks.items()
        if config
        or name not in known.current
        or states.manifest(spec.target) in changed
        or not changed.isdisjoint(spec.sources)
        or name in used_otherwise
    }
    return {tasks[name].subject for name in known.graph.downstream(moved)}


def _failures(cache: WorkspaceCache) -> dict[str, tuple[FailureRecord, ...]]:
    if not (cache.folder / "failures").is_dir():
        return {}
    found: dict[str, tuple[FailureRecord, ...]] = {}
    for record in FailureStore(cache).list(limit=MAX_FAILURES):
        found[record.op] = (*found.get(record.op, ()), record)
    return found
