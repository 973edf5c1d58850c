"""Events of a run, as data for a display."""

from __future__ import annotations

from collections.abc import Mapping

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


class Listener:
    """Receiver of the events of a run, which come from several threads; this class ignores them."""

    def on_plan(self, total: int, todo: int) -> None:
        """Handle the selection of `total` tasks, of which `todo` may have to run."""

    def on_expected(self, seconds: Mapping[str, float], jobs: int) -> None:
        """Handle the tasks' last durations, which come before tasks run, `jobs` at a time."""

    def on_task(self, event: TaskEvent) -> None:
        """Handle a change of a task's status."""

    def on_progress(self, progress: Progress) -> None:
        """Handle the end of some of a task's cases."""

    def on_wait(self, holder: str) -> None:
        """Handle a wait for another run, described by `holder`, that holds the workspace."""
