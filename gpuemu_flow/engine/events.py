"""Events of a run, as data for whoever shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gpuemu_flow.tasks.base import Progress


@dataclass(frozen=True)
class TaskEvent:
    """A task moved on.

    Attributes
    ----------
    task : str
    what : str
        ``started``, ``current``, ``ran``, ``restored`` or ``failed``.
    """

    task: str
    what: str


class Listener(Protocol):
    """Shows a run while it goes on. Called from several threads."""

    def on_plan(self, total: int, todo: int) -> None:
        """`total` tasks are selected, of which `todo` may have to run."""

    def on_task(self, event: TaskEvent) -> None:
        """A task moved on."""

    def on_progress(self, progress: Progress) -> None:
        """A task finished some of its cases."""

    def on_wait(self, holder: str) -> None:
        """Another run holds the workspace."""


class Quiet:
    """A listener that shows nothing."""

    def on_plan(self, total: int, todo: int) -> None:
        """Ignore."""

    def on_task(self, event: TaskEvent) -> None:
        """Ignore."""

    def on_progress(self, progress: Progress) -> None:
        """Ignore."""

    def on_wait(self, holder: str) -> None:
        """Ignore."""
