"""A cluster of dask.distributed: workers of a scheduler, or processes on this machine."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import tempfile
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING

from gpuemu_flow.cluster import worker
from gpuemu_flow.cluster.messages import NANNY_VARIABLES, BatchAnswer, BatchRequest, RunSetup
from gpuemu_flow.cluster.tasks import ClusterTasks
from gpuemu_flow.cluster.worker import facts
from gpuemu_flow.engine.elsewhere import Unit
from gpuemu_flow.engine.signals import WAKE_SECONDS
from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.errors import Problem, RunnerError, UsageError
from gpuemu_flow.fuzz.case_queue import QueuedCase
from gpuemu_flow.fuzz.remote_run import BatchReply, CaseBatch, Farm, differs
from gpuemu_flow.fuzz.subjects import OpSubject, op_subject
from gpuemu_flow.let_through import let_through
from gpuemu_flow.plain_text import printable

if TYPE_CHECKING:
    from distributed import Client

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
    """Machines that judge cases or run tasks, reached through a client of dask.

    `resources`: Resources of a worker that each task needs. `force`: True if workers must take no
    results from caches. `environ`: This process's environment before dask was started. `trials`:
    See `ClusterTasks`.
    """

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
        """Yield the workers for one op's cases; at the end of the context, end their work.

        `subjects`: The op in each dtype. `alone`: True to judge the cases one by one.
        """
        setup = self._setup(workspace, op, subjects, alone=alone)
        tasks: ClusterTasks[CaseBatch] = ClusterTasks(
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

    def run_units(
        self, workspace: Workspace, units: Sequence[Unit], remote: str, cancel: Event
    ) -> list[Unit]:
        """Run tasks on the workers, which store the results in a shared cache.

        `units`: The tasks to run. Each unit consists of the tasks of one op in one dtype.
        `remote`: URL of the shared cache. `cancel`: Ends the call early when it is set.
        """
        from gpuemu_flow.cluster import task_worker  # noqa: PLC0415 - brings doit

        run = secrets.token_hex(8)
        tasks: ClusterTasks[Unit] = ClusterTasks(
            self._client,
            task_worker.run_unit,
            run,
            end=task_worker.end_units,
            resources=self._resources,
            trials=self._trials,
        )

        def message(unit: Unit) -> bytes:
            subject = op_subject(workspace, unit.op, unit.dtype, to_run=False, learned=False)
            setup = replace(self._setup(workspace, unit.op, [subject]), run=run)
            return task_worker.UnitRequest(setup, remote).encode()

        lost, left = [], deque(units)
        try:
            while (left or tasks.outstanding) and not cancel.is_set():
                while left and tasks.outstanding < tasks.capacity:
                    tasks.submit(left.popleft(), message)
                for unit, data in tasks.answers(WAKE_SECONDS):
                    if data is None:
                        lost.append(unit)
                    else:
                        _demand(data)
        finally:
            tasks.close()
            _restore(self._environ)
        return lost


class DaskFarm:
    """The workers of a cluster, for the cases of one op; see `fuzz.remote_run.Farm`."""

    def __init__(self, tasks: ClusterTasks[CaseBatch], setup: RunSetup) -> None:
        self._tasks = tasks
        self._setup = setup

    @property
    def capacity(self) -> int:
        """Return the number of batches that keep all workers busy."""
        return self._tasks.capacity

    @property
    def outstanding(self) -> int:
        """Return the number of batches without a reply."""
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
    """Read the verdicts on a batch from a worker's answer; raise the errors that it reports."""
    answer = _demand(data)
    if len(answer.verdicts) != len(batch.cases):
        raise _failed(answer.worker, "its answer does not fit what was asked")
    return BatchReply(
        answer.worker, answer.verdicts, answer.key, answer.names, answer.parts, answer.seconds
    )


def _demand(data: bytes) -> BatchAnswer:
    """Read a worker's answer; raise the errors that it reports."""
    try:
        answer = BatchAnswer.decode(data)
    except (KeyError, TypeError, ValueError) as error:
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
    """Connect to a scheduler, or start worker processes on this machine.

    `scheduler`: Address of dask's scheduler; empty to start worker processes on this machine.
    `jobs`: Number of worker processes on this machine. `resources`: Resources of a worker that
    each task needs. `force`: True if workers must take no results from caches.

    Raises UsageError: ``cluster-package``, ``cluster-address``. Raises RunnerError: ``cluster-
    unreachable``.
    """
    try:
        import dask  # noqa: PLC0415 - an extra, and dear
        import distributed  # noqa: F401, PLC0415
    except ImportError:
        hint = 'pip install "gpuemu-flow[cluster]"'
        text = "the executor dask needs the package distributed"
        raise UsageError(Problem("cluster-package", text, hint)) from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    environ = dict(os.environ)
    opening = _connected(scheduler) if scheduler else _local(jobs, resources)
    with dask.config.set(BOUNDED), opening as client:
        _restore(environ)
        trials = 1 if scheduler else LOCAL_TRIALS
        yield DaskCluster(client, resources, force=force, environ=environ, trials=trials)


def _restore(environ: Mapping[str, str]) -> None:
    """Undo the changes that dask makes to this process's environment when it starts workers."""
    for name in NANNY_VARIABLES:
        if name in environ:
            os.environ[name] = environ[name]
        else:
            os.environ.pop(name, None)


@contextmanager
def _connected(scheduler: str) -> Iterator[Client]:
    from distributed import Client  # noqa: PLC0415

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
    """Start worker processes, and yield a client of their scheduler.

    Other users of this machine cannot connect to the scheduler or the workers.
    """
    import dask  # noqa: PLC0415
    from distributed import Client, LocalCluster, Security  # noqa: PLC0415

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
                preload=["gpuemu_flow.cluster.preload"],
                security=Security.temporary(),
                resources=dict(resources) or None,
            ) as cluster,
            Client(cluster, set_as_default=False) as client,
        ):
            yield client
    finally:
        shutil.rmtree(folder, ignore_errors=True)
