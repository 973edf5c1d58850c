"""Estimate the remaining time of a run from the durations of earlier runs."""

from __future__ import annotations

from collections.abc import Mapping

_WITH_HISTORY = 0.5
"""Minimum share of the work with known durations for which an estimate is made."""


class Remaining:
    """An estimate of the time that a run will still take."""

    def __init__(self, seconds: Mapping[str, float], todo: int, jobs: int) -> None:
        self._seconds = dict(seconds)
        self._todo = todo
        self._jobs = max(1, jobs)
        self._finished: set[str] = set()

    def finish(self, task: str) -> None:
        """Count a task that has ended, whatever its outcome."""
        self._finished.add(task)

    def estimate(self, running: Mapping[str, float]) -> float | None:
        """Return the remaining seconds; None if too little is known.

        A task that already takes longer than last time is assumed to need another tenth of its time
        so far, so that the estimate is never 0.
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
