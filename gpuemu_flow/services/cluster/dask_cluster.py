"""A cluster of dask.distributed: workers of a scheduler, or processes on this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import secrets
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from msgspec import Struct

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.fuzz.case_queue import BatchReply, CaseBatch, Farm, QueuedCase
from gpuemu_flow.fuzz.fuzzing import differs
from gpuemu_flow.fuzz.subjects import OpSubject
from gpuemu_flow.model.errors import FlowError, Problem, RunnerError, UsageError
from gpuemu_flow.model.let_through import let_through
from gpuemu_flow.model.plain_text import printable
from gpuemu_flow.services.cluster import worker
from gpuemu_flow.services.cluster.worker import (
    NANNY_VARIABLES,
    BatchAnswer,
    BatchRequest,
    RunSetup,
    facts,
)

try:  # an extra; who imports this module has asked for a cluster
    import dask
    from distributed import CancelledError, Client, Future, KilledWorker, LocalCluster, Security
except ImportError:
    raise UsageError(
        Problem(
            "cluster-package",
            "the executor dask needs the package distributed",
            'pip install "gpuemu-flow[cluster]"',
        )
    ) from None


CONNECT_SECONDS = 30
BOUNDED = {
    "distributed.admin.low-level-log-length": 20,
    "distributed.admin.system-monitor.log-length": 20,
    "distributed.worker.profile.enabled": False,
}
"""dask's settings against logs that grow with a run. By default, a process keeps its last thousand
messages with their whole content, and a worker keeps the calls sampled in the last thousand
seconds."""
LOCAL = {
    "distributed.scheduler.allowed-failures": 0,
    "distributed.comm.timeouts.connect": "3s",
}
"""dask's settings for workers on this machine, where a silent worker is dead and not merely
slow."""
LOCAL_TRIALS = 2
"""Number of trials of a case whose worker died; for a scheduler, dask itself makes four trials."""
_SCHEMES = ("tcp", "tls", "ucx", "ws", "wss")


class DaskCluster:
    """Machines that judge cases or run tasks, reached through a client of dask."""

    def __init__(
        self,
        client: Client,
        resources: Mapping[str, float],
        *,
        force: bool,
        environ: Mapping[str, str],
        trials: int = 1,
    ) -> None:
        self._client = client
        self._resources = resources
        self._force = force
        self._environ = environ
        self._trials = trials

    @contextmanager
    def open_farm(
        self, workspace: Workspace, op: str, subjects: Sequence[OpSubject], *, alone: bool
    ) -> Iterator[Farm]:
        """Yield the workers for one op's cases; at the end of the context, end their work."""
        setup = self._setup(workspace, op, subjects, alone=alone)
        tasks: ClusterTasks = ClusterTasks(
            self._client,
            worker.judge_batch,
            setup.run,
            end=worker.end_run,
            resources=self._resources,
            trials=self._trials,
        )
        try:
            yield DaskFarm(tasks, setup)
        finally:
            tasks.close()
            _restore(self._environ)

    def _setup(
        self, workspace: Workspace, op: str, subjects: Sequence[OpSubject], *, alone: bool = False
    ) -> RunSetup:
        return RunSetup(
            secrets.token_hex(8),
            str(workspace.config_path.absolute()),
            workspace.settled_overrides,
            op,
            tuple(subject.subject.dtype for subject in subjects),
            facts(workspace, op, subjects),
            {n: v for n, v in let_through(self._environ).items() if n != "TMPDIR"},
            force=self._force,
            alone=alone,
        )


class DaskFarm:
    """The workers of a cluster, for the cases of one op; see `fuzz.case_queue.Farm`."""

    first_batch = 8

    def __init__(self, tasks: ClusterTasks, setup: RunSetup) -> None:
        self._tasks = tasks
        self._setup = setup

    @property
    def capacity(self) -> int:
        return self._tasks.capacity

    @property
    def outstanding(self) -> int:
        return self._tasks.outstanding

    def submit(self, batch: CaseBatch, known: Collection[str]) -> None:
        """Send a batch of cases to the workers; see `Farm.submit`."""

        def message(part: CaseBatch) -> bytes:
            queued = tuple(QueuedCase(each.number, each.case) for each in part.cases)
            return BatchRequest(self._setup, part.which, queued, tuple(known)).encode()

        self._tasks.submit(batch, message)

    def replies(self, timeout: float) -> list[tuple[CaseBatch, BatchReply | None]]:
        """Return the replies that have arrived; see `Farm.replies`."""
        answers = self._tasks.answers(timeout)
        return [(batch, None if data is None else _reply(batch, data)) for batch, data in answers]


def _reply(batch: CaseBatch, data: bytes) -> BatchReply:
    answer = _demand(data)
    if len(answer.verdicts) != len(batch.cases):
        raise _failed(answer.worker, "its answer does not fit what was asked")
    return BatchReply(
        answer.worker, answer.verdicts, answer.key, answer.names, answer.parts, answer.seconds
    )


def _demand(data: bytes) -> BatchAnswer:
    try:
        answer = BatchAnswer.decode(data)
    except ValueError as error:
        raise _failed("", f"its answer cannot be read: {error}") from None
    if answer.differs:
        raise differs(answer.worker, list(answer.differs))
    if answer.problems:
        raise RunnerError(*answer.problems)
    if answer.crash or answer.ended:
        why = answer.crash.strip().splitlines()[-1] if answer.crash else "it has ended the run"
        raise _failed(answer.worker, why)
    return answer


def _failed(worker_name: str, why: str) -> RunnerError:
    named = f"the worker {printable(worker_name)}" if worker_name else "a worker"
    hint = "install the same version of gpuemu-flow on all workers"
    text = f"{named} failed: {printable(why)}"
    return RunnerError(Problem("cluster-worker-failed", text, hint))


@contextmanager
def open_cluster(
    scheduler: str, *, jobs: int, resources: Mapping[str, float], force: bool
) -> Iterator[DaskCluster]:
    """Connect to a scheduler, or start worker processes on this machine. Raises UsageError:
    ``cluster-address``. Raises RunnerError: ``cluster- unreachable``."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    environ = dict(os.environ)
    opening = _connected(scheduler) if scheduler else _local(jobs, resources)
    with dask.config.set(BOUNDED), opening as client:
        _restore(environ)
        trials = 1 if scheduler else LOCAL_TRIALS
        yield DaskCluster(client, resources, force=force, environ=environ, trials=trials)


def _restore(environ: Mapping[str, str]) -> None:
    for name in NANNY_VARIABLES:
        if name in environ:
            os.environ[name] = environ[name]
        else:
            os.environ.pop(name, None)


@contextmanager
def _connected(scheduler: str) -> Iterator[Client]:
    if scheduler.partition("://")[0] not in _SCHEMES:
        text = f"{printable(scheduler)!r} is no address of a scheduler"
        raise UsageError(Problem("cluster-address", text, "such as tcp://host:8786"))
    try:
        client = Client(scheduler, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        why = printable(str(error).splitlines()[0]) if str(error) else type(error).__name__
        text = f"no scheduler answers at {printable(scheduler)}: {why}"
        hint = "start one with `dask scheduler`, or leave out --scheduler"
        raise RunnerError(Problem("cluster-unreachable", text, hint)) from None
    try:
        yield client
    finally:
        client.close(timeout=CONNECT_SECONDS)


@contextmanager
def _local(jobs: int, resources: Mapping[str, float]) -> Iterator[Client]:
    """Start worker processes, and yield a client of their scheduler. Other users of this machine
    cannot connect to the scheduler or the workers."""
    folder = tempfile.mkdtemp(prefix="gpuemu-cluster-")
    try:
        with (
            dask.config.set(LOCAL),
            LocalCluster(
                n_workers=max(1, jobs),
                threads_per_worker=1,
                processes=True,
                memory_limit=0,
                dashboard_address="127.0.0.1:0",
                worker_dashboard_address="127.0.0.1:0",
                silence_logs=logging.CRITICAL,
                local_directory=folder,
                preload=["gpuemu_flow.services.cluster.preload"],
                security=Security.temporary(),
                resources=dict(resources) or None,
            ) as cluster,
            Client(cluster, set_as_default=False) as client,
        ):
            yield client
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# Send tasks to a cluster, await answers, and send the tasks of lost workers again in parts.


PER_THREAD = 2
"""Number of tasks sent per thread of a worker: one runs while another waits."""
LOOK_SECONDS = 2.0
NO_WORKERS_SECONDS = 600.0
END_SECONDS = 15.0
FETCHERS = 8
"""Number of answers to fetch in parallel. An answer on a worker that has just died blocks only one
of the fetching threads."""


class _Sent(Struct, frozen=True):
    """Work that was sent and has no answer yet."""

    work: CaseBatch
    # Makes the work's message.
    message: Callable[[CaseBatch], bytes]
    # 0 for work that was sent normally. Work that may have killed a worker is tried again while
    # no other work runs; then this is the number of the trial, from 1.
    trial: int = 0


class ClusterTasks:
    """Sends work to workers, and returns their answers. Used by one thread. When a worker dies, all
    work that it ran or held in its queue is divided in halves, which are sent again. Work that
    cannot be divided any more is a suspect: it may have killed the worker, or only have waited in
    the worker's queue. A suspect is tried again while no other work runs."""

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
        self._sent: dict[str, tuple[Future, _Sent]] = {}
        self._suspects: deque[_Sent] = deque()
        self._arrived: queue.SimpleQueue[tuple[str, bytes | FlowError | None]] = queue.SimpleQueue()
        self._fetchers = ThreadPoolExecutor(FETCHERS)
        self._count = 0
        self._threads = 0
        self._looked = -LOOK_SECONDS
        self._seen = time.monotonic()

    @property
    def capacity(self) -> int:
        """Return the number of tasks that keep all workers busy. The result is 0 while there is
        work that may have killed a worker, since such work is tried alone."""
        if self._suspects or any(sent.trial for _, sent in self._sent.values()):
            return 0
        self._look()
        return PER_THREAD * self._threads

    @property
    def outstanding(self) -> int:
        return len(self._sent) + len(self._suspects)

    def submit(self, work: CaseBatch, message: Callable[[CaseBatch], bytes]) -> None:
        self._submit(_Sent(work, message))

    def _submit(self, sent: _Sent) -> None:
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

    def answers(self, timeout: float) -> list[tuple[CaseBatch, bytes | None]]:
        """Return the answers that have arrived, each with its work; wait at most `timeout` seconds.
        An answer is None if the work cannot be divided and its workers died in every trial. Raises
        RunnerError: ``cluster-lost``, ``cluster-no-workers``, ``cluster-worker-failed``."""
        found: list[tuple[CaseBatch, bytes | None]] = []
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

    def _divide(self, sent: _Sent) -> None:
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
        """Make dask replace workers on this machine that are gone for good. dask gives up on a
        worker that does not restart immediately, for example on a busy machine."""
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
