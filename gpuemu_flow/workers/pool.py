"""Run programs on cases in a pool of workers, supervised: exactly one outcome per case."""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpuemu_flow.model.errors import CancelledRunError, Problem, RunnerError
from gpuemu_flow.model.let_through import named
from gpuemu_flow.model.types import Json, Observation
from gpuemu_flow.workers.api import EMULATED, Checks, Outcome, Program, Request, gives_up, not_run
from gpuemu_flow.workers.attempt import WorkerClient, load_request
from gpuemu_flow.workers.process import ServerDiedError, ServerHandle, ServerStart, WorkerProcess
from gpuemu_flow.workers.sandbox.spec import lacks, missing_problem
from gpuemu_flow.workers.sightings import Sightings
from gpuemu_flow.workers.supervise import BatchSize, Supervisor

if TYPE_CHECKING:
    import numpy as np

    from gpuemu_flow.workers.checked import Draw, ProgramSession


_SERVER_STARTS = 3
_SLICE = 0.1
_COPIES = 8  # of a case's inputs and outputs, roughly, in the memory of a batch with all checks
_MOST_PRELOADED = 4
"""Maximum number of fork servers that import a framework, each for another environment."""

OnOutcome = Callable[[Outcome], None]
OnObserved = Callable[[Observation], None]
Keep = Callable[["Mapping[str, np.ndarray]"], tuple[str, int]]
"""Keeps the outputs of a case, and returns their digest and their bytes."""


class Pool:
    """Runs programs in workers. A context manager; thread-safe."""

    def __init__(
        self,
        workers: int,
        *,
        env: Mapping[str, str] | None = None,
        keeps: int = 0,
    ) -> None:
        """Keep at most `keeps` idle workers of programs that are trusted; see `_end`."""
        self._slots = threading.BoundedSemaphore(max(1, workers))
        self._env = dict(env or {})
        self._servers: dict[ServerStart, ServerHandle] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._keeps = keeps
        self._idle: list[tuple[Program, WorkerClient]] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the fork server now instead of at the first run."""
        self._server(ServerStart())

    def close(self) -> None:
        """End all workers and fork servers; no process is left."""
        with self._lock:
            self._closed = True
            servers = list(self._servers.values())
            self._servers.clear()
            idle, self._idle = self._idle, []
        for _, client in idle:
            client.close()
        for server in servers:
            server.close()

    def _check_open(self) -> None:
        if self._closed:
            raise RunnerError(Problem("pool-closed", "the pool of workers is closed"))

    def _server(self, start: ServerStart) -> ServerHandle:
        """Return a living fork server with these settings."""
        with self._lock:
            self._check_open()
            server = self._servers.pop(start, None)
            if server is None or not server.alive():
                if server is not None:
                    server.close()
                server = self._new_server(start)
            self._servers[start] = server  # moved to the end: most recently used
            return server

    def _new_server(self, start: ServerStart) -> ServerHandle:
        return ServerHandle({**self._env, **dict(start.env)}, start.framework, start.gpu)

    def _discard(self, start: ServerStart, server: ServerHandle) -> None:
        """Drop a server that does not answer."""
        with self._lock:
            if self._servers.get(start) is server:
                del self._servers[start]
        server.close()

    def _start_for(self, program: Program) -> ServerStart:
        """Return the settings of a program's fork server.

        The program's `env` must be complete; see `_equipped`. If `_MOST_PRELOADED` other servers
        import a framework, the settings are those of a server without a framework.
        """
        start = ServerStart.of(program)
        if start.framework:
            with self._lock:
                others = sum(bool(known.framework) for known in self._servers if known != start)
            if others >= _MOST_PRELOADED:
                return ServerStart.plain(program)
        return start

    def _open(
        self,
        program: Program,
        first: Mapping[str, Json] | None = None,
        *,
        calls_only: bool = False,
    ) -> WorkerProcess:
        """Return a new worker, started by a fork server of the pool."""
        _check_fence(program)
        start = self._start_for(program)
        complaint = ""
        for _ in range(_SERVER_STARTS):
            server = self._server(start)
            try:
                return _open_worker(server, program, first, calls_only=calls_only)
            except ServerDiedError:
                complaint = server.stderr_tail()
                self._discard(start, server)
                start = ServerStart.plain(program)
        raise _no_server(complaint)

    @contextlib.contextmanager
    def _open_private(self, program: Program) -> Iterator[WorkerProcess]:
        """Yield a worker of a separate fork server."""
        self._check_open()
        _check_fence(program)
        server = self._new_server(self._start_for(program))
        try:
            yield _open_worker(server, program, load_request(program))
        except ServerDiedError:
            raise _no_server(server.stderr_tail()) from None
        finally:
            server.close()

    def _supervisor(
        self,
        program: Program,
        cancel: threading.Event | None,
        sightings: Sightings,
        *,
        calls_only: bool = False,
        trusted: bool = False,
    ) -> Supervisor:
        program = _equipped(program)
        if program.gpu_folder:
            sightings.leave_out(str(Path(program.gpu_folder).parents[1]))

        def open_shared() -> WorkerClient:
            kept = self._take_idle(program) if trusted else None
            if kept is not None:
                kept.begin_anew(sightings, cancel)
                return kept
            return talk(self._open(program, load_request(program), calls_only=calls_only))

        def talk(worker: WorkerProcess) -> WorkerClient:
            worker.follow_with(sightings)
            return WorkerClient(worker, program, cancel, loading=True)

        @contextlib.contextmanager
        def open_private() -> Iterator[WorkerClient]:
            with self._open_private(program) as worker:
                worker_client = talk(worker)
                try:
                    yield worker_client
                finally:
                    worker_client.close()

        return Supervisor(
            program.isolation,
            open_shared,
            open_private,
            leaves_nothing=program.kind in EMULATED,
        )

    @contextlib.contextmanager
    def session(
        self, program: Program, *, cancel: threading.Event | None = None, trusted: bool = False
    ) -> Iterator[ProgramSession]:
        """Yield a session to call a program repeatedly, with tensors in shared memory.

        The worker of a `trusted` program may have served it before, and may do so again.

        Raises RunnerError: ``worker-not-started``, raised by the session's methods, since the
        worker is started by the first call. Raises CancelledRunError: `cancel` was set.
        """
        from gpuemu_flow.workers.checked import ProgramSession  # noqa: PLC0415 - loads numpy

        with self._slot(cancel):
            sightings = Sightings()
            supervisor = self._supervisor(program, cancel, sightings, trusted=trusted)
            try:
                yield ProgramSession(supervisor, sightings)
                self._end(supervisor, trusted=trusted)
            finally:
                supervisor.close()

    def _end(self, supervisor: Supervisor, *, trusted: bool) -> None:
        """Keep the worker of a trusted program for the next session of the same program.

        Ops are no such programs: what one dtype leaves in the process must not reach another one.
        Nor is a reference that failed: it may have left something half done.
        """
        client = supervisor.release() if trusted and self._keeps else None
        if client is None:
            return
        if client.worker.closed or not client.program.can_stay:
            client.close()
            return
        client.worker.leave_sightings()
        with self._lock:
            self._idle.append((client.program, client))
            oldest = self._idle.pop(0)[1] if len(self._idle) > self._keeps else None
        if oldest is not None:
            oldest.close()

    def _take_idle(self, program: Program) -> WorkerClient | None:
        with self._lock:
            place = next((n for n, (one, _) in enumerate(self._idle) if one == program), None)
            return None if place is None else self._idle.pop(place)[1]

    @contextlib.contextmanager
    def _slot(self, cancel: threading.Event | None) -> Iterator[None]:
        while not self._slots.acquire(timeout=_SLICE if cancel is not None else None):
            if cancel is not None and cancel.is_set():
                raise CancelledRunError
        try:
            yield
        finally:
            self._slots.release()

    def _some(
        self,
        supervisor: Supervisor,
        requests: Sequence[Request],
        checks: Checks,
        size: BatchSize,
        hung: dict[int, Outcome],
        draw: Draw | None,
    ) -> list[tuple[Outcome, Mapping[str, np.ndarray]]]:
        """Run the first of the cases: several in one exchange, or one alone.

        In `hung` are those that took too long in an exchange with others, by their indices.
        """
        if requests[0].case.index in hung:
            return [(hung.pop(requests[0].case.index), {})]
        client = supervisor.next_worker()  # starts a worker, and meanwhile imports what cases need
        from gpuemu_flow.workers.checked import CheckedCases, inputs_of  # noqa: PLC0415

        begin = time.perf_counter()
        count = 1
        if client is not None and client.cases and client.program.kind not in EMULATED:
            copies = _COPIES if checks.repeat else _COPIES // 2
            count = size.take([request.case for request in requests], copies)
        if count > 1:
            together = CheckedCases([inputs_of(one, draw) for one in requests[:count]], checks)
            supervisor.run(together)
            if len(together.done) == count:
                size.took(count, time.perf_counter() - begin)
            else:
                size.restart()
            if together.done:
                return together.done
            if together.hung is not None:
                place, outcome = together.hung
                if place == 0:
                    return [(outcome, {})]
                hung[outcome.index] = outcome
        alone = CheckedCases([inputs_of(requests[0], draw)], checks)
        outcome = supervisor.run(alone).outcome_of(requests[0])
        if not outcome.ok:
            size.restart()
            return [(outcome, {})]
        size.took(1, time.perf_counter() - begin)
        return [(outcome, alone.done[0][1])]

    def run(
        self,
        program: Program,
        requests: Sequence[Request],
        *,
        checks: Checks,
        keep: Keep,
        draw: Draw | None = None,
        on_outcome: OnOutcome | None = None,
        cancel: threading.Event | None = None,
        on_observed: OnObserved | None = None,
        trusted: bool = False,
    ) -> list[Outcome]:
        """Run a program on cases; see `session` for those that are trusted.

        `keep` gets the outputs of each case. `draw` returns the values of the inputs of a case, if
        not every case is to be drawn by itself.

        Raises RunnerError: ``worker-not-started``, which is not the program's fault.
        """
        outcomes: list[Outcome] = []
        size, hung = BatchSize(), dict[int, Outcome]()
        found: list[tuple[Outcome, Mapping[str, np.ndarray]]]
        sightings = Sightings()
        told: Observation | None = None

        def tell_observed() -> None:
            nonlocal told
            seen = sightings.observation()
            if on_observed is not None and seen is not told:
                told = seen
                on_observed(seen)

        try:
            with self._slot(cancel):
                supervisor = self._supervisor(
                    program, cancel, sightings, calls_only=not trusted, trusted=trusted
                )
                try:
                    while len(outcomes) < len(requests):
                        rest = requests[len(outcomes) :]
                        if gives_up(outcomes):
                            index = rest[0].case.index
                            found = [(not_run(index, program.timeout), {})]
                        else:
                            found = self._some(supervisor, rest, checks, size, hung, draw)
                        tell_observed()
                        for outcome, outputs in found:
                            blob, nbytes = keep(outputs) if outcome.ok else ("", 0)
                            outcomes.append(replace(outcome, blob=blob, size=nbytes))
                            if on_outcome is not None:
                                on_outcome(outcomes[-1])
                    tell_observed()
                    self._end(supervisor, trusted=trusted)
                finally:
                    supervisor.close()
        except CancelledRunError:
            pass
        tell_observed()
        return outcomes

    def call(
        self,
        program: Program,
        target: str,
        payload: Json,
        *,
        seconds: float,
        cancel: threading.Event | None = None,
        on_observed: OnObserved | None = None,
    ) -> Json:
        """Run one of this package's functions in a worker, with an `Evaluator` of `program`.

        Raises JobFailedError: The function, or the program that it evaluated, failed. Raises
        CancelledRunError.
        """
        program = _equipped(program)
        with self._slot(cancel):
            worker_client = WorkerClient(self._open(program), program, cancel)
            sightings = Sightings()
            if program.gpu_folder:
                sightings.leave_out(str(Path(program.gpu_folder).parents[1]))
            worker_client.worker.follow_with(sightings)
            try:
                return worker_client.run_job(target, payload, seconds)
            finally:
                worker_client.close()
                if on_observed is not None:
                    on_observed(sightings.observation())


def _equipped(program: Program) -> Program:
    """Return the program; its `env` also has the variables that its `env_names` let through."""
    return replace(program, env={**named(os.environ, program.env_names), **program.env})


def _check_fence(program: Program) -> None:
    """Raise RunnerError ``sandbox-missing`` for a program whose sandbox is not available."""
    fence = program.sandbox
    if fence is not None and fence.required and lacks(fence.level):
        raise RunnerError(missing_problem(fence.level))


def _open_worker(
    server: ServerHandle,
    program: Program,
    first: Mapping[str, Json] | None,
    *,
    calls_only: bool = False,
) -> WorkerProcess:
    return server.open_worker(
        fresh=program.isolation == "spawn",
        sandbox=program.sandbox,
        calls_only=calls_only,
        first=first,
        meanwhile=_import_work,
    )


def _import_work() -> None:
    """Import the modules that make cases, while a worker starts.

    Importing numpy alone takes as long as loading a program.
    """
    importlib.import_module("gpuemu_flow.workers.checked")


def _no_server(complaint: str) -> RunnerError:
    return RunnerError(
        Problem("worker-not-started", f"the fork server does not start: {complaint[-500:]}")
    )
