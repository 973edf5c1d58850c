"""Use the durations of earlier runs to order tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpuemu_flow.engine.states import TaskStates
from gpuemu_flow.graph.graph import Graph
from gpuemu_flow.types import Json


def known_durations(states: TaskStates, names: Collection[str]) -> dict[str, float]:
    """Return the seconds that the work of tasks took when it was last done, where known."""
    found = {name: states.duration(name) for name in names}
    return {name: seconds for name, seconds in found.items() if seconds is not None}


def with_real_duration(
    values: Mapping[str, Json], before: Mapping[str, Json], *, executed: bool
) -> Mapping[str, Json]:
    """Return a task's values with the duration of all of its work, restored parts included.

    Parameters
    ----------
    values : mapping
        Values of the action that has just ended; its ``duration_s`` is the time it took to restore
        results, or the duration that was stored with restored ones.
    before : mapping
        Values of the task's last success; empty if it has none.
    executed : bool
        Some of the work was done.
    """
    cases, known_cases = values.get("cases", 1), before.get("cases", 1)
    ran = values.get("executed", int(executed))
    known, took = before.get("duration_s"), values.get("duration_s")
    if took is None or known is None or ran >= cases or not known_cases:
        return values
    kept = known if (ran, cases) == (0, known_cases) else known / known_cases * (cases - ran)
    return {**values, "duration_s": kept + took if ran else kept}


def longest_first(graph: Graph, names: Collection[str], seconds: Mapping[str, float]) -> list[str]:
    """Order tasks by the longest path that begins with each, the longest first.

    On a path each task reads the output of the task before it; its length is the sum of the tasks'
    durations. Starting the longest paths first keeps a run from waiting for one at its end. Tasks
    whose paths are equally long keep the order of the graph.
    """
    order = [name for name in graph.tasks if name in names]
    if not seconds:
        return order
    ways: dict[str, float] = {}
    for name in reversed(order):
        after = [ways[reader] for reader in graph.readers(name) if reader in ways]
        ways[name] = seconds.get(name, 0.0) + max(after, default=0.0)
    return sorted(order, key=lambda name: -ways[name])
