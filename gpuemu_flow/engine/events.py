"""Events of a run, as data for a display."""

from __future__ import annotations

from typing import Protocol

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.tasks.base import Progress


@dataclass(frozen=True)
class TaskEvent:
    """A change of a task's status.

    Attributes
    ----------
    task : str
    what : str
        ``started``, ``current``, ``ran``, ``restored`` or ``failed``.
    """

    task: str
    what: str


class Listener(Protocol):
    """Receiver of the events of a run, which come from several threads."""

    def on_plan(self, total: int, todo: int) -> None:
        """Called once `total` tasks are selected, of which `todo` may have to run."""

    def on_task(self, event: TaskEvent) -> None:
        """Called when the status of a task changes."""

    def on_progress(self, progress: Progress) -> None:
        """Called when a task has finished some of its cases."""

    def on_wait(self, holder: str) -> None:
        """Called when another run holds the workspace; `holder` describes it."""


class Quiet:
    """A listener that shows nothing."""

    def on_plan(self, total: int, todo: int) -> None:
        """Ignore the event."""

    def on_task(self, event: TaskEvent) -> None:
        """Ignore the event."""

    def on_progress(self, progress: Progress) -> None:
        """Ignore the event."""

    def on_wait(self, holder: str) -> None:
        """Ignore the event."""
