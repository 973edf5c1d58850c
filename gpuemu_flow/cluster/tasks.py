"""Send tasks to a cluster, await answers, and send the tasks of lost workers again in parts."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from gpuemu_flow.errors import FlowError, Problem, RunnerError
from gpuemu_flow.quick_dataclass import dataclass

if TYPE_CHECKING:
    from distributed import Client, Future

PER_THREAD = 2
"""Number of tasks sent per thread of a worker: one runs while another waits."""
LOOK_SECONDS = 2.0
NO_WORKERS_SECONDS = 600.0
END_SECONDS = 15.0
FETCHERS = 8
"""Number of answers to fetch in parallel. An answer on a worker that has just died blocks only one
of the fetching threads."""


D = TypeVar("D")


class Divisible(Protocol):
    """Work that can be sent in parts."""

    def halves(self: D) -> tuple[D, D] | None:
        """Return two parts; None if there is nothing to divide."""


W = TypeVar("W", bound=Divisible)


@dataclass(frozen=True)
class _Sent(Generic[W]):
    """Work that was sent and has no answer yet."""

    work: W
    # Makes the work's message.
    message: Callable[[W], bytes]
    # 0 for work that was sent normally. Work that may have killed a worker is tried again while
    # no other work runs; then this is the number of the trial, from 1.
    trial: int = 0


class ClusterTasks(Generic[W]):
    """Sends work to workers, and returns their answers. Used by one thread.

    When a worker dies, all work that it ran or held in its queue is divided in halves, which are
    sent again. Work that cannot be divided any more is a suspect: it may have killed the worker, or
    only have waited in the worker's queue. A suspect is tried again while no other work runs.

    `function`: Runs on a worker; takes and returns a message. `run`: Name of the run. `end`:
    Coroutine function that ends a worker process's work for a run. `resources`: Amounts of a
    worker's resources that each task needs; see dask's documentation. `trials`: Number of times
    that a suspect is tried.
    """

    def __init__(
        self,
        client: Client,
        function: Callable[[bytes], bytes],
        run: str,
        *,
        end: Callable[[str], object],
        resources: Mapping[str, float],
        trials: int = 1,
    ) -> None:
        self._client = client
        self._trials = trials
        self._function = function
        self._run = run
        self._end = end
        self._resources = dict(resources)
        self._sent: dict[str, tuple[Future, _Sent[W]]] = {}
        self._suspects: deque[_Sent[W]] = deque()
        self._arrived: queue.SimpleQueue[tuple[str, bytes | FlowError | None]] = queue.SimpleQueue()
        self._fetchers = ThreadPoolExecutor(FETCHERS)
        self._count = 0
        self._threads = 0
        self._looked = -LOOK_SECONDS
        self._seen = time.monotonic()

    @property
    def capacity(self) -> int:
        """Return the number of tasks that keep all workers busy.

        The result is 0 while there is work that may have killed a worker, since such work is tried
        alone.
        """
        if self._suspects or any(sent.trial for _, sent in self._sent.values()):
            return 0
        self._look()
        return PER_THREAD * self._threads

    @property
    def outstanding(self) -> int:
        """Return the number of tasks without an answer."""
        return len(self._sent) + len(self._suspects)

    def submit(self, work: W, message: Callable[[W], bytes]) -> None:
        """Send work to a worker.

        `message`: Makes the message of the work, or of a part of the work.
        """
        self._submit(_Sent(work, message))

    def _submit(self, sent: _Sent[W]) -> None:
        self._count += 1
        key = f"gpuemu-{self._run}-{self._count}"
        future = self._client.submit(
            self._function,
            sent.message(sent.work),
            key=key,
            pure=False,
            resources=self._resources or None,
        )
        self._sent[key] = future, sent
        future.add_done_callback(lambda done: self._done(key, done))

    def _done(self, key: str, future: Future) -> None:
        with contextlib.suppress(RuntimeError):  # it is closed; nobody waits any more
            self._fetchers.submit(self._fetch, key, future)

    def _fetch(self, key: str, future: Future) -> None:
        """Fetch a task's answer from the worker that holds it, and queue it for `answers`."""
        self._arrived.put((key, _outcome(future)))

    def answers(self, timeout: float) -> list[tuple[W, bytes | None]]:
        """Return the answers that have arrived, each with its work; wait at most `timeout` seconds.

        An answer is None if the work cannot be divided and its workers died in every trial.

        Raises RunnerError: ``cluster-lost``, ``cluster-no-workers``, ``cluster-worker-failed``.
        """
        found: list[tuple[W, bytes | None]] = []
        for key, outcome in self._wait(timeout):
            _, sent = self._sent.pop(key)
            if isinstance(outcome, FlowError):
                raise outcome
            if outcome is not None:
                found.append((sent.work, outcome))
            elif sent.trial >= self._trials:
                found.append((sent.work, None))
            else:
                self._divide(sent)
        if self._suspects and not self._sent:
            suspect = self._suspects.popleft()
            self._submit(_Sent(suspect.work, suspect.message, suspect.trial + 1))
        return found

    def _wait(self, timeout: float) -> list[tuple[str, bytes | FlowError | None]]:
        came = []
        try:
            came.append(self._arrived.get(timeout=timeout))
            while True:
                came.append(self._arrived.get_nowait())
        except queue.Empty:
            pass
        if not came:
            self._look()
        return [(key, outcome) for key, outcome in came if key in self._sent]

    def _divide(self, sent: _Sent[W]) -> None:
        halves = sent.work.halves()
        if halves is None:
            self._suspects.append(sent)
            return
        for half in halves:
            self._submit(_Sent(half, sent.message))

    def _look(self) -> None:
        """Ask the scheduler how many threads the workers have, at most every `LOOK_SECONDS`."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS and self._threads:
            return
        self._looked = now
        if self._client.status != "running":
            raise _lost(f"its connection is {self._client.status}")
        try:
            workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
        except OSError as error:
            raise _lost(str(error)) from None
        fitting = [
            worker
            for worker in workers
            if all(worker["resources"].get(n, 0) >= v for n, v in self._resources.items())
        ]
        self._threads = sum(worker["nthreads"] for worker in fitting)
        self._replace_lost()
        if self._threads:
            self._seen = now
        elif now - self._seen > NO_WORKERS_SECONDS:
            raise self._no_workers(len(workers))

    def _replace_lost(self) -> None:
        """Make dask replace workers on this machine that are gone for good.

        dask gives up on a worker that does not restart immediately, for example on a busy machine.
        """
        own = self._client.cluster
        if own is not None and self._threads < len(own.worker_spec):
            own.scale(len(own.worker_spec))

    def _no_workers(self, others: int) -> RunnerError:
        wanted = ", ".join(f"{name}={value:g}" for name, value in self._resources.items())
        what = f"no worker with the resources {wanted}" if wanted else "no worker"
        more = f" ({others} without)" if others else ""
        text = f"there was {what} for {NO_WORKERS_SECONDS:.0f} s{more}"
        return RunnerError(Problem("cluster-no-workers", text, "see docs/cluster.md"))

    def close(self) -> None:
        """Cancel all tasks, and tell the workers to end the run."""
        futures = [future for future, _ in self._sent.values()]
        self._sent.clear()
        self._suspects.clear()
        self._fetchers.shutdown(wait=False, cancel_futures=True)

        def end() -> None:
            try:
                if futures:
                    self._client.cancel(futures, force=True)
                self._client.run(self._end, self._run, on_error="ignore")
            except Exception:  # noqa: S110 - whoever is gone does nothing for the run any more
                pass

        ending = threading.Thread(target=end, daemon=True)
        ending.start()
        ending.join(END_SECONDS)


def _outcome(future: Future) -> bytes | FlowError | None:
    """Return a task's answer or its error; None if the workers that had the task died."""
    from distributed import CancelledError, KilledWorker  # noqa: PLC0415

    try:
        return bytes(future.result())
    except KilledWorker:
        return None
    except (CancelledError, OSError) as error:
        return _lost(str(error))
    except Exception as error:
        text = f"a worker cannot run gpuemu-flow: {type(error).__name__}: {error}"
        hint = "install the same version of gpuemu-flow on all workers"
        return RunnerError(Problem("cluster-worker-failed", text, hint))


def _lost(why: str) -> RunnerError:
    text = f"the connection to the cluster's scheduler was lost: {why}"
    hint = "what was judged is kept: run again to go on"
    return RunnerError(Problem("cluster-lost", text, hint))
