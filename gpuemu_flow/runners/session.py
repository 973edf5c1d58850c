"""A program called again and again with its tensors in shared memory: the way of fuzzing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from gpuemu_flow.runners.api import Checks, Outcome
from gpuemu_flow.runners.attempt import Attempt, Conversation
from gpuemu_flow.runners.supervise import Supervisor
from gpuemu_flow.types import Case


class ProgramSession:
    """One program in a warm worker, which is replaced after trouble. Not thread-safe.

    Made by `Pool.session`.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def call(
        self,
        inputs: Case | Mapping[str, np.ndarray],
        *,
        checks: Checks | None = None,
        input_dtype: str | None = None,
        index: int = 0,
        seed: int = 0,
    ) -> tuple[dict[str, np.ndarray], Outcome]:
        """Run the program once.

        Parameters
        ----------
        inputs : Case or mapping of str to ndarray
            A case is generated in the worker; arrays are copied into shared memory as they lie.
        checks : Checks, optional
            `decoy` and `guards` need a case.
        input_dtype : str, optional
            See `Request`; for a case.
        index, seed : int
            For arrays: the outcome's index, and what the global generators are seeded with.

        Returns
        -------
        outputs : dict of str to ndarray
            Read-only views on shared memory, valid until the next call; empty after an error.
        outcome : Outcome
            Without blob.
        """
        checks = checks if checks is not None else Checks()
        outputs: dict[str, np.ndarray] = {}
        if isinstance(inputs, Case):
            index = inputs.index

        def task(conversation: Conversation) -> Attempt:
            nonlocal outputs
            if isinstance(inputs, Case):
                attempt, outputs = conversation.call_case(inputs, input_dtype, checks)
            else:
                attempt, outputs = conversation.call_arrays(inputs, index, seed, checks)
            return attempt

        attempt = self._supervisor.run(task)
        return outputs, replace(attempt.outcome, index=index)
