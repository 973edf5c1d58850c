"""The client of one worker: loads the program, requests cases, and returns failures as data."""

from __future__ import annotations

import math
import os
import re
import secrets
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.errors import CancelledRunError
from gpuemu_flow.model.let_through import is_general, is_named
from gpuemu_flow.model.types import Json
from gpuemu_flow.workers import channel
from gpuemu_flow.workers.api import (
    MAX_OUTPUTS,
    Checks,
    Outcome,
    Program,
    Request,
    RunError,
    Slot,
    end_of,
)
from gpuemu_flow.workers.channel import ChannelJunkError
from gpuemu_flow.workers.process import (
    BUILD_SECONDS,
    DeadlineError,
    WorkerEndedError,
    WorkerProcess,
)

if TYPE_CHECKING:
    import numpy as np

    from gpuemu_flow.workers.arena import Arena
    from gpuemu_flow.workers.sightings import Sightings


PREPARE_SECONDS = 300.0  # for making inputs and writing outputs
LOAD_SECONDS = 30.0
"""Least time that loading a program may take; more if its `timeout` is more."""


class Attempt(Struct, frozen=True):
    """One try at a case."""

    outcome: Outcome
    ended: bool = False
    timed_out: bool = False
    server_died: bool = False
    load_failed: bool = False
    killed: bool = False

    def outcome_of(self, request: Request) -> Outcome:
        """Return the outcome with its index replaced by that of a request's case.

        If the program cannot be loaded, all cases get the outcome of the same failed attempt, each
        with its own index.
        """
        return replace(self.outcome, index=request.case.index)


def _diagnose() -> ModuleType:
    from gpuemu_flow.workers import diagnose  # noqa: PLC0415 - only when a program has failed

    return diagnose


class JobFailedError(Exception):
    """Raised when a job gave no result."""

    def __init__(self, error: RunError) -> None:
        super().__init__(error.message)
        self.error = error


def load_request(program: Program) -> dict[str, Json]:
    """Return the message that makes a worker load a program; it must be sent first."""
    return {"type": "load", "program": msgspec.to_builtins(program)}


class WorkerClient:
    """Communicates with one worker about one program. Not thread-safe."""

    def __init__(
        self,
        worker: WorkerProcess,
        program: Program,
        cancel: threading.Event | None = None,
        *,
        loading: bool = False,
    ) -> None:
        self.worker = worker
        self.arena: Arena | None = None
        self.cases = 0
        self.current: object = None
        self.setup: object = None  # of the service that the worker has
        self.place = 0  # of several calls, the one that took too long
        self._arena_sent = False
        self._program = program
        self._load_seconds = max(LOAD_SECONDS, program.timeout)
        self._load_seconds += BUILD_SECONDS if program.gpu_folder else 0.0
        self._cancel = cancel
        self._loading = loading
        self._loaded = False
        # A message without the current number comes from an old fork or from the program itself.
        self._serial = secrets.randbits(48)
        self._request = ""
        self._calls = 1
        self._patience = program.timeout

    def close(self) -> None:
        """End the worker."""
        self.worker.close()
        if self.arena is not None:
            self.arena.close()
            self.arena = None

    def begin_anew(self, sightings: Sightings, cancel: threading.Event | None) -> None:
        """Serve another session of the same program."""
        self.current = self.setup = None
        self._cancel = cancel
        self.worker.follow_with(sightings)

    @property
    def program(self) -> Program:
        """Return the program that the worker runs."""
        return self._program

    def shared(self) -> Arena:
        """Return the memory shared with the worker, made on first use."""
        if self.arena is None:
            from gpuemu_flow.workers.arena import Arena  # noqa: PLC0415 - numpy only for tensors

            self.arena = Arena(channel.create("tensors", fixed=True))
        return self.arena

    def _failed(self, index: int, error: RunError, **why: bool) -> Attempt:
        self.worker.kill()
        return Attempt(Outcome(index, ok=False, error=error), ended=True, **why)

    def broken(self, index: int) -> Attempt:
        """Return the failed attempt for a case in which the program broke the worker."""
        tail = self.worker.stderr_tail()
        return self._failed(
            index, RunError("op-broke-runner", _diagnose().INTERFERED, stderr_tail=tail)
        )

    def _ended(self, index: int, code: int | None, *, loading: bool = False) -> Attempt:
        tail = self.worker.stderr_tail()
        if code is None:
            message = "the program killed the process that started it"
            error = RunError("op-broke-runner", message, stderr_tail=tail)
            return self._failed(index, error, server_died=True)
        error = _diagnose().explain_exit(code, self._program, tail)
        if loading:
            error = replace(error, message=f"loading: {error.message}")
        return self._failed(index, error, load_failed=loading, killed=code == -signal.SIGKILL)

    def _slow(self, text: str, above: str = "") -> RunError:
        hint = f"raise `timeout` of the op{above} if it really needs longer"
        if _diagnose().spawns(self.worker.pid):
            hint = f"{_diagnose().SPAWNED}; {hint}"
        return RunError("op-timeout", text, hint, self.worker.stderr_tail())

    def _load(self, index: int) -> Attempt | None:
        """Load the program if it is not loaded yet; return the failed Attempt if that fails."""
        if self._loaded:
            return None
        if not self._loading:
            self.worker.send(load_request(self._program))
        deadline = time.monotonic() + self._load_seconds
        try:
            message = self.worker.receive(deadline, self._cancel)
            if message["type"] != "loaded":
                raise ChannelJunkError("not an answer")
            error = message["error"]
            failure = convert(error, RunError | None)
        except DeadlineError:
            limit = f"{self._load_seconds:g}"
            error = self._slow(f"loading took over {limit} s", f", above {limit}")
            return self._failed(index, error, load_failed=True)
        except WorkerEndedError as ended:
            return self._ended(index, ended.code, loading=True)
        except CancelledRunError:
            self.worker.kill()
            raise
        except (ChannelJunkError, *MALFORMED):
            return replace(self.broken(index), load_failed=True)
        if failure is not None:
            return self._failed(index, hinted(failure, self._program), load_failed=True)
        self._loaded = True
        return None

    def post(
        self,
        message: Mapping[str, Json],
        index: int,
        *,
        checks: Checks,
        arrays: Mapping[str, np.ndarray] | None = None,
        slots: Mapping[str, Slot] | None = None,
        fds: Sequence[int] = (),
        calls: int = 0,
        idle: bool = True,
        made: int = 0,
    ) -> Attempt | None:
        """Send the request for one case; load the program first if it is not loaded yet."""
        failed = self._load(index)
        if failed is not None:
            return failed
        self.cases += 1
        self._serial += 1
        self._request = message["type"]
        self._calls = calls or 1 + checks.decoy + checks.repeat
        # Inputs may have come with an earlier request, so the limit never shrinks.
        size = max(made, _bytes_of(message, arrays, slots))
        self._patience = max(self._patience, self._program.patience(size))
        posted = {**message, "serial": self._serial}
        sent = list(fds)
        if arrays is not None or slots is not None:
            arena = self.shared()
            if not self._arena_sent:
                sent.insert(0, arena.fd)
                self._arena_sent = posted["own"] = True
            if slots is None:
                slots = arena.write(arrays or {}, keep_layout=True)
            posted["slots"] = msgspec.to_builtins(slots)
            posted.setdefault("reserved", end_of(slots))
        if idle:
            channel.write_status(self.worker.status, channel.PREPARING)
        self.worker.send(posted, sent)
        return None

    def collect(self, index: int) -> tuple[Attempt, Mapping[str, Json]]:
        """Wait for the answer to the request that `post` sent.

        Raises CancelledRunError.
        """
        try:
            answer = self._await()
            outcome = read_outcome(answer, index, self._serial, self._request)
            if outcome.error is not None:
                outcome = replace(outcome, error=hinted(outcome.error, self._program))
            return Attempt(outcome), answer
        except DeadlineError:
            _, _, self.place = channel.read_status(self.worker.status)
            error = self._slow(
                f"no result after {self._patience:g} s; the process group was killed"
            )
            return self._failed(index, error, timed_out=True), {}
        except WorkerEndedError as ended:
            return self._ended(index, ended.code), {}
        except CancelledRunError:
            self.worker.kill()
            raise
        except (ChannelJunkError, *MALFORMED):
            return self.broken(index), {}

    def run_job(self, target: str, payload: Json, seconds: float) -> Json:
        """Run a function of this package in the worker, and return its result; see `jobs`.

        Raises JobFailedError: The reference crashed, hung, or raised; the message says why. Raises
        CancelledRunError.
        """
        self._serial += 1
        message = {
            "type": "job",
            "serial": self._serial,
            "program": msgspec.to_builtins(self._program),
            "target": target,
            "payload": payload,
        }
        self.worker.send(message)
        try:
            answer = self.worker.receive(time.monotonic() + seconds, self._cancel)
            if answer["type"] != "job" or answer["serial"] != self._serial:
                raise ChannelJunkError("not the answer to this request")
            if answer["error"] is None:
                return answer["result"]
            error = convert(answer["error"], RunError)
        except DeadlineError:
            error = RunError("reference-timeout", f"no result after {seconds:g} s")
        except WorkerEndedError as ended:
            tail = self.worker.stderr_tail()
            code = ended.code if ended.code is not None else -9
            error = _diagnose().explain_exit(code, self._program, tail)
        except CancelledRunError:
            self.worker.kill()
            raise
        except (ChannelJunkError, *MALFORMED):
            error = RunError("op-broke-runner", _diagnose().INTERFERED)
        self.worker.kill()
        raise JobFailedError(error)

    def _await(self) -> dict[str, Json]:
        """Return the worker's answer to the last request.

        The program's time limit applies only while the worker reports that it is calling the
        program. Raises DeadlineError if a call exceeds this limit, or if the whole request takes
        too long.
        """
        begin = time.monotonic()
        last = begin + self._calls * self._patience + PREPARE_SECONDS
        deadline = begin + self._patience
        while True:
            try:
                return self.worker.receive(min(deadline, last), self._cancel)
            except DeadlineError:
                now = time.monotonic()
                phase, since, _ = channel.read_status(self.worker.status)
                if not math.isfinite(since) or since > now:
                    since = begin
                used = now - since if phase == channel.CALLING else 0.0
                if now >= last or used >= self._patience:
                    raise
                deadline = now + self._patience - used


def _bytes_of(
    message: Mapping[str, Json],
    arrays: Mapping[str, np.ndarray] | None,
    slots: Mapping[str, Slot] | None,
) -> int:
    """Count the bytes of the inputs that come with a request."""
    sent = sum(array.nbytes for array in (arrays or {}).values())
    return max(sent, end_of(slots or {}), int(message.get("reserved", 0)))


# Validate the answers of a worker before they are used.


MALFORMED = (KeyError, TypeError, ValueError, OverflowError, AttributeError)
"""Exceptions that malformed answers cause."""

# A program that writes to the socket could answer one type of request as if it were another, and so
# leave out the fields that were requested.
_ANSWER = {"calls": "called-all", "serve": "served"}


def read_outcome(answer: Mapping[str, Json], index: int, serial: int, request: str) -> Outcome:
    """Read the outcome of a case from an answer; raise one of `MALFORMED` if it is invalid."""
    if answer["serial"] != serial:
        raise ValueError("not the answer to this request")
    if answer["type"] not in (_ANSWER[request], "outcome"):
        raise ValueError("the answer to a request of another kind")
    if answer["type"] in ("served", "called-all"):
        return Outcome(index, ok=True)
    if answer["type"] != "outcome":
        raise ValueError("no answer at all")
    error = convert(answer["outcome"]["error"], RunError)
    if answer["outcome"]["index"] != index:
        raise ValueError("not an outcome of this case")
    return Outcome(index, ok=False, error=error)


def read_slots(answer: Mapping[str, Json]) -> dict[str, Slot]:
    """Return each output's position in shared memory; raise one of `MALFORMED` for a bad answer."""
    if len(answer["slots"]) > MAX_OUTPUTS:
        raise ValueError("more outputs than a program may have")
    return convert(answer["slots"], dict[str, Slot])


# Add a hint if a program may have failed because an environment variable was withheld.


_MAY_BE_WHY = ("op-exception", "op-not-loadable", "op-exit-code")
_WORD = re.compile(r"[A-Za-z_]\w{2,}")
_MOST = 3


def hinted(error: RunError, program: Program) -> RunError:
    """Return the error, with a hint if its message names environment variables held back."""
    if error.hint or error.slug not in _MAY_BE_WHY:
        return error
    names = set(_WORD.findall(f"{error.message}\n{error.stderr_tail}"))
    held_back = sorted(name for name in names if _is_held_back(name, program))[:_MOST]
    if not held_back:
        return error
    shown = ", ".join(f'"{name}"' for name in held_back)
    return replace(
        error,
        hint=f"it was not given variables of yours: env = [{shown}], of the op or of "
        "`[execution]`, lets them through",
    )


def _is_held_back(name: str, program: Program) -> bool:
    if name not in os.environ or name in program.env:
        return False
    return not (is_general(name) or is_named(name, program.env_names))
