"""Read the results of the last run for editors, without compiling or running anything."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from gpuemu_flow.build import snapshot, stamps
from gpuemu_flow.build.discovery import Discovery
from gpuemu_flow.build.snapshot import Snapshot
from gpuemu_flow.build.states import TaskStates
from gpuemu_flow.build.unordered import RuleOutputs
from gpuemu_flow.judge.results import OpResult
from gpuemu_flow.model.errors import StoreError
from gpuemu_flow.model.types import Verdict
from gpuemu_flow.report.report import ReportBuilder
from gpuemu_flow.store.cache import WorkspaceCache
from gpuemu_flow.store.failures import FailureRecord, FailureStore
from gpuemu_flow.tasks import stages

MAX_FAILURES = 2_000


class LastResults(Struct, frozen=True):
    """Results of a workspace's ops, read from its cache."""

    results: Mapping[str, tuple[OpResult, ...]]
    outdated: frozenset[str]
    failures: Mapping[str, tuple[FailureRecord, ...]]


NOTHING = LastResults({}, frozenset(), {})


def last_results(root: Path) -> LastResults:
    """Return the last results of a workspace; `NOTHING` if there are none, or they are damaged.
    This is safe in a folder of unknown origin, since no program is run and no configuration is
    read."""
    home = WorkspaceCache(root / stamps.CACHE_NAME)
    try:
        known = snapshot.load(home, root)
    except StoreError:
        known = None
    finally:
        home.close()
    if known is None:
        return NOTHING
    folder = known.settings.cache_dir
    if folder and not Path(os.path.normpath(folder)).is_relative_to(root):
        return NOTHING  # only the configuration, not read here, may name one outside
    cache = WorkspaceCache(Path(folder) if folder else root / stamps.CACHE_NAME)
    try:
        outdated, broken = _state(known, cache)
        return LastResults(_results(known, cache, broken), frozenset(outdated), _failures(cache))
    finally:
        cache.close()


def _results(
    known: Snapshot, cache: WorkspaceCache, broken: Mapping[str, str]
) -> dict[str, tuple[OpResult, ...]]:
    builder = ReportBuilder(cache, known.graph.tasks, {})
    found: dict[str, tuple[OpResult, ...]] = {}
    for spec in known.graph.tasks.values():
        if spec.stage != stages.COMPARE:
            continue
        result = builder.op_result(spec)
        if spec.name in broken:  # an older result does not describe an op that now has none
            reason = broken[spec.name]
            result = OpResult(spec.subject, spec.dtype, Verdict.ERROR, reason=reason)
        if result is not None:
            found[spec.subject] = (*found.get(spec.subject, ()), result)
    return found


def _state(known: Snapshot, cache: WorkspaceCache) -> tuple[set[str], dict[str, str]]:
    """Return the ops with changed inputs, and the reason for each task that made no result. As in
    `report.inspect.known_report`, only records are read. A task of which a case ended in an error
    counts as unchanged, although a run would execute it again."""
    lookup = Discovery(known.files, ignored=[cache.folder])
    changed = known.files.refresh()
    tasks, graph = known.graph.tasks, known.graph
    if any(known.files.digest(path) != digest for path, digest in known.basis.config):
        return {spec.subject for spec in tasks.values()}, {}
    states = TaskStates(cache, known.files, known.basis.environment, inputs=lookup)
    used_otherwise = known.observed.changed(lookup)
    touched = {
        name
        for name, spec in tasks.items()
        if name not in known.current
        or not changed.isdisjoint(spec.sources)
        or name in used_otherwise
    }
    suspects = {n for t in touched for n in (t, *graph.readers(t))}
    moved = {name for name in suspects if states.moved(tasks[name])}
    causes = {name: states.broken(tasks[name]) for name in moved}
    rules = RuleOutputs.of(graph, known.files.root)
    if rules.producers:
        early = rules.not_waited_for(graph, known.observed, states, tasks)
        causes |= {name: [problem] for name, problem in early.items()}
    broken: dict[str, str] = {}
    for name, problems in causes.items():
        if problems is not None:
            reason = "; ".join(problem.message for problem in problems) or "made no outputs"
            broken.update({n: reason for n in graph.downstream({name}) if n not in broken})
    outdated = graph.downstream(moved - set(broken)) - set(broken)
    compared = [tasks[name] for name in outdated if tasks[name].stage == stages.COMPARE]
    return {spec.subject for spec in compared}, broken


def _failures(cache: WorkspaceCache) -> dict[str, tuple[FailureRecord, ...]]:
    if not (cache.folder / "failures").is_dir():
        return {}
    found: dict[str, tuple[FailureRecord, ...]] = {}
    for record in FailureStore(cache).list(limit=MAX_FAILURES):
        found[record.op] = (*found.get(record.op, ()), record)
    return found
