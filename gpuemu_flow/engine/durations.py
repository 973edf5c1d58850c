"""Use the durations of earlier runs to order tasks and to estimate the remaining time."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gpuemu_flow.engine.states import TaskStates
from gpuemu_flow.graph.graph import Graph
from gpuemu_flow.types import Json

_WITH_HISTORY = 0.5
"""The share of the expected work of which the durations have to be known for an estimate."""


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
    """Order tasks by the longest way that begins with each, the longest first.

    A way is a chain of tasks in which each one reads the one before. Starting the longest chains
    first keeps a run from waiting for one of them at its end. Tasks whose ways are equally long
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


class Remaining:
    """An estimate of the time that a run will still take.

    Parameters
    ----------
    seconds : mapping of str to float
        Durations of earlier runs.
    todo : int
        Number of tasks that may run.
    jobs : int
        Tasks at a time.
    """

    def __init__(self, seconds: Mapping[str, float], todo: int, jobs: int) -> None:
        self._seconds = dict(seconds)
        self._todo = todo
        self._jobs = max(1, jobs)
        self._finished: set[str] = set()

    def finish(self, task: str) -> None:
        """Count a task that has ended, however it did."""
        self._finished.add(task)

    def estimate(self, running: Mapping[str, float]) -> float | None:
        """Return the seconds still to come; None where too little is known.

        Parameters
        ----------
        running : mapping of str to float
            Seconds since each running task began.

        Notes
        -----
        Nobody knows when a task that already takes longer than last time will end. It is taken to
        need another tenth of its time so far, so that the estimate never stands at 0.
        """
        if len(self._seconds) < _WITH_HISTORY * self._todo or not self._seconds:
            return None
        usual = sum(self._seconds.values()) / len(self._seconds)
        left = [
            max(self._seconds.get(task, usual) - since, 0.1 * since)
            for task, since in running.items()
        ]
        waiting = [
            value
            for task, value in self._seconds.items()
            if task not in self._finished and task not in running
        ]
        unknown = self._todo - len(self._finished) - len(running) - len(waiting)
        total = sum(left) + sum(waiting) + max(0, unknown) * usual
        return max(total / self._jobs, max(left, default=0.0))
