"""Call a program repeatedly, with its tensors in shared memory, as fuzzing does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from gpuemu_flow.observed import Observation
from gpuemu_flow.runners.api import Checks, Outcome
from gpuemu_flow.runners.arena import Arena
from gpuemu_flow.runners.attempt import Attempt
from gpuemu_flow.runners.sightings import Sightings
from gpuemu_flow.runners.supervise import Supervisor
from gpuemu_flow.runners.work import CallInMemory, SharedInputs, Work
from gpuemu_flow.types import Case


class ProgramSession:
    """One program in a warm worker, which is replaced after a failure. Not thread-safe.

    Made by `Pool.session`.
    """

    def __init__(self, supervisor: Supervisor, sightings: Sightings) -> None:
        self._supervisor = supervisor
        self._sightings = sightings
        self._begun: CallInMemory | None = None
        self._index = 0
        self.done: CallInMemory | None = None

    def call(
        self,
        inputs: Case | Mapping[str, np.ndarray],
        *,
        checks: Checks | None = None,
        input_dtype: str | None = None,
        dtype: str = "",
        index: int = 0,
        seed: int = 0,
    ) -> tuple[dict[str, np.ndarray], Outcome]:
        """Run the program once."""
        self.begin(
            inputs, checks=checks, input_dtype=input_dtype, dtype=dtype, index=index, seed=seed
        )
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
        input_dtype: str | None = None,
        dtype: str = "",
        index: int = 0,
        seed: int = 0,
        case: Case | None = None,
        decoy: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Start a call as `call` does, but return at once; `finish` returns the result.

        If `inputs` are arrays, `case` may be the case that they belong to. Without a case, the
        checks `decoy` and `guards` are impossible. The argument `decoy` may hold the input values
        of the decoy call; by default, they are drawn.

        Calls begun in two sessions run at the same time.
        """
        if self._begun is not None:
            raise RuntimeError("finish the call that was begun first")
        self._begun = CallInMemory(
            inputs,
            checks if checks is not None else Checks(),
            input_dtype=input_dtype,
            dtype=dtype,
            index=index,
            seed=seed,
            case=case,
            decoy=decoy,
        )
        self._index = inputs.index if isinstance(inputs, Case) else index
        self._supervisor.begin(self._begun)

    def finish(self) -> tuple[dict[str, np.ndarray], Outcome]:
        """Finish the call that was begun, and return its result."""
        work = self._begun
        if work is None:
            raise RuntimeError("no call was begun")
        self._begun = None
        self.done = work
        attempt = self._supervisor.finish(work)
        outcome = attempt.outcome
        if outcome.index != self._index:
            outcome = replace(outcome, index=self._index)
        return work.outputs if outcome.ok else {}, outcome
