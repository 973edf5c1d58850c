"""Take over the results of renamed ops, so that nothing runs again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpuemu_flow.engine.states import TaskStates
from gpuemu_flow.graph.graph import Graph
from gpuemu_flow.inputs.observed_sets import ObservedSets
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.store.failures import FailureStore
from gpuemu_flow.store.keys import canonical, digest_bytes
from gpuemu_flow.store.workspace_cache import WorkspaceCache
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import TaskSpec

_NAMELESS = (stages.GENERATE, stages.OP, stages.REFERENCE, stages.COMPARE, stages.DIFF)
"""Stages whose manifests do not hold what their subject is called."""


@dataclass(frozen=True)
class MovedNames:
    """Names of client-run ops that were added or removed since the last run.

    Attributes
    ----------
    gone, new : frozenset of str
    """

    gone: frozenset[str] = frozenset()
    new: frozenset[str] = frozenset()


def moved_names(old: Graph, new: Graph) -> MovedNames:
    """Find the ops that only clients run and that only one of two graphs has."""
    before, after = _names(old), _names(new)
    untasked = [{skip.op for skip in graph.skips if skip.dtype} for graph in (old, new)]
    return MovedNames(frozenset(untasked[0] - after), frozenset(untasked[1] - before))


def _names(graph: Graph) -> set[str]:
    return {skip.op for skip in graph.skips} | {spec.subject for spec in graph.tasks.values()}


def renamed_tasks(old: Graph, new: Graph) -> dict[str, TaskSpec]:
    """Match each new op that differs from a removed one in nothing but its name.

    Returns
    -------
    dict of str to TaskSpec
        The former task of each renamed task, by its name in `new`, in topological order. Each
        removed op is taken over at most once. A copy of an op that still exists is a new op.
    """
    before, after = _by_subject(old.tasks.values()), _by_subject(new.tasks.values())
    gone = {name: _nameless(before[name]) for name in before.keys() - after.keys()}
    found: dict[str, TaskSpec] = {}
    for name in after:
        shape = _nameless(after[name])
        former = next((n for n in sorted(gone) if gone[n] == shape), None)
        if name not in before and former is not None and shape:
            del gone[former]
            pairs = zip(after[name], before[former], strict=True)
            found.update((spec.name, was) for spec, was in pairs)
    return found


def take_over(
    renamed: Mapping[str, TaskSpec],
    graph: Graph,
    cache: WorkspaceCache,
    states: TaskStates,
    observed: ObservedSets,
) -> None:
    """Copy manifests and records from the tasks' former names, and rename the op's failures.

    Whether a copied record is still valid is decided by its key, as for every task.

    Parameters
    ----------
    renamed : mapping of str to TaskSpec
        As `renamed_tasks` returns it.
    graph : Graph
        The graph with the new names.
    cache : WorkspaceCache
        The cache, whose run lock is held.
    states : TaskStates
    observed : ObservedSets
        Gets the inputs that the tasks were seen to use.
    """
    ops: dict[str, str] = {}
    for name, former in renamed.items():
        spec, record = graph.tasks[name], states.record(former.name)
        own = states.record(name)
        if own is not None and not states.reasons(spec, states.parts(spec)):
            record = own  # the op had this name before, and nothing changed since
        elif record is None or not _copy(cache, former, spec, record.digest):
            continue
        else:
            states.restore(spec, record)
        if record.inputs:
            observed.record(name, record.discovered, record.observed)
        if spec.stage == stages.COMPARE:
            ops[former.subject] = spec.subject
    for old, new in ops.items():
        FailureStore(cache).rename(old, new)


def _by_subject(specs: Iterable[TaskSpec]) -> dict[str, list[TaskSpec]]:
    found: dict[str, list[TaskSpec]] = {}
    for spec in specs:
        found.setdefault(spec.subject, []).append(spec)
    return found


def _nameless(specs: Iterable[TaskSpec]) -> list[bytes]:
    """Return one op's tasks without its name; none if their manifests may contain the name.

    They are compared as bytes: a task that was read from a snapshot has lists where a new one has
    tuples.
    """
    specs = list(specs)
    if any(spec.stage not in _NAMELESS for spec in specs):
        return []
    own = {spec.name for spec in specs}
    found = []
    for spec in specs:
        inputs = (replace(i, task="", path="") if i.task in own else i for i in spec.inputs)
        judge = "" if spec.judge in own else spec.judge
        shown = replace(spec, name="", subject="", target="", judge=judge, inputs=tuple(inputs))
        found.append(canonical(shown.to_json()))
    return found


def _copy(cache: WorkspaceCache, source: TaskSpec, target: TaskSpec, digest: str) -> bool:
    """Copy a manifest if it is still the recorded one."""
    try:
        data = cache.files.read(cache.folder / source.target)
    except OSError:
        return False
    if digest_bytes(data) != digest:
        return False
    cache.files.write(cache.folder / target.target, data)
    return True
