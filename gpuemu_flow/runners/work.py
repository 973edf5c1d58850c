"""What a conversation is about: one case, its outputs wanted in a file or in shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from gpuemu_flow.errors import Problem, RunnerError
from gpuemu_flow.runners.answers import is_staged, read_slots
from gpuemu_flow.runners.api import Checks, Request
from gpuemu_flow.runners.attempt import Attempt, Conversation
from gpuemu_flow.types import Case, Json

Arrays = Mapping[str, np.ndarray]


class Work(Protocol):
    """One case, in two steps, so that the caller may do something else between them."""

    def begin(self, conversation: Conversation) -> Attempt | None:
        """Ask for it; an Attempt when that has already failed."""

    def finish(self, conversation: Conversation) -> Attempt:
        """Wait for what came of it; CancelledRunError."""


class CaseToFile:
    """A case whose outputs become a blob file.

    Parameters
    ----------
    request : Request
    checks : Checks
    staged : Path
        The file.
    """

    def __init__(self, request: Request, checks: Checks, staged: Path) -> None:
        self._request = request
        self._checks = checks
        self._staged = staged

    def begin(self, conversation: Conversation) -> Attempt | None:
        """See `Work`."""
        case = self._request.case
        message = {
            "type": "case",
            "case": case.to_json(),
            "input_dtype": self._request.input_dtype,
            "out": str(self._staged),
        }
        return conversation.post(message, case.index, checks=self._checks)

    def finish(self, conversation: Conversation) -> Attempt:
        """See `Work`; RunnerError ``staging-failed`` when the file cannot be written."""
        index = self._request.case.index
        attempt, answer = conversation.collect(index)
        if "staging" in answer:
            conversation.worker.kill()
            problem = f"outputs cannot be written: {answer['staging']!s:.200}"
            folder = str(self._staged.parent)
            raise RunnerError(Problem("staging-failed", problem, file=folder))
        if attempt.outcome.ok and not is_staged(self._staged, attempt.outcome):
            return conversation.broken(index)
        return attempt


class CallInMemory:
    """A case, or given arrays, whose outputs come back in shared memory.

    Attributes
    ----------
    outputs : dict of str to ndarray
        After `finish`: read-only views, valid until the conversation's next call.
    """

    def __init__(
        self,
        inputs: Case | Arrays,
        checks: Checks,
        *,
        input_dtype: str | None = None,
        dtype: str = "",
        index: int = 0,
        seed: int = 0,
    ) -> None:
        self.outputs: dict[str, np.ndarray] = {}
        self._checks = checks
        self._arrays: Arrays = {}
        self._message: dict[str, Json] = {
            "type": "call",
            "case": None,
            "seed": seed,
            "input_dtype": input_dtype if dtype or isinstance(inputs, Case) else None,
            "dtype": dtype,
        }
        if isinstance(inputs, Case):
            index = inputs.index
            self._message["case"] = inputs.to_json()
        else:
            self._arrays = {name: np.asarray(array) for name, array in inputs.items()}
        self._message["index"] = self._index = index

    def begin(self, conversation: Conversation) -> Attempt | None:
        """See `Work`."""
        return conversation.post(
            self._message, self._index, checks=self._checks, arrays=self._arrays
        )

    def finish(self, conversation: Conversation) -> Attempt:
        """See `Work`."""
        attempt, answer = conversation.collect(self._index)
        if attempt.outcome.ok and conversation.arena is not None:
            try:
                self.outputs = conversation.arena.read(read_slots(answer))
            except ValueError:  # they lie outside the shared memory
                return conversation.broken(self._index)
        return attempt
