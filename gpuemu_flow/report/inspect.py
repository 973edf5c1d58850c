"""Describe and explain the states of tasks, and clean a workspace, without running tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from gpuemu_flow.build.graph import select
from gpuemu_flow.build.session import RunOptions, RunOutcome
from gpuemu_flow.build.states import TaskStates
from gpuemu_flow.build.unordered import unordered
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.judge.results import Absence, RunReport
from gpuemu_flow.report.report import build_report, item_of
from gpuemu_flow.report.submissions import forget_submissions
from gpuemu_flow.report.workspace_text import (
    CacheSize,
    ListedTask,
    OriginTask,
    SkippedTask,
    StatusCounts,
    TaskExplanation,
    TaskSummary,
    WorkspaceListing,
    WorkspaceStatus,
)
from gpuemu_flow.store.failures import FailureStore
from gpuemu_flow.store.private_files import RunLock
from gpuemu_flow.tasks.base import RESULT, TaskSpec
from gpuemu_flow.tasks.stages import COMPARE, LINT

_SYSTEM = ("<", "/usr/", "/lib")


def explain_tasks(workspace: Workspace, words: Iterable[str]) -> list[TaskExplanation]:
    """Explain why each of the named tasks would run, or that it is current."""
    words = tuple(words)
    states = workspace.states()
    chosen = select(workspace, words)
    stale = workspace.stale(workspace.graph.upstream(chosen))
    if not words:
        chosen &= stale
    found = []
    for name in (n for n in workspace.graph.tasks if n in chosen):
        spec = workspace.graph.tasks[name]
        parts = states.parts(spec)
        reads = (
            *spec.sources,
            *_observed(workspace, spec),
            *(f"the result of {i.task}" for i in spec.inputs),
        )
        found.append(
            TaskExplanation(
                task=name,
                current=name not in stale,
                key=parts.key(),
                changes=tuple(states.reasons(spec, parts)),
                because=_origins(workspace, states, name, stale),
                reads=reads,
            )
        )
    workspace.cache.close()
    return found


def _observed(workspace: Workspace, spec: TaskSpec) -> list[str]:
    """Return texts that name the observed inputs of a program: files, packages, variables. Its
    sources and the system's libraries are left out. The libraries belong to the key, too, but are
    much the same for all programs."""
    names = workspace.snapshot.observed.names([spec.name])
    files = [path for path in names.files - set(spec.sources) if not path.startswith(_SYSTEM)]
    packages = [f"package {package.rpartition('|')[2]}" for package in names.packages]
    variables = [f"environment variable {name}" for name in names.variables if name != "*"]
    return [*sorted(files), *sorted(packages), *sorted(variables)]


def _origins(
    workspace: Workspace, states: TaskStates, name: str, stale: set[str]
) -> tuple[OriginTask, ...]:
    """Return the upstream tasks of `name` that would run for reasons of their own, sorted."""
    tasks = workspace.graph.tasks
    found = []
    for before in workspace.graph.upstream([name]) - {name}:
        reasons = states.reasons(tasks[before], states.parts(tasks[before]))
        if before in stale and reasons:
            found.append(OriginTask(before, tuple(reason.what for reason in reasons)))
    return tuple(sorted(found, key=lambda origin: origin.task))


def list_workspace(
    workspace: Workspace, words: Iterable[str], *, with_status: bool
) -> WorkspaceListing:
    graph = workspace.graph
    chosen = select(workspace, words)
    stale = workspace.stale(chosen) if with_status else set()
    tasks = []
    for name, spec in graph.tasks.items():
        if name in chosen:
            status = ("stale" if name in stale else "current") if with_status else ""
            tasks.append(ListedTask(name, spec.stage, spec.subject, status))
    workspace.cache.close()
    return WorkspaceListing(
        tasks=tuple(tasks),
        groups={name: len(graph.groups[name]) for name in graph.names()},
        skipped=tuple(SkippedTask(s.op, s.dtype, s.reason) for s in graph.skips),
    )


def summarise_tasks(workspace: Workspace, chosen: set[str]) -> list[TaskSummary]:
    """Return the state, the last duration and the outputs of each chosen task, in graph order."""
    states = workspace.states()
    stale = workspace.stale(chosen)
    found = []
    for name, spec in workspace.graph.tasks.items():
        if name not in chosen:
            continue
        record = states.record(name)
        state = "stale" if name in stale else "current"
        if record is None:
            state = "failed" if states.has_failed(name) else "new"
        found.append(TaskSummary(name, state, states.duration(name), spec.outputs))
    workspace.cache.close()
    return found


def known_report(workspace: Workspace) -> tuple[RunReport, set[str], set[str]]:
    """Build the report of all known results, without running anything."""
    graph, states = workspace.graph, workspace.states()
    stale = workspace.stale(set(graph.tasks))
    moved = {name for name in stale if states.moved(graph.tasks[name])}
    causes = {name: states.broken(graph.tasks[name]) for name in moved}
    broken = {name: why for name, why in causes.items() if why is not None}
    broken |= {name: [problem] for name, problem in unordered(workspace, graph.tasks).items()}
    outcome = RunOutcome(graph, RunOptions(), set(graph.tasks))
    outcome.status = {name: "current" for name in graph.tasks if name not in stale}
    outcome.problems = [problem for why in broken.values() for problem in why]
    # As after an interrupted run, missing results are no errors.
    outcome.interrupted = True
    report = build_report(workspace, outcome, broken=graph.downstream(set(broken)))
    outdated = graph.downstream(moved - set(broken)) - graph.downstream(set(broken))
    return replace(report, interrupted=False), stale, outdated


def workspace_status(workspace: Workspace) -> WorkspaceStatus:
    graph, cache = workspace.graph, workspace.cache
    report, stale, outdated = known_report(workspace)
    every = [r.verdict for r in report.results] + [k.verdict for k in report.kernels]
    changed = {
        item_of(graph.tasks[name])
        for name in outdated
        if graph.tasks[name].stage in (COMPARE, LINT)
    }
    absences = {(r.op, r.dtype): r.absence for r in report.results}
    absences |= {(k.kernel, k.arch): k.absence for k in report.kernels}
    found = WorkspaceStatus(
        root=str(workspace.root),
        tasks=StatusCounts(
            total=len(graph.tasks),
            current=len(graph.tasks) - len(stale),
            stale=len(stale),
            skipped=len(graph.skips),
        ),
        verdicts=Counter(verdict.value for verdict in every),
        outdated=sum(
            item in changed or absence is Absence.OUTDATED for item, absence in absences.items()
        ),
        cache=CacheSize(
            folder=str(cache.folder),
            blobs_bytes=cache.blobs.volume(),
            actions_bytes=cache.actions.volume() if (cache.folder / "actions").exists() else 0,
            size_limit=workspace.settings.size_limit,
        ),
    )
    cache.close()
    return found


def clean_submissions(workspace: Workspace, words: Iterable[str], *, only: bool) -> int:
    """Delete what clients submitted for the named ops, or for all; return the number of results.
    Raises UsageError: ``unknown-op``."""
    known = {op.name for op in workspace.config.ops}
    chosen = [workspace.config.op(word).name for word in words if only or word in known]
    if words and not chosen:
        return 0
    workspace.forget_clean()
    return forget_submissions(workspace, chosen or None)


def clean_workspace(
    workspace: Workspace,
    words: Iterable[str],
    *,
    whole_cache: bool,
    on_wait: Callable[[str], None] | None = None,
) -> int:
    """Delete the results and records of tasks; return the number of records. Raises UsageError: A
    word selects no task."""
    chosen = select(workspace, words)
    cache = workspace.cache
    cache.create()
    with RunLock(cache.lock_path, on_wait):
        workspace.forget_clean()
        states = workspace.states()
        known = {name for name in chosen if states.record(name) is not None}
        for name in chosen:
            states.forget(name)
        cache.state.delete_many([RESULT + name for name in chosen])
        if whole_cache:
            # The inputs of recorded failures are kept, since they are results and not only cached.
            cache.blobs.collect(0, FailureStore(cache).pinned())
            cache.close()
            for part in ("actions", "staging", "quarantine", "logs"):
                cache.files.remove_tree(cache.folder / part)
        workspace.save(workspace.snapshot.current - chosen)
        cache.close()
    return len(known)
