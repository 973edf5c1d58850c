"""The worker side of ``run`` on a cluster: run the tasks of one op, and share the results."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpuemu_flow.build.elsewhere import Unit
from gpuemu_flow.build.graph import Listener
from gpuemu_flow.build.run import Executor
from gpuemu_flow.model.errors import CancelledRunError
from gpuemu_flow.services.cluster.messages import BatchAnswer, Message, RunSetup
from gpuemu_flow.services.cluster.worker import answered, local_folder, open_here, own_name
from gpuemu_flow.store.remote_cache import MODE, REMOTE, WRITE, open_shared
from gpuemu_flow.tasks.base import StageContext
from gpuemu_flow.workers.pool import Pool


class UnitRequest(Message, frozen=True):
    """An op in one dtype whose tasks a worker is to run."""

    # The run's settings, with one dtype.
    setup: RunSetup
    # URL of the shared cache for the results.
    remote: str


class _Runs:
    """The runs that this process works for, and the runs that have ended. Thread-safe."""

    def __init__(self) -> None:
        self._working: dict[str, set[threading.Event]] = {}
        self._ended: set[str] = set()
        self._lock = threading.Lock()

    @contextmanager
    def work(self, run: str) -> Iterator[threading.Event]:
        """Yield an event that is set when the run ends.

        Raises CancelledRunError: The run has already ended.
        """
        cancel = threading.Event()
        with self._lock:
            if run in self._ended:
                raise CancelledRunError
            self._working.setdefault(run, set()).add(cancel)
        try:
            yield cancel
        finally:
            with self._lock:
                self._working[run].discard(cancel)

    def end(self, run: str) -> None:
        """Stop all work for a run, and refuse later work for it."""
        with self._lock:
            self._ended.add(run)
            for cancel in self._working.pop(run, set()):
                self._working.setdefault(run, set()).add(cancel)
                cancel.set()


_runs = _Runs()


def run_unit(message: bytes) -> bytes:
    """Run the tasks that an encoded `UnitRequest` names, and return an encoded `BatchAnswer`."""

    def run() -> BatchAnswer:
        request = UnitRequest.decode(message)
        folder = Path(tempfile.mkdtemp(prefix="gpuemu-", dir=local_folder()))
        try:
            with _runs.work(request.setup.run) as cancel:
                _run(request, folder, cancel, os.environ)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return BatchAnswer(own_name())

    return answered(run)


def _run(
    request: UnitRequest, folder: Path, cancel: threading.Event, environ: Mapping[str, str]
) -> None:
    setup = request.setup
    workspace, cache, _ = open_here(setup, folder)
    lookup = workspace.inputs  # before the cache is replaced: it has the sources' clock
    workspace.cache = cache
    unit = Unit(setup.op, setup.dtypes[0])
    named = {**environ, REMOTE: request.remote, MODE: WRITE}
    try:
        with Pool(1, staging=cache.staging) as pool:
            context = StageContext(
                root=workspace.root,
                cache=cache,
                pool=pool,
                environment=workspace.environment,
                inputs=lookup,
                cancel=cancel,
            )
            context.shared = open_shared(request.remote, WRITE, named, cache, cancel)
            try:
                graph, states = workspace.graph, workspace.states()
                executor = Executor(graph, context, states, Listener(), jobs=1)
                executor.run(graph.upstream([unit.task]))
            finally:
                if context.shared is not None:
                    context.shared.finish()
    finally:
        cache.close()


async def end_units(run: str) -> None:
    """End this process's work for a run, without blocking its event loop."""
    await asyncio.get_running_loop().run_in_executor(None, _runs.end, run)
