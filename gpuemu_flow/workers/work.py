"""Units of work for a worker, and the session in which fuzzing calls a program repeatedly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from gpuemu_flow.model.types import Case, Json, Observation
from gpuemu_flow.workers.api import Checks, Outcome, Slot, end_of
from gpuemu_flow.workers.arena import Arena
from gpuemu_flow.workers.attempt import MALFORMED, Attempt, WorkerClient
from gpuemu_flow.workers.checked import (
    CallResult,
    CheckedCases,
    CheckedInputs,
    SharedInputs,
    read_calls,
)
from gpuemu_flow.workers.sightings import Sightings
from gpuemu_flow.workers.supervise import Supervisor, Work

Arrays = Mapping[str, np.ndarray]


class CallMany:
    """Several calls in one message, whose inputs are all in the worker's shared memory."""

    def __init__(
        self,
        arena: Arena,
        cases: Sequence[Case],
        slots: Sequence[Mapping[str, Slot]],
        checks: Checks,
    ) -> None:
        self.done: list[CallResult] = []
        self._arena = arena
        self._cases = cases
        self._slots = slots
        self._checks = checks

    def begin(self, worker_client: WorkerClient) -> Attempt | None:
        """Send the calls to the worker that holds the inputs; see `Work.begin`."""
        here = worker_client.arena is self._arena
        pairs = list(zip(self._cases, self._slots, strict=True)) if here else []
        message: dict[str, Json] = {
            "type": "calls",
            "items": [
                {
                    "slots": msgspec.to_builtins(slots),
                    "float": case.dtype,
                    "calls": [{"seed": case.seed}],
                }
                for case, slots in pairs
            ],
        }
        message["reserved"] = max((end_of(slots) for _, slots in pairs), default=0)
        return worker_client.post(
            message, self._cases[0].index, checks=self._checks, slots={}, calls=len(self._cases)
        )

    def finish(self, worker_client: WorkerClient) -> Attempt:
        """Wait for the outcome; see `Work.finish`."""
        index = self._cases[0].index
        attempt, answer = worker_client.collect(index)
        if attempt.outcome.ok:
            try:
                self.done = [call for call in read_calls(answer) if call is not None]
            except MALFORMED:
                return worker_client.broken(index)
        return attempt


# Call a program repeatedly, with its tensors in shared memory, as fuzzing does.


class ProgramSession:
    """One program in a warm worker, which is replaced after a failure. Not thread-safe.

    Made by `Pool.session`.
    """

    def __init__(self, supervisor: Supervisor, sightings: Sightings) -> None:
        self._supervisor = supervisor
        self._sightings = sightings
        self._begun: CheckedCases | None = None
        self._index = 0
        self.done: CheckedCases | None = None

    def call(
        self,
        inputs: Case | Mapping[str, np.ndarray],
        *,
        checks: Checks | None = None,
        index: int = 0,
        seed: int = 0,
    ) -> tuple[dict[str, np.ndarray], Outcome]:
        """Run the program once."""
        self.begin(inputs, checks=checks, index=index, seed=seed)
        return self.finish()

    def observed(self) -> Observation:
        """Return everything that the program was seen to use since it was loaded, loading included.

        The result only grows; while nothing new is seen, the same object is returned. Records of a
        lost worker are kept.
        """
        return self._sightings.observation()

    def arena(self) -> Arena | None:
        """Return the shared memory that the next call will use; None if that is not known yet.

        It is not known if each call gets a separate worker, or if the program could not be loaded.
        """
        worker_client = self._supervisor.next_worker()
        return None if worker_client is None else worker_client.shared()

    def ask(self, work: Work) -> Attempt:
        """Run work other than a call in the worker, and supervise it like a call."""
        return self._supervisor.run(work)

    def begin_work(self, work: Work) -> None:
        """Start work in the worker as `ask` does, but return at once.

        `finish_work` must be called next, with the same work.
        """
        self._supervisor.begin(work)

    def finish_work(self, work: Work) -> Attempt:
        """Finish an `ask` that `begin_work` began."""
        return self._supervisor.finish(work)

    def abandon(self) -> None:
        """Give up the call that was begun, and replace the worker."""
        self._begun = None
        self._supervisor.abandon()

    def begin(
        self,
        inputs: Case | Mapping[str, np.ndarray] | SharedInputs,
        *,
        checks: Checks | None = None,
        index: int = 0,
        seed: int = 0,
        case: Case | None = None,
    ) -> None:
        """Start a call as `call` does, but return at once; `finish` returns the result.

        If `inputs` are arrays, `case` may be the case that they belong to. Without a case, the
        checks `decoy` and `guards` are impossible.

        Calls begun in two sessions run at the same time.
        """
        if self._begun is not None:
            raise RuntimeError("finish the call that was begun first")
        values: Arrays | None = None
        shared: SharedInputs | None = None
        if isinstance(inputs, Case):
            case, index, seed = inputs, inputs.index, inputs.seed
        elif isinstance(inputs, SharedInputs):
            shared = inputs
        elif inputs or case is None:
            values = {name: np.asarray(array) for name, array in inputs.items()}
        one = CheckedInputs(index, seed, case, values, shared=shared)
        self._begun = CheckedCases([one], checks if checks is not None else Checks(), copies=False)
        self._index = index
        self._supervisor.begin(self._begun)

    def finish(self) -> tuple[dict[str, np.ndarray], Outcome]:
        """Finish the call that was begun, and return its result."""
        work = self._begun
        if work is None:
            raise RuntimeError("no call was begun")
        self._begun = None
        self.done = work
        outcome = self._supervisor.finish(work).outcome
        if outcome.index != self._index:
            outcome = replace(outcome, index=self._index)
        return dict(work.done[0][1]) if outcome.ok else {}, outcome
