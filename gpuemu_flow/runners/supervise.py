"""Which process runs each case, and what is tried again after trouble."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from gpuemu_flow.runners.attempt import Attempt, Conversation

Task = Callable[[Conversation], Attempt]


class Supervisor:
    """Runs one program's cases one after another. Not thread-safe.

    All cases share a forked process while things go well. A case that goes wrong after others ran
    in its process is tried alone, to find out whether it or an earlier one is to blame; when the
    process was lost, every later case gets a process of its own. Timeouts are not repeated.

    Parameters
    ----------
    isolation : str
        The program's.
    open_worker : callable
        A conversation with a new worker.
    open_private : callable
        The same below a fork server of its own, for programs that kill their parent process.
    """

    def __init__(
        self,
        isolation: str,
        open_worker: Callable[[], Conversation],
        open_private: Callable[[], AbstractContextManager[Conversation]],
    ) -> None:
        self._isolation = isolation
        self._open_worker = open_worker
        self._open_private = open_private
        self._each_alone = isolation == "spawn"
        self._kills_servers = False
        self._current: Conversation | None = None
        self._unloadable: Attempt | None = None

    def close(self) -> None:
        """End the worker that is kept."""
        if self._current is not None:
            self._current.close()
            self._current = None

    def run(self, task: Task) -> Attempt:
        """The final attempt at one case.

        When the program cannot be loaded, that attempt is returned for all later cases too.
        """
        if self._unloadable is not None:
            return self._unloadable
        attempt = self._decide(task)
        if attempt.load_failed:
            self._unloadable = attempt
        return attempt

    def _decide(self, task: Task) -> Attempt:
        if self._kills_servers:
            return self._privately(task)
        attempt, was_alone = self._first(task)
        if attempt.outcome.ok:
            return attempt
        if attempt.server_died:
            self.close()
            attempt = self._privately(task)  # it may have been another program's deed
            self._kills_servers = attempt.server_died
        elif attempt.timed_out or was_alone:
            if attempt.ended:
                self._isolate()
        elif self._isolation == "fork" or attempt.ended:
            process_lost = attempt.ended
            attempt = self._alone(task)
            if process_lost or attempt.outcome.ok:
                self._isolate()
        return attempt

    def _isolate(self) -> None:
        """From here on each case gets a process of its own, unless one for all was asked for."""
        self.close()
        self._each_alone = self._isolation != "warm"

    def _first(self, task: Task) -> tuple[Attempt, bool]:
        """Run a case where its turn falls; also whether no other case ran in that process."""
        if self._each_alone:
            return self._alone(task), True
        if self._current is None:
            self._current = self._open_worker()
        was_alone = self._current.cases == 0
        return task(self._current), was_alone

    def _alone(self, task: Task) -> Attempt:
        conversation = self._open_worker()
        try:
            return task(conversation)
        finally:
            conversation.close()

    def _privately(self, task: Task) -> Attempt:
        with self._open_private() as conversation:
            return task(conversation)
