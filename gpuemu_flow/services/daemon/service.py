"""State that all handlers use: workspace, loaded programs, results, and handed-out cases."""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from numpy.typing import NDArray

from gpuemu_flow import __version__
from gpuemu_flow.build.files import glob_folders, stamp_of
from gpuemu_flow.build.stamps import look_of
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.config.model import OpConfig
from gpuemu_flow.fuzz.wire_ops import PlannedCases, Subjects, WireSubject
from gpuemu_flow.judge.case_evaluator import SESSIONS_PER_EVALUATOR, CaseEvaluator
from gpuemu_flow.model.errors import FlowError, UsageError
from gpuemu_flow.model.types import Case, Json, Shape
from gpuemu_flow.numerics.dtypes import bytes_of
from gpuemu_flow.services.daemon.replies import RequestError
from gpuemu_flow.store.baselines import ArtifactStore
from gpuemu_flow.store.cache import JsonStore
from gpuemu_flow.store.failures import FailureStore
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.store.results import ResultStore
from gpuemu_flow.wire import PROTOCOL_VERSION
from gpuemu_flow.wire.tensors import Exchange
from gpuemu_flow.workers.pool import Pool

# Track requests in progress and the clients that wait for them, and provide worker threads.

Context = Any  # pynng.Context, which has no types

MAX_WAITERS = 64
"""Largest number of waiting copies of a request. After 60 s, the transport sends a new copy every
second."""
REMEMBERED_LEAVERS = 4096
"""Number of ended connections to remember, since a request may be read after its connection
ended."""


class CancelledJobError(Exception):
    """Raised while a request is processed, if no client waits for its answer any more."""


class Job:
    """A request in progress. Equal requests that arrive meanwhile wait for the same answer."""

    def __init__(self, data: bytes, pipe: int, context: Context, request_id: str = "") -> None:
        self.request_id = request_id
        self.begun = time.monotonic()
        self.progress = (0, 0)
        self.data = data
        self.pipe = pipe
        self.cancelled = threading.Event()
        self.key = (pipe, hashlib.sha256(data).digest())
        self.waiters: list[Context] = [context]
        self._linked: list[threading.Event] = []
        self._lock = threading.Lock()

    def cancel(self) -> None:
        with self._lock:
            self.cancelled.set()
            linked = list(self._linked)
        for event in linked:
            event.set()

    @contextmanager
    def linked(self, event: threading.Event) -> Iterator[None]:
        with self._lock:
            self._linked.append(event)
            if self.cancelled.is_set():
                event.set()
        try:
            yield
        finally:
            with self._lock:
                self._linked.remove(event)

    def check(self) -> None:
        if self.cancelled.is_set():
            raise CancelledJobError


class JobTable:
    """All jobs in progress, by connection and content. Thread-safe."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[int, bytes], Job] = {}
        self._lock = threading.Lock()
        self._gone: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> tuple[bool, Context | None]:
        """Register a job, or let its client wait for an equal job in progress. One request can
        arrive several times: a client's transport sends it again if no answer arrives, and the
        client does so after a time-out. All copies wait for the same result."""
        with self._lock:
            known = self._jobs.get(job.key)
            if known is None or known.cancelled.is_set():
                self._jobs[job.key] = job
                if job.pipe in self._gone:
                    job.cancel()
                return True, None
            known.waiters += job.waiters
            return False, known.waiters.pop(0) if len(known.waiters) > MAX_WAITERS else None

    def finish(self, job: Job) -> list[Context]:
        with self._lock:
            if self._jobs.get(job.key) is job:
                del self._jobs[job.key]
            return job.waiters

    def named(self, request_id: str) -> Job | None:
        with self._lock:
            return next((j for j in self._jobs.values() if j.request_id == request_id), None)

    def has_of(self, pipe: int) -> bool:
        with self._lock:
            return any(job.pipe == pipe for job in self._jobs.values())

    def connected(self, pipe: int) -> None:
        """Record a new connection, so that `add` does not cancel its requests. The method `add`
        cancels requests from connections that have ended. The new connection may have the same
        number, `pipe`, as one of them."""
        with self._lock:
            self._gone.pop(pipe, None)

    def disconnected(self, pipe: int) -> None:
        """Cancel the requests of a connection that has ended."""
        with self._lock:
            self._gone[pipe] = None
            if len(self._gone) > REMEMBERED_LEAVERS:
                self._gone.popitem(last=False)
            orphans = [job for job in self._jobs.values() if job.pipe == pipe]
        for job in orphans:
            job.cancel()

    def expire(self, seconds: float) -> None:
        """Cancel jobs that began more than `seconds` ago, since no client waits that long."""
        limit = time.monotonic() - seconds
        with self._lock:
            late = [job for job in self._jobs.values() if job.begun < limit]
        for job in late:
            job.cancel()

    def cancel_all(self) -> None:
        with self._lock:
            jobs = list(self._jobs.values())
        for job in jobs:
            job.cancel()


class WorkerPool:
    """Threads for one kind of request, so that slow kinds never delay quick ones."""

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._limit = threads
        self._threads: list[threading.Thread] = []
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._busy = 0
        self._closed = False

    def submit(self, work: Callable[[], None]) -> None:
        with self._lock:
            self._busy += 1
            if self._busy > len(self._threads) < self._limit:
                thread = threading.Thread(
                    target=self._serve, name=f"{self._name}-{len(self._threads)}", daemon=True
                )
                self._threads.append(thread)
                thread.start()
        self._work.put(work)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            finally:
                with self._lock:
                    self._busy -= 1

    def close(self, seconds: float) -> None:
        self._closed = True
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            with suppress(RuntimeError):
                thread.join(seconds)


# Provide the current configuration, or the last valid one if the files have errors.


class Configured(Struct, frozen=True):
    """A valid configuration."""

    workspace: Workspace
    subjects: Subjects


class Reloading:
    """Provides the current configuration; checks its files at each call. Thread-safe. Raises
    FlowError: Raised only by the constructor, when there is no earlier valid configuration."""

    def __init__(self, start: Path, environ: Mapping[str, str] = os.environ) -> None:
        self._start = start
        self._environ = environ
        self._lock = threading.Lock()
        self._error: FlowError | None = None
        self._current = self._load()
        self._stamps = self._look()

    def _load(self) -> Configured:
        workspace = Workspace(self._start, environ=self._environ)
        return Configured(workspace, Subjects(workspace))

    def _look(self) -> list[tuple[Callable[[str], object], str, object]]:
        workspace = self._current.workspace
        config = workspace.config
        paths = [str(file.path) for file in (*config.files, *config.looked_into)]
        for pattern in config.include:  # a file may appear there
            paths += sorted(map(str, glob_folders(workspace.root, pattern)))
        seen: list[tuple[Callable[[str], object], str]] = [(stamp_of, path) for path in paths]
        seen += [(look_of, str(path)) for path in config.looked_at]
        return [(look, path, look(path)) for look, path in seen]

    @property
    def root(self) -> Path:
        return self._current.workspace.root

    @property
    def error(self) -> FlowError | None:
        """Return the error that keeps the present files from being used; None if they are used."""
        return self._error

    def current(self) -> Configured:
        with self._lock:
            if any(look(path) != seen for look, path, seen in self._stamps):
                self._reload()
            return self._current

    def _reload(self) -> None:
        stamps = self._look()
        try:
            self._current = self._load()
            self._error = None
            stamps = self._look()
            log.info("the configuration changed and was read again")
        except FlowError as error:
            self._error = error
            log.warning("the configuration is wrong; the last good one stays in use: %s", error)
        self._stamps = stamps


log = logging.getLogger("gpuemu_flow.services.daemon")

CLOSE_SECONDS = 2.0
RECIPES_BYTES = 64 << 20
"""Largest size of the stored recipes of handed-out cases. The least recently used are dropped."""


class Service:
    """The state of the daemon, without its sockets."""

    def __init__(self, configured: Reloading, pool: Pool, exchange: Exchange | None = None) -> None:
        self._configured = configured
        self.exchange = exchange
        workspace = configured.current().workspace
        config = workspace.config
        self._config_name = workspace.config_path.name
        self.cache = workspace.cache
        self.references = References(pool, config.execution.max_parallel_refs)
        self.results = ResultStore(
            self.cache,
            config.results_folder(self.cache.folder),
            max_results=config.storage.max_results,
            retention_days=config.storage.retention_days,
        )
        self.artifacts = ArtifactStore(self.cache)
        self.baselines_lock = threading.Lock()
        self.failures = FailureStore(self.cache)
        self.failures_lock = threading.Lock()
        self._recipes = JsonStore(
            self.cache.folder / "wire-issued", self.cache.set_aside, size_limit=RECIPES_BYTES
        )
        self.issued = IssuedCaseStore(self._recipes)
        self.planned = PlannedCases()
        self.fuzz_threads = max(1, min(config.execution.max_parallel_refs, os.cpu_count() or 1))
        self._pruner = WorkerPool("prune", 1)
        self.stop = threading.Event()
        self._started = time.monotonic()

    def configured(self) -> Configured:
        return self._configured.current()

    def op(self, name: str) -> tuple[Configured, OpConfig]:
        """Return an op and the configuration that it belongs to. Raises RequestError:
        ``ConfigError`` if the op is unknown and the present configuration files are invalid. Raises
        UsageError: ``unknown-op``."""
        configured = self._configured.current()
        try:
            return configured, configured.subjects.op(name)
        except UsageError as error:
            wrong = self._configured.error
            if wrong is not None:
                raise RequestError("ConfigError", f"{error}\n{wrong}") from None
            raise

    def prune_results(self) -> None:
        """Start to delete results above the limit, in the background."""
        if self.results.is_due:
            self._pruner.submit(self._prune)

    def _prune(self) -> None:
        try:
            self.results.prune()
        except FlowError as error:  # the next start of a daemon deletes the rest
            log.warning("old results cannot be deleted: %s", error)

    def pong(self, in_progress: int) -> dict[str, Json]:
        """Return the answer to a ping, without waiting for anything."""
        reply = {
            "type": "Pong",
            "version": __version__,
            "protocol_version": PROTOCOL_VERSION,
            "uptime_secs": int(time.monotonic() - self._started),
            "server": "gpuemu-flow",
            "in_progress": in_progress,
            "workspace": str(self._configured.root),
            "config": str(self._configured.root / self._config_name),
            "exchange": None if self.exchange is None else str(self.exchange.folder),
        }
        error = self._configured.error
        if error is not None:
            reply["config_error"] = str(error)
        return reply

    def close(self) -> None:
        self.references.close()
        self._pruner.close(CLOSE_SECONDS)
        with suppress(FlowError):
            self.results.close()
            self.artifacts.close()
            self._recipes.close()
            self.cache.close()


# Cases handed out to clients, found again when a client submits their seed.


MAX_ISSUED = 50_000


class Issued(Struct, frozen=True):
    """A case that was handed out to a client."""

    case: Case
    shape: Shape
    fuzz_config: Json
    digest: str


def digest_of(inputs: Mapping[str, NDArray[Any]]) -> str:
    """Return the sha256 of tensors: their names, dtypes, shapes, and elements in C order."""
    found = hashlib.sha256()
    for name, array in sorted(inputs.items()):
        found.update(repr((name, array.dtype.name, array.shape)).encode())
        found.update(bytes_of(array).data)
    return found.hexdigest()


def seed_of(op: str, inputs: Mapping[str, NDArray[Any]], asked: object) -> int:
    """Return a seed for a case whose inputs a client made; equal calls get equal seeds."""
    return int(digest_json([op, digest_of(inputs), repr(asked)])[:16], 16)


class IssuedCaseStore:
    """Cases that were handed out: the latest in memory, the recipes of all on disk. Thread-safe."""

    def __init__(self, recipes: JsonStore, limit: int = MAX_ISSUED) -> None:
        self._limit = limit
        self._recipes = recipes
        self._issued: OrderedDict[tuple[str, int], Issued] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, op: str, maker: Mapping[str, Json], issued: Sequence[tuple[int, Issued]]) -> None:
        """Store cases in memory and their recipes on disk. If there are then too many cases in
        memory, the oldest are dropped there."""
        made_from = digest_json(maker)
        records: list[tuple[str, Json]] = [(f"maker:{made_from}", dict(maker))]
        records += [
            (_key(op, one.case.seed), {"maker": made_from, "number": number})
            for number, one in issued
        ]
        self._recipes.put_many(records)
        for _, one in issued:
            self.remember(op, one)

    def remember(self, op: str, issued: Issued) -> None:
        key = op, issued.case.seed
        with self._lock:
            self._issued[key] = issued
            self._issued.move_to_end(key)
            while len(self._issued) > self._limit:
                self._issued.popitem(last=False)

    def find(self, op: str, seed: int) -> Issued | None:
        with self._lock:
            return self._issued.get((op, seed))

    def handed_out(self, op: str, seeds: Collection[int]) -> set[int]:
        """Return the members of `seeds` whose cases a daemon of this workspace handed out."""
        with self._lock:
            known = {seed for seed in seeds if (op, seed) in self._issued}
        keys = {_key(op, seed): seed for seed in seeds if seed not in known}
        return known | {keys[key] for key in self._recipes.among(list(keys))}

    def recipe(self, op: str, seed: int) -> tuple[dict[str, Json], int] | None:
        """Return the recipe of a case that was handed out; None if none is stored. The result has
        two parts: the recipe that several cases share, and the number with which this recipe makes
        the case."""
        record = self._recipes.get(_key(op, seed))
        maker = None if record is None else self._recipes.get(f"maker:{record['maker']}")
        return None if record is None or maker is None else (maker, int(record["number"]))


def _key(op: str, seed: int) -> str:
    return f"case:{seed}:{op}"


# Keep programs loaded between requests, and limit how many run at once.


IDLE_SECONDS = 600.0
_SLICE = 0.1


class _Warm(Struct):
    """The loaded programs of one subject, kept for further requests. They are discarded after a
    failed or cancelled request, and when they have been idle for long."""

    key: str
    evaluator: CaseEvaluator
    stack: ExitStack
    cancel: threading.Event
    used: float = field(default_factory=time.monotonic)

    def close(self) -> None:
        self.stack.close()


class References:
    """Hands out sessions, each to one request at a time. Thread-safe."""

    def __init__(self, pool: Pool, limit: int) -> None:
        self._pool = pool
        self._limit = limit
        self._idle: OrderedDict[int, _Warm] = OrderedDict()
        self._numbers = count()
        self._at_work = 0
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()
        self._closed = False

    @staticmethod
    def sessions_for(limit: int) -> int:
        """Return the number of sessions that the pool must have room for. They suffice for `limit`
        subjects (ops with their programs) in use, and as many idle ones."""
        return 2 * limit * SESSIONS_PER_EVALUATOR

    @contextmanager
    def checkout(self, subject: WireSubject, job: Job) -> Iterator[CaseEvaluator]:
        warm = self._take(subject, job)
        healthy = False
        try:
            with job.linked(warm.cancel):
                yield warm.evaluator
            subject.learn(warm.evaluator.observed())
            healthy = not warm.cancel.is_set()
        finally:
            self._give_back(warm, healthy)

    def _take(self, subject: WireSubject, job: Job) -> _Warm:
        with self._changed:
            self._wait_in_line(job)
            self._at_work += 1
            number = next(
                (n for n, warm in reversed(self._idle.items()) if warm.key == subject.key), None
            )
            if number is not None:
                return self._idle.pop(number)
        cancel = threading.Event()
        try:
            stack = ExitStack()
            return _Warm(
                subject.key,
                CaseEvaluator(self._pool, subject.subject, stack, cancel),
                stack,
                cancel,
            )
        except BaseException:
            with self._changed:
                self._at_work -= 1
                self._changed.notify_all()
            raise

    def _wait_in_line(self, job: Job) -> None:
        """Wait for a free slot, in order of arrival, so that no fuzz run blocks others for long."""
        place = object()
        self._queue.append(place)
        try:
            while self._at_work >= self._limit or self._queue[0] is not place:
                job.check()
                if self._closed:
                    raise CancelledJobError
                self._changed.wait(_SLICE)
            job.check()
            if self._closed:
                raise CancelledJobError
        finally:
            self._queue.remove(place)
            self._changed.notify_all()

    def _give_back(self, warm: _Warm, healthy: bool) -> None:
        spare = [] if healthy else [warm]
        now = warm.used = time.monotonic()
        with self._changed:
            self._at_work -= 1
            if healthy and not self._closed:
                self._idle[next(self._numbers)] = warm
            elif healthy:
                spare.append(warm)
            while self._idle:
                number, oldest = next(iter(self._idle.items()))
                if len(self._idle) <= self._limit and now - oldest.used < IDLE_SECONDS:
                    break
                del self._idle[number]
                spare.append(oldest)
            self._changed.notify_all()
        for unused in spare:
            unused.close()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            idle = list(self._idle.values())
            self._idle.clear()
            self._changed.notify_all()
        for warm in idle:
            warm.close()
