"""Supervise cases: choose the process of each, and repeat failed cases in a new process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from msgspec.structs import replace

from gpuemu_flow.model.types import Case
from gpuemu_flow.workers.api import REFUSALS
from gpuemu_flow.workers.attempt import Attempt, WorkerClient

ENOUGH_ALIKE = 2


class Work(Protocol):
    """Work for a worker, done in two steps, so that the caller can do something else in between."""

    def begin(self, worker_client: WorkerClient) -> Attempt | None:
        """Send the request to a worker."""

    def finish(self, worker_client: WorkerClient) -> Attempt:
        """Wait for the outcome, or raise CancelledRunError."""


def _refusal(attempt: Attempt) -> tuple[str, str] | None:
    """Return the slug and message of a launch that the emulator refused; else None."""
    error = attempt.outcome.error
    return None if error is None or error.slug not in REFUSALS else (error.slug, error.message)


def _raised_at(attempt: Attempt) -> tuple[str, str, int] | None:
    """Return the class, file and line of a program's exception; None for another outcome."""
    error = attempt.outcome.error
    if attempt.ended or error is None or not (error.exception and error.file and error.line):
        return None
    return error.exception, error.file, error.line


def _said(attempt: Attempt) -> Attempt:
    """Return the attempt, after adding to its error's hint that the case was not repeated."""
    error = attempt.outcome.error
    if error is None:
        return attempt
    note = f"{ENOUGH_ALIKE} earlier cases raised the same, so this one was not run again by itself"
    hint = f"{error.hint}; {note}" if error.hint else note
    return replace(attempt, outcome=replace(attempt.outcome, error=replace(error, hint=hint)))


class BatchSize:
    """Chooses how many cases one message to the programs has: as many as run in a short time.

    A message costs as much as a small case, so few messages are better. But the processing of a
    message cannot be interrupted and shows no progress, and the tensors of too many cases do not
    fit into the processor's cache.
    """

    MAX_CASES = 128
    MAX_BYTES = 16 << 20
    MAX_SECONDS = 0.25

    def __init__(self) -> None:
        self._allowed = 1

    def admits(self, count: int, nbytes: int) -> bool:
        """Tell whether a batch may have `count` cases with inputs of `nbytes` bytes in total."""
        return count <= 1 or (count <= self._allowed and nbytes <= self.MAX_BYTES)

    def take(self, cases: Sequence[Case], copies: int = 1) -> int:
        """Return how many of the next cases may be in one batch, which needs so many copies."""
        nbytes = 0
        for count, case in enumerate(cases):
            nbytes += copies * case.nbytes
            if not self.admits(count + 1, nbytes):
                return count
        return len(cases)

    def restart(self) -> None:
        """Let the next case be alone."""
        self._allowed = 1

    def took(self, count: int, seconds: float) -> None:
        """Record how long a batch of `count` cases took."""
        by_time = self.MAX_SECONDS / max(seconds / count, 1e-9)
        self._allowed = max(1, int(min(self.MAX_CASES, 32 * self._allowed, by_time)))


def _perform(work: Work, worker_client: WorkerClient) -> Attempt:
    return work.begin(worker_client) or work.finish(worker_client)


class Supervisor:
    """Runs one program's cases one after another. Not thread-safe.

    All cases share a forked process while they succeed. A case that fails in a process that ran
    other cases before is repeated in a new process, to find out whether an earlier case is to
    blame. Once a process was lost, every later case gets a separate process.

    Some failures are not repeated: timeouts, and launches that the emulator has refused before with
    the same message. An exception is not repeated, either, if `ENOUGH_ALIKE` earlier cases raised
    it at the same line, and each of these was the first case in its process.

    A case whose process got SIGKILL is tried again, since the system may have killed it because
    other processes used the memory. If the second process gets SIGKILL, too, later cases that are
    killed are not tried again.
    """

    def __init__(
        self,
        isolation: str,
        open_worker: Callable[[], WorkerClient],
        open_private: Callable[[], AbstractContextManager[WorkerClient]],
        *,
        leaves_nothing: bool = False,
    ) -> None:
        self._isolation = isolation
        self._open_worker = open_worker
        self._open_private = open_private
        self._each_alone = isolation == "spawn"
        self._kills_servers = False
        self._current: WorkerClient | None = None
        self._unloadable: Attempt | None = None
        self._begun = False
        self._was_alone = True
        self._failed_early: Attempt | None = None
        self._leaves_nothing = leaves_nothing
        self._refused: set[tuple[str, str]] = set()
        self._raised: Counter[tuple[str, str, int]] = Counter()
        self._killed_again = False
        self._has_failed = False

    def close(self) -> None:
        """End the idle worker."""
        if self._current is not None:
            self._current.close()
            self._current = None

    def release(self) -> WorkerClient | None:
        """Give away the idle worker, if there is one and no case has failed."""
        if self._has_failed:
            return None
        client, self._current = self._current, None
        return client

    def next_worker(self) -> WorkerClient | None:
        """Return the worker for the next case, and start one if none is idle."""
        if self._unloadable is not None or self._each_alone or self._kills_servers:
            return None
        if self._current is None:
            self._current = self._open_worker()
        return self._current

    def abandon(self) -> None:
        """Drop the case that was begun, without waiting for its answer."""
        if self._begun:
            self._begun = False
            self.close()

    def begin(self, work: Work) -> None:
        """Start a case in the idle worker, if any; `finish` must follow with the same case."""
        worker_client = self.next_worker()
        if worker_client is not None:
            self._was_alone = worker_client.cases == 0
            self._begun = True
            self._failed_early = work.begin(worker_client)

    def finish(self, work: Work) -> Attempt:
        """Return the final attempt at one case.

        If the program cannot be loaded, the failed attempt is returned for all later cases, too.
        """
        if self._unloadable is not None:
            return self._unloadable
        attempt = self._decide(work)
        self._has_failed |= not attempt.outcome.ok
        if attempt.load_failed:
            self._unloadable = attempt
        return attempt

    def run(self, work: Work) -> Attempt:
        """Call `begin` and `finish`."""
        self.begin(work)
        return self.finish(work)

    def _decide(self, work: Work) -> Attempt:
        if self._kills_servers:
            return self._privately(work)
        attempt, was_alone = self._first(work)
        if attempt.outcome.ok:
            return attempt
        if attempt.server_died:
            self.close()
            attempt = self._privately(work)  # another program may have killed the server
            self._kills_servers = attempt.server_died
        elif attempt.timed_out or was_alone:
            if attempt.killed and not self._killed_again:
                self.close()
                attempt = self._alone(work)
                self._killed_again = attempt.killed
            if attempt.ended:
                self._isolate()
        elif self._is_settled(attempt):
            pass
        elif self._is_known(attempt):
            return _said(attempt)
        elif self._isolation == "fork" or attempt.ended:
            process_lost = attempt.ended
            attempt = self._alone(work)
            if process_lost or attempt.outcome.ok:
                self._isolate()
        if was_alone or not attempt.outcome.ok:
            self._note(attempt)
        return attempt

    def _is_known(self, attempt: Attempt) -> bool:
        """Tell whether enough earlier cases raised the same exception.

        Only cases that were the first in their process are counted.
        """
        place = _raised_at(attempt)
        return place is not None and self._raised[place] >= ENOUGH_ALIKE

    def _is_settled(self, attempt: Attempt) -> bool:
        """Tell whether another process would give the same outcome again."""
        if attempt.ended:
            return False
        return self._leaves_nothing or _refusal(attempt) in self._refused

    def _note(self, attempt: Attempt) -> None:
        """Record the refusal or the exception of a case that was the first in its process."""
        place = _raised_at(attempt)
        if place is not None:
            self._raised[place] += 1
        refusal = _refusal(attempt)
        if refusal is not None:
            self._refused.add(refusal)

    def _isolate(self) -> None:
        """Run each further case in a separate process, unless `isolation` is ``warm``."""
        self.close()
        self._each_alone = self._isolation != "warm"

    def _first(self, work: Work) -> tuple[Attempt, bool]:
        """Return the attempt at a case, and whether the case was the first in its process."""
        if not self._begun or self._current is None:
            return self._alone(work), True
        self._begun = False
        return self._failed_early or work.finish(self._current), self._was_alone

    def _alone(self, work: Work) -> Attempt:
        worker_client = self._open_worker()
        try:
            return _perform(work, worker_client)
        finally:
            worker_client.close()

    def _privately(self, work: Work) -> Attempt:
        with self._open_private() as worker_client:
            return _perform(work, worker_client)
