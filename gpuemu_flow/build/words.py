"""Select tasks by the words of a command line, and by sets such as ``@changed``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from gpuemu_flow.model.errors import Problem, StoreError, UsageError, did_you_mean
from gpuemu_flow.model.types import BAD
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import TaskSpec, read_result

if TYPE_CHECKING:
    from gpuemu_flow.build.workspace import Workspace


def select(workspace: Workspace, words: Iterable[str], dtypes: Iterable[str] = ()) -> set[str]:
    """Return the tasks that the words of a command line name, without their dependencies.

    Raises UsageError: The errors of `Graph.select`. Also ``unknown-set``, for a word that begins
    with ``@`` but is neither a name in `SETS` nor a group.
    """
    graph, words = workspace.graph, list(words)
    named = [word for word in words if not is_set(word) or word in graph.groups]
    sets = [word for word in words if word not in named]
    unknown = [word for word in sets if word not in SETS]
    if unknown:
        raise UsageError(*map(_unknown, unknown))
    chosen = graph.select(named, dtypes) if named or not sets else set()
    if sets:
        wanted = graph.select((), dtypes)
        for word in sets:
            chosen |= SETS[word](workspace) & wanted
    return chosen


def is_set(word: str) -> bool:
    """Tell whether a word has the form of a set of tasks: it begins with ``@``."""
    return word.startswith("@")


def _unknown(word: str) -> Problem:
    return Problem("unknown-set", f"there is no set {word!r}", did_you_mean(word, list(SETS)))


def _changed(workspace: Workspace) -> set[str]:
    """Return the tasks that changed or never finished, and all tasks that depend on them."""
    return workspace.stale(set(workspace.graph.tasks))


def _new(workspace: Workspace) -> set[str]:
    """Return the tasks that were never tried."""
    states = workspace.states()
    return {
        name
        for name in workspace.graph.tasks
        if states.record(name) is None and not states.has_failed(name)
    }


def _failed(workspace: Workspace) -> set[str]:
    """Return the tasks whose verdict is failed or error, and those that failed to make a result.

    Tasks that depend on a task without a result are included.
    """
    states, graph = workspace.states(), workspace.graph
    broken = {
        name for name in graph.tasks if states.has_failed(name) and states.record(name) is None
    }
    bad = {
        name
        for name, spec in graph.tasks.items()
        if states.record(name) is not None and _verdict(workspace, spec) in _BAD
    }
    return bad | graph.downstream(broken)


_BAD = frozenset(verdict.value for verdict in BAD)


def _verdict(workspace: Workspace, spec: TaskSpec) -> str:
    """Return the verdict in the result of a comparison or a lint; empty if there is none."""
    if spec.stage not in (stages.COMPARE, stages.LINT):
        return ""
    try:
        result = read_result(workspace.cache, spec.name, spec.stage)
    except StoreError:
        return ""
    found = result["summary"] if spec.stage == stages.COMPARE else result
    return str(found["verdict"])


SETS: dict[str, Callable[[Workspace], set[str]]] = {
    "@changed": _changed,
    "@failed": _failed,
    "@new": _new,
}
"""Sets of tasks by their states."""
