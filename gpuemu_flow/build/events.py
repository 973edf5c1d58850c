"""Events of a run, as data for a display."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from gpuemu_flow.tasks.base import Progress


class TaskEvent(Struct, frozen=True):
    """A change of a task's status."""

    task: str
    what: str


class Listener:
    """Receives the events of a run, from several threads. This base class ignores them."""

    def on_plan(self, total: int, todo: int) -> None:
        """Handle the start: `total` tasks are selected, and `todo` of them may have to run."""

    def on_expected(self, seconds: Mapping[str, float], jobs: int) -> None:
        """Handle the tasks' expected durations in seconds; called before any task starts.

        At most `jobs` tasks run at a time.
        """

    def on_task(self, event: TaskEvent) -> None:
        """Handle a change of a task's status."""

    def on_progress(self, progress: Progress) -> None:
        """Handle progress in a task: some more of its cases have ended."""

    def on_wait(self, holder: str) -> None:
        """Handle the start of waiting for another run of the workspace, described by `holder`."""
