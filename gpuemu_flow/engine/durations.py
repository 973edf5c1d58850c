"""Use the durations of earlier runs to order tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpuemu_flow.engine.states import TaskStates
from gpuemu_flow.graph.graph import Graph
from gpuemu_flow.types import Json


def known_durations(states: TaskStates, names: Collection[str]) -> dict[str, float]:
    """Return the tasks' last durations in seconds; tasks without a known duration are left out."""
    found = {name: states.duration(name) for name in names}
    return {name: seconds for name, seconds in found.items() if seconds is not None}


def with_real_duration(
    values: Mapping[str, Json], before: Mapping[str, Json], *, executed: bool
) -> Mapping[str, Json]:
    """Return a task's values with the duration of all its work, including work of earlier runs.

    In the result, ``duration_s`` is the sum of two durations:

    - For the cases that were run now: ``duration_s`` in `values`.
    - For the restored cases, which were run earlier: ``duration_s`` of the task's last success,
      divided by its number of cases and multiplied by the number of restored cases.

    If no case was restored, or if a duration is unknown, `values` are returned unchanged. A task
    without cases is treated as one case.
    """
    cases, known_cases = values.get("cases", 1), before.get("cases", 1)
    ran = values.get("executed", int(executed))
    known, took = before.get("duration_s"), values.get("duration_s")
    if took is None or known is None or ran >= cases or not known_cases:
        return values
    kept = known if (ran, cases) == (0, known_cases) else known / known_cases * (cases - ran)
    return {**values, "duration_s": kept + took if ran else kept}


def longest_first(graph: Graph, names: Collection[str], seconds: Mapping[str, float]) -> list[str]:
    """Order tasks by the longest path that begins at each task, longest first.

    On a path, each task reads the output of the previous one. The length of a path is the sum of
    its tasks' durations. Starting long paths early shortens the run. Tasks with equally long paths
    keep the order of the graph.
    """
    order = [name for name in graph.tasks if name in names]
    if not seconds:
        return order
    ways: dict[str, float] = {}
    for name in reversed(order):
        after = [ways[reader] for reader in graph.readers(name) if reader in ways]
        ways[name] = seconds.get(name, 0.0) + max(after, default=0.0)
    return sorted(order, key=lambda name: -ways[name])
