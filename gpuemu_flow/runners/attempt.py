"""One session's conversation: the program loaded, cases asked for, trouble turned into data."""

from __future__ import annotations

import math
import re
import secrets
import stat
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gpuemu_flow.errors import Problem, RunnerError
from gpuemu_flow.runners import anonfile
from gpuemu_flow.runners.api import Checks, Outcome, Program, Request, RunError, error_from_json
from gpuemu_flow.runners.arena import Arena, Slot, end_of
from gpuemu_flow.runners.channel import ChannelJunkError
from gpuemu_flow.runners.diagnose import INTERFERED, explain_exit
from gpuemu_flow.runners.process import (
    CancelledRunError,
    DeadlineError,
    WorkerEndedError,
    WorkerProcess,
)
from gpuemu_flow.types import DTYPES, Case, Json

PREPARE_SECONDS = 300.0  # to make inputs and to write outputs, which is no time of the program's
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class Attempt:
    """One try at a case.

    Attributes
    ----------
    outcome : Outcome
    ended : bool
        The process is gone, or must not be used again.
    timed_out, server_died, load_failed : bool
        Why; at most one is set.
    """

    outcome: Outcome
    ended: bool = False
    timed_out: bool = False
    server_died: bool = False
    load_failed: bool = False

    def outcome_of(self, request: Request) -> Outcome:
        """The outcome, for this request: an error in loading is every case's."""
        return replace(self.outcome, index=request.case.index)


class JobFailedError(Exception):
    """A job gave no result.

    Attributes
    ----------
    error : RunError
    """

    def __init__(self, error: RunError) -> None:
        super().__init__(error.message)
        self.error = error


class Conversation:
    """Talks to one worker about one program. Not thread-safe.

    Attributes
    ----------
    cases : int
        Cases that it was asked to run.
    """

    def __init__(
        self,
        worker: WorkerProcess,
        program: Program,
        checks: Checks,
        load_seconds: float,
        cancel: threading.Event | None = None,
    ) -> None:
        self.worker = worker
        self._arena: Arena | None = None
        self.cases = 0
        self._program = program
        self._checks = checks
        self._load_seconds = max(load_seconds, program.timeout)
        self._cancel = cancel
        self._loaded = False
        # A message that does not carry the current number is an old fork's or the program's own.
        self._serial = secrets.randbits(48)
        calls = 1 + checks.decoy + checks.repeat
        self._longest = calls * program.timeout + PREPARE_SECONDS

    def close(self) -> None:
        """End the worker."""
        self.worker.close()
        if self._arena is not None:
            self._arena.close()
            self._arena = None

    def _failed(self, index: int, error: RunError, **why: bool) -> Attempt:
        self.worker.kill()
        return Attempt(Outcome(index, ok=False, error=error), ended=True, **why)

    def _broken(self, index: int) -> Attempt:
        tail = self.worker.stderr_tail()
        return self._failed(index, RunError("op-broke-runner", INTERFERED, stderr_tail=tail))

    def _ended(self, index: int, code: int | None, *, loading: bool = False) -> Attempt:
        tail = self.worker.stderr_tail()
        if code is None:
            message = "the program killed the process that started it"
            error = RunError("op-broke-runner", message, stderr_tail=tail)
            return self._failed(index, error, server_died=True)
        error = explain_exit(code, self._program, tail)
        if loading:
            error = replace(error, message=f"loading: {error.message}")
        return self._failed(index, error, load_failed=loading)

    def _load(self, index: int) -> Attempt | None:
        """Load the program once; an Attempt when that fails."""
        if self._loaded:
            return None
        self.worker.send({"type": "load", "program": self._program.to_json()})
        deadline = time.monotonic() + self._load_seconds
        try:
            message = self.worker.receive(deadline, self._cancel)
            if message["type"] != "loaded":
                raise ChannelJunkError("not an answer")
            error = message["error"]
            failure = error_from_json(error) if error is not None else None
        except DeadlineError:
            text = f"loading took over {self._load_seconds:g} s"
            tail = self.worker.stderr_tail()
            return self._failed(
                index, RunError("op-timeout", text, stderr_tail=tail), load_failed=True
            )
        except WorkerEndedError as ended:
            return self._ended(index, ended.code, loading=True)
        except CancelledRunError:
            self.worker.kill()
            raise
        except (ChannelJunkError, KeyError, TypeError, ValueError):
            return replace(self._broken(index), load_failed=True)
        if failure is not None:
            return self._failed(index, failure, load_failed=True)
        self._loaded = True
        return None

    def run_case(self, request: Request, staged: Path) -> Attempt:
        """Run one case; its outputs are in the file `staged` when that went well.

        Raises
        ------
        RunnerError
            ``staging-failed``: the outputs cannot be written.
        CancelledRunError
        """
        index = request.case.index
        failed = self._load(index)
        if failed is not None:
            return failed
        self.cases += 1
        message = {
            "type": "case",
            "case": request.case.to_json(),
            "input_dtype": request.input_dtype,
            "out": str(staged),
        }
        attempt, answer = self.exchange(message, index)
        if attempt.outcome.ok and not _is_staged(staged, attempt.outcome):
            return self._broken(index)
        if "staging" in answer:
            problem = f"outputs cannot be written: {answer['staging']!s:.200}"
            self.worker.kill()
            raise RunnerError(Problem("staging-failed", problem, file=str(staged.parent)))
        return attempt

    def call_case(
        self, case: Case, input_dtype: str | None, checks: Checks
    ) -> tuple[Attempt, dict[str, np.ndarray]]:
        """Run a case; its outputs as views on shared memory."""
        body = {"case": case.to_json(), "input_dtype": input_dtype, "index": case.index}
        return self._call(body, case.index, checks, {})

    def call_arrays(
        self, arrays: Mapping[str, np.ndarray], index: int, seed: int, checks: Checks
    ) -> tuple[Attempt, dict[str, np.ndarray]]:
        """Run on given inputs; the outputs as views on shared memory."""
        given = {name: np.asarray(array) for name, array in arrays.items()}
        return self._call({"case": None, "index": index, "seed": seed}, index, checks, given)

    def _call(
        self,
        body: dict[str, Json],
        index: int,
        checks: Checks,
        arrays: Mapping[str, np.ndarray],
    ) -> tuple[Attempt, dict[str, np.ndarray]]:
        failed = self._load(index)
        if failed is not None:
            return failed, {}
        self.cases += 1
        fds = []
        if self._arena is None:
            self._arena = Arena(anonfile.create("tensors", fixed=True))
            fds.append(self._arena.fd)
        given = self._arena.write(arrays, keep_layout=True)
        body["type"] = "call"
        body["slots"] = {name: slot.to_json() for name, slot in given.items()}
        body["reserved"] = end_of(given)
        attempt, answer = self.exchange(body, index, checks=checks, fds=fds)
        if not attempt.outcome.ok:
            return attempt, {}
        try:
            slots = {name: Slot.from_json(data) for name, data in answer["slots"].items()}
            told = {info.name: (info.shape, info.dtype) for info in attempt.outcome.outputs}
            if told != {name: (slot.shape, slot.dtype) for name, slot in slots.items()}:
                raise ValueError("the places are not those of the outputs")
            outputs = self._arena.read(slots)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            return self._broken(index), {}
        return attempt, outputs

    def exchange(
        self,
        message: dict[str, Json],
        index: int,
        *,
        checks: Checks | None = None,
        fds: Sequence[int] = (),
    ) -> tuple[Attempt, Mapping[str, Json]]:
        """Send one request that ends in an outcome, and wait for it within the limits."""
        self._serial += 1
        message |= {"serial": self._serial, "checks": (checks or self._checks).to_json()}
        anonfile.write_status(self.worker.status, anonfile.PREPARING)
        self.worker.send(message, fds)
        try:
            answer = self._await()
            return Attempt(self._read(answer, index)), answer
        except DeadlineError:
            tail = self.worker.stderr_tail()
            text = f"no result after {self._program.timeout:g} s; the process group was killed"
            hint = "raise `timeout` if the op really needs longer"
            error = RunError("op-timeout", text, hint, tail)
            return self._failed(index, error, timed_out=True), {}
        except WorkerEndedError as ended:
            return self._ended(index, ended.code), {}
        except CancelledRunError:
            self.worker.kill()
            raise
        except (ChannelJunkError, KeyError, TypeError, ValueError, OverflowError):
            return self._broken(index), {}

    def run_job(self, target: str, payload: Json, seconds: float) -> Json:
        """Have one of our own functions run in the worker; see `jobs`.

        Raises
        ------
        JobFailedError
            With why: the reference crashed, hung, or raised.
        CancelledRunError
        """
        self._serial += 1
        message = {
            "type": "job",
            "serial": self._serial,
            "program": self._program.to_json(),
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
            error = error_from_json(answer["error"])
        except DeadlineError:
            error = RunError("reference-timeout", f"no result after {seconds:g} s")
        except WorkerEndedError as ended:
            tail = self.worker.stderr_tail()
            code = ended.code if ended.code is not None else -9
            error = explain_exit(code, self._program, tail)
        except CancelledRunError:
            self.worker.kill()
            raise
        except (ChannelJunkError, KeyError, TypeError, ValueError):
            error = RunError("op-broke-runner", INTERFERED)
        self.worker.kill()
        raise JobFailedError(error)

    def _await(self) -> dict[str, Json]:
        """The answer.

        The program's time runs only while the status page says that it is being called.
        DeadlineError when that, or everything together, takes too long.
        """
        begin = time.monotonic()
        last = begin + self._longest
        deadline = begin + self._program.timeout
        while True:
            try:
                return self.worker.receive(min(deadline, last), self._cancel)
            except DeadlineError:
                now = time.monotonic()
                phase, since = anonfile.read_status(self.worker.status)
                if not math.isfinite(since) or since > now:
                    since = begin
                used = now - since if phase == anonfile.CALLING else 0.0
                if now >= last or used >= self._program.timeout:
                    raise
                deadline = now + self._program.timeout - used

    def _read(self, answer: Mapping[str, Json], index: int) -> Outcome:
        """A believable outcome, or ValueError and its like."""
        if answer["type"] != "outcome" or answer["serial"] != self._serial:
            raise ValueError("not the answer to this request")
        if "staging" in answer:
            return Outcome(index, ok=False)
        outcome = Outcome.from_json(answer["outcome"])
        if outcome.index != index or outcome.ok == (outcome.error is not None):
            raise ValueError("not an outcome of this case")
        for info in outcome.outputs:
            if info.dtype not in DTYPES or min((0, *info.shape)) < 0:
                raise ValueError("not a tensor")
        return outcome


def _is_staged(path: Path, outcome: Outcome) -> bool:
    """Whether the worker left the file that it speaks of: a plain one of that size."""
    if not _DIGEST.match(outcome.blob):
        return False
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_size == outcome.size
