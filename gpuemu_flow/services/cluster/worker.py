"""The worker side of ``fuzz`` on a cluster: judge batches of cases with warm programs."""

from __future__ import annotations

import asyncio
import atexit
import os
import platform
import shutil
import tempfile
import threading
import time
import traceback
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from msgspec import Struct, field

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.config.model import Overrides
from gpuemu_flow.fuzz.case_queue import (
    BatchVerdict,
    QueuedCase,
    WarmPrograms,
    known_verdicts,
    reference_inputs,
    verdict_key,
)
from gpuemu_flow.fuzz.subjects import OpSubject, op_subject, tasks_of
from gpuemu_flow.model.decoding import known
from gpuemu_flow.model.errors import CancelledRunError, FlowError, Hint, Problem, RunnerError
from gpuemu_flow.model.let_through import let_through
from gpuemu_flow.store.cache import WorkspaceCache
from gpuemu_flow.store.keys import Discovered, digest_json

# Messages between the coordinator and a cluster's workers: compressed MessagePack.

M = TypeVar("M", bound="Message")

PROTOCOL = 2
NANNY_VARIABLES = (
    "MALLOC_TRIM_THRESHOLD_", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED",
)  # fmt: skip
"""Variables that dask sets in its workers. Some of them change the results of programs."""


class Message(Struct, frozen=True):
    """What is sent, together with the version of the protocol."""

    def encode(self) -> bytes:
        """Return the message; `decode` reads it."""
        return zlib.compress(msgspec.msgpack.encode((PROTOCOL, self), enc_hook=_plain), 1)

    @classmethod
    def decode(cls: type[M], message: bytes) -> M:
        """Read a message; raise ValueError if it is none, or one of another version."""
        try:
            content = zlib.decompress(message)
            version, own = msgspec.msgpack.decode(content, type=tuple[int, msgspec.Raw])
            if version == PROTOCOL:
                return msgspec.msgpack.decode(own, type=known(cls))
        except (zlib.error, msgspec.MsgspecError) as error:
            raise ValueError(f"no message of a cluster: {error}") from None
        raise ValueError(f"a message of version {version}, not {PROTOCOL}")


def _plain(value: np.generic | Hint) -> object:
    return str(value) if isinstance(value, Hint) else value.item()


class RunSetup(Struct, frozen=True):
    """Everything that a worker needs to know about a run, apart from its cases."""

    # Name of the run; workers keep warm programs until the run ends.
    run: str
    # Absolute path of the configuration, on all machines.
    config: str
    overrides: Overrides
    op: str
    dtypes: tuple[str, ...]
    # See `worker.facts`.
    facts: Mapping[str, str]
    # The coordinator's values of those `NANNY_VARIABLES` that are set.
    variables: Mapping[str, str]
    # `force` is true if no results are taken from caches, `alone` if cases are judged one by
    # one.
    force: bool = False
    alone: bool = False


class BatchRequest(Message, frozen=True):
    """Cases of one dtype that a worker is to judge."""

    setup: RunSetup
    # Index of the dtype in the setup.
    which: int
    # The cases; their keys are not sent.
    cases: tuple[QueuedCase, ...]
    # Values of `BatchAnswer.key` that the coordinator has already seen and checked. An answer
    # with one of these keys leaves `BatchAnswer.names` and `BatchAnswer.parts` empty.
    known: tuple[str, ...] = ()


class BatchAnswer(Message, frozen=True):
    """The outcome of a batch on a worker."""

    # The worker's name; see `worker.own_name`.
    worker: str
    verdicts: tuple[BatchVerdict, ...] = ()
    # See `fuzz.case_queue.BatchReply`.
    key: str = ""
    names: Discovered = field(default_factory=Discovered)
    parts: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    # The errors that prevented verdicts, if any.
    problems: tuple[Problem, ...] = ()
    # Facts that differ between worker and coordinator; if there are any, there are no verdicts.
    differs: tuple[str, ...] = ()
    # A traceback; empty if there is none.
    crash: str = ""
    # True if the run ended before the batch was judged.
    ended: bool = False


def facts(workspace: Workspace, op: str, subjects: Iterable[OpSubject]) -> dict[str, str]:
    """Return, by name, the facts that decide an op's verdicts and are known before it runs. The
    last entries are the action keys, which also cover facts that have no entry here."""
    states = workspace.states()
    sandbox = workspace.snapshot.basis.sandbox
    found = {"the sandbox": str(sandbox)}
    keys = {}
    for subject in subjects:
        dtype = subject.subject.dtype
        tasks = tasks_of(workspace.graph, op, dtype)
        for spec in (tasks.generate, tasks.op, tasks.reference, tasks.compare):
            parts = states.static_parts(spec)
            found["the code of gpuemu-flow"] = spec.version
            found |= {f"file {path}": digest for path, digest in parts.code.items()}
            found |= dict(parts.env)
            found[f"the configuration of {spec.name}"] = digest_json(parts.params)
        keys[f"the key of {op} in {dtype}"] = verdict_key(subject)
    return {**found, **keys}


def differences(own: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Return the names of the facts that differ. Action keys are facts, too, but they differ
    whenever any other fact does. So their names are returned only if nothing else differs."""
    names = [name for name in {**other, **own} if own.get(name) != other.get(name)]
    keys = [name for name in names if name.startswith("the key of ")]
    return [name for name in names if name not in keys] or keys


IDLE_SECONDS = 300.0
"""Idle time in seconds after which a run's programs are ended, as its coordinator may be dead."""
MOST_THREADS = 1024
_REMEMBERED = 1000


class DiffersError(Exception):
    """Error raised on a machine whose verdicts could differ from the coordinator's."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(", ".join(names))
        self.names = names


def open_here(setup: RunSetup, folder: Path) -> tuple[Workspace, WorkspaceCache, list[OpSubject]]:
    """Open the workspace of a run, a cache on this machine, and the op in each dtype. Nothing is
    written to the workspace or its cache, since SQLite does not work well on network file systems.
    One file is an exception: it is written to learn the time of the file system. Raises
    DiffersError: Verdicts of this machine could differ from the coordinator's. Raises FlowError:
    The workspace cannot be read here."""
    if not os.path.exists(setup.config):  # noqa: PTH110 - a path of another machine's
        raise DiffersError([f"file {setup.config}, which is not there"])
    _set_variables(setup)
    environ = {**os.environ, "GPUEMU_CONFIG": setup.config}
    workspace = Workspace(Path(setup.config).parent, overrides=setup.overrides, environ=environ)
    workspace.trusted = True  # the coordinator's user trusts it
    cache = WorkspaceCache(folder)
    cache.create()
    workspace.keep_out_of_inputs(folder)
    try:
        subjects = [
            op_subject(workspace, setup.op, d, to_run=False, learned=False) for d in setup.dtypes
        ]
    except KeyError as missing:
        raise DiffersError([f"the task {missing}"]) from None
    differing = differences(facts(workspace, setup.op, subjects), setup.facts)
    if differing:
        raise DiffersError(differing)
    return workspace, cache, subjects


class WorkerSession:
    """The warm programs of one run on one worker. Thread-safe. The constructor raises the errors of
    `open_here`."""

    def __init__(self, setup: RunSetup, folder: Path) -> None:
        self.variables = setup.variables
        self._folder = folder
        self._lock = threading.Lock()
        self.used = time.monotonic()
        self.active = 0
        self._workspace, self._cache, subjects = open_here(setup, folder)
        about = [(self._cache, subject, self._workspace.inputs) for subject in subjects]
        self._inputs = [known_verdicts(*each, force=setup.force).inputs for each in about]
        references = [reference_inputs(*each, force=setup.force) for each in about]
        inputs = list(zip(self._inputs, references, strict=True))
        self._programs = WarmPrograms(
            self._cache, subjects, inputs, threads=MOST_THREADS, alone=setup.alone
        )

    def judge(self, request: BatchRequest) -> BatchAnswer:
        """Judge a batch. Raises CancelledRunError: The run has ended. Raises FlowError: The
        programs cannot be run here."""
        begin = time.perf_counter()
        with self._at_work():
            judged = self._programs.judge(request.which, request.cases)
            found = {done.number: (done, each.case, each.result) for done, each in judged}
        if self._programs.cancel.is_set():
            raise CancelledRunError
        inputs = self._inputs[request.which]
        names = inputs.names
        key = "" if inputs.moved() else inputs.key_of(names)
        verdicts = []
        for queued in request.cases:
            done, case, result = found[queued.number]
            verdicts.append(BatchVerdict(result, None if case == done.case else case))
        seconds = time.perf_counter() - begin
        if key in request.known:
            return BatchAnswer(own_name(), tuple(verdicts), key, seconds=seconds)
        parts = self._workspace.inputs.parts(names)
        return BatchAnswer(own_name(), tuple(verdicts), key, names, parts, seconds)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        with self._lock:
            self.active += 1
        try:
            yield
        finally:
            with self._lock:
                self.active -= 1
                self.used = time.monotonic()

    def close(self) -> None:
        self._programs.close()
        self._cache.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class Sessions:
    """The sessions of this process, keyed by run. Thread-safe."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, WorkerSession] = OrderedDict()
        self._ended: deque[str] = deque(maxlen=_REMEMBERED)
        self._lock = threading.Lock()
        self._watching = False

    def get(self, setup: RunSetup) -> WorkerSession:
        """Return the session of a run, opened by the first batch. Raises CancelledRunError: The run
        has ended."""
        with self._lock:
            if setup.run in self._ended:
                raise CancelledRunError
            session = self._sessions.get(setup.run)
            if session is None:
                self._demand_same_variables(setup)
                folder = Path(tempfile.mkdtemp(prefix="gpuemu-", dir=local_folder()))
                try:
                    session = self._sessions[setup.run] = WorkerSession(setup, folder)
                except BaseException:
                    shutil.rmtree(folder, ignore_errors=True)
                    raise
            if not self._watching:
                self._watching = True
                atexit.register(self.close)
                threading.Thread(target=self._end_idle, daemon=True).start()
            return session

    def _demand_same_variables(self, setup: RunSetup) -> None:
        if any(session.variables != setup.variables for session in self._sessions.values()):
            text = f"{own_name()} works for a run with another environment"
            raise RunnerError(Problem("cluster-worker-failed", text, "wait until that has ended"))

    def end(self, run: str) -> None:
        with self._lock:
            self._ended.append(run)
            session = self._sessions.pop(run, None)
        if session is not None:
            session.close()

    def close(self) -> None:
        for run in list(self._sessions):
            self.end(run)

    def _end_idle(self) -> None:
        while True:
            time.sleep(IDLE_SECONDS / 10)
            late = time.monotonic() - IDLE_SECONDS
            with self._lock:
                idle = [r for r, s in self._sessions.items() if not s.active and s.used < late]
                sessions = [self._sessions.pop(run) for run in idle]  # a later batch opens it again
            for session in sessions:
                session.close()


def _set_variables(setup: RunSetup) -> None:
    """Give programs the coordinator's environment, and undo dask's changes to this process's."""
    for name in let_through(os.environ):
        if name != "TMPDIR":  # of this machine
            del os.environ[name]
    os.environ.update(setup.variables)


_sessions = Sessions()


def judge_batch(message: bytes) -> bytes:
    """Judge the cases of an encoded `BatchRequest`, and return an encoded `BatchAnswer`."""

    def judge() -> BatchAnswer:
        request = BatchRequest.decode(message)
        return _sessions.get(request.setup).judge(request)

    return answered(judge)


def answered(work: Callable[[], BatchAnswer]) -> bytes:
    """Call `work`, and return its answer as a message. If `work` raises an error, the message
    reports the error."""
    try:
        answer = work()
    except CancelledRunError:
        answer = BatchAnswer(own_name(), ended=True)
    except DiffersError as error:
        answer = BatchAnswer(own_name(), differs=tuple(error.names))
    except FlowError as error:
        answer = BatchAnswer(own_name(), problems=error.problems)
    except Exception:
        answer = BatchAnswer(own_name(), crash=traceback.format_exc())
    return answer.encode()


async def end_run(run: str) -> None:
    """End this process's work for a run, without blocking its event loop."""
    await asyncio.get_running_loop().run_in_executor(None, _sessions.end, run)


def own_name() -> str:
    """Return the worker's address; outside of a dask worker, the host name and the process id."""
    from distributed import get_worker  # noqa: PLC0415 - dear, and there already

    try:
        return str(get_worker().address)
    except ValueError:
        return f"{platform.node()}:{os.getpid()}"


def local_folder() -> str | None:
    """Return the worker's folder on a local disk; None for the system's temporary folder."""
    from distributed import get_worker  # noqa: PLC0415 - dear, and there already

    try:
        return str(get_worker().local_directory)
    except ValueError:
        return None


# The worker side of ``run`` on a cluster: run the tasks of one op, and share the results.
