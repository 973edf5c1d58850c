"""Run programs on cases in a pool of worker processes, with exactly one outcome per case."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpuemu_flow.errors import CancelledRunError, Problem, RunnerError
from gpuemu_flow.let_through import named
from gpuemu_flow.observed import Observation
from gpuemu_flow.runners.api import (
    EMULATED,
    REFUSALS,
    Checks,
    Outcome,
    Program,
    Request,
    gives_up,
    not_run,
)
from gpuemu_flow.runners.attempt import Attempt, WorkerClient, load_request
from gpuemu_flow.runners.process import (
    ServerDiedError,
    ServerHandle,
    ServerStart,
    WorkerProcess,
)
from gpuemu_flow.runners.sandbox.spec import lacks, missing_problem
from gpuemu_flow.runners.sightings import Sightings
from gpuemu_flow.types import Json

if TYPE_CHECKING:
    from gpuemu_flow.runners.work import ProgramSession, Work


LOAD_SECONDS = 120.0
_SERVER_STARTS = 3
_SLICE = 0.1
_MOST_PRELOADED = 4
"""Maximum number of fork servers that import a framework, each for another environment."""

OnOutcome = Callable[[Outcome], None]
OnObserved = Callable[[Observation], None]
Publish = Callable[[Path, str], None]


class Pool:
    """Runs programs in workers. A context manager; thread-safe."""

    def __init__(
        self,
        workers: int,
        *,
        staging: Path,
        env: Mapping[str, str] | None = None,
        load_timeout: float = LOAD_SECONDS,
    ) -> None:
        self._slots = threading.BoundedSemaphore(max(1, workers))
        self._staging = staging
        self._env = dict(env or {})
        self._load_timeout = load_timeout
        self._servers: dict[ServerStart, ServerHandle] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._closed = False

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
        return ServerHandle({**self._env, **dict(start.env)}, start.framework)

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
    ) -> Supervisor:
        program = _equipped(program)

        def open_shared() -> WorkerClient:
            return talk(self._open(program, load_request(program), calls_only=calls_only))

        def talk(worker: WorkerProcess) -> WorkerClient:
            worker.follow_with(sightings)
            return WorkerClient(worker, program, self._load_timeout, cancel, loading=True)

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
        self, program: Program, *, cancel: threading.Event | None = None
    ) -> Iterator[ProgramSession]:
        """Yield a session to call a program repeatedly, with tensors in shared memory.

        Raises RunnerError: ``worker-not-started``, raised by the session's methods, since the
        worker is started by the first call. Raises CancelledRunError: `cancel` was set.
        """
        from gpuemu_flow.runners.work import ProgramSession  # noqa: PLC0415 - loads numpy

        with self._slot(cancel):
            sightings = Sightings()
            supervisor = self._supervisor(program, cancel, sightings)
            try:
                yield ProgramSession(supervisor, sightings)
            finally:
                supervisor.close()

    @contextlib.contextmanager
    def _slot(self, cancel: threading.Event | None) -> Iterator[None]:
        while not self._slots.acquire(timeout=_SLICE if cancel is not None else None):
            if cancel is not None and cancel.is_set():
                raise CancelledRunError
        try:
            yield
        finally:
            self._slots.release()

    def _one(
        self, supervisor: Supervisor, request: Request, checks: Checks, publish: Publish
    ) -> Outcome:
        staged = self._staging / f"{os.getpid()}-{next(self._numbers)}.part"
        supervisor.next_worker()  # starts a worker, and meanwhile imports what cases need
        from gpuemu_flow.runners.work import CaseToFile  # noqa: PLC0415

        try:
            attempt = supervisor.run(CaseToFile(request, checks, staged))
            if attempt.outcome.ok:
                publish(staged, attempt.outcome.blob)
        finally:
            staged.unlink(missing_ok=True)
        return attempt.outcome_of(request)

    def run(
        self,
        program: Program,
        requests: Sequence[Request],
        *,
        checks: Checks,
        on_outcome: OnOutcome | None = None,
        publish: Publish,
        cancel: threading.Event | None = None,
        on_observed: OnObserved | None = None,
    ) -> list[Outcome]:
        """Run a program on cases.

        Raises RunnerError: ``worker-not-started`` or ``staging-failed``, which are not the
        program's fault.
        """
        outcomes: list[Outcome] = []
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
                supervisor = self._supervisor(program, cancel, sightings, calls_only=True)
                try:
                    for request in requests:
                        if gives_up(outcomes):
                            outcome = not_run(request.case.index, program.timeout)
                        else:
                            outcome = self._one(supervisor, request, checks, publish)
                        outcomes.append(outcome)
                        tell_observed()
                        if on_outcome is not None:
                            on_outcome(outcome)
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
            worker_client = WorkerClient(self._open(program), program, self._load_timeout, cancel)
            sightings = Sightings()
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
    importlib.import_module("gpuemu_flow.runners.work")


def _no_server(complaint: str) -> RunnerError:
    return RunnerError(
        Problem("worker-not-started", f"the fork server does not start: {complaint[-500:]}")
    )


# Supervise cases: choose the process of each, and repeat failed cases in a new process.


ENOUGH_ALIKE = 2


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
    note = f"raised as by {ENOUGH_ALIKE} earlier cases, and not tried in a process of its own"
    hint = f"{error.hint}; {note}" if error.hint else note
    return replace(attempt, outcome=replace(attempt.outcome, error=replace(error, hint=hint)))


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

    def close(self) -> None:
        """End the idle worker."""
        if self._current is not None:
            self._current.close()
            self._current = None

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
