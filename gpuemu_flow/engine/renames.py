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
"""Stages whose manifests do not contain the name of the op."""


@dataclass(frozen=True)
class MovedNames:
    """The ops that only clients run and that were removed or added since the last run.

    Attributes
    ----------
    gone, new : frozenset of str
        Names of the removed ops, and names of the added ops.
    """

    gone: frozenset[str] = frozenset()
    new: frozenset[str] = frozenset()


def moved_names(old: Graph, new: Graph) -> MovedNames:
    """Find the ops that only clients run and that only one of the two graphs contains."""
    before, after = _names(old), _names(new)
    untasked = [{skip.op for skip in graph.skips if skip.dtype} for graph in (old, new)]
    return MovedNames(frozenset(untasked[0] - after), frozenset(untasked[1] - before))


def _names(graph: Graph) -> set[str]:
    return {skip.op for skip in graph.skips} | {spec.subject for spec in graph.tasks.values()}


def renamed_tasks(old: Graph, new: Graph) -> dict[str, TaskSpec]:
    """Match new ops with removed ops that differ only in the name.

    Returns
    -------
    dict of str to TaskSpec
        The old task for each new task name, in topological order. Each removed op is matched at
        most once. A copy of an op that still exists has no match.
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
    """Copy manifests and records to the tasks' new names, and rename the ops' stored failures.

    As for every task, the key of a copied record decides whether the record is still valid.

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
    """Return an op's tasks as JSON without the op's name, for comparison with another op.

    The result is [] if the manifest of a task may contain the name. JSON is used because a task
    from a snapshot has lists where a new task has tuples.
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
    """Copy the manifest of `source` to the place of the manifest of `target`.

    Return False, and copy nothing, if the manifest is missing or no longer has the digest `digest`.
    """
    try:
        data = cache.files.read(cache.folder / source.target)
    except OSError:
        return False
    if digest_bytes(data) != digest:
        return False
    cache.files.write(cache.folder / target.target, data)
    return True
