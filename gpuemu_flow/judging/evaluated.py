"""Results of evaluators: judged cases, and cases ready to be judged; also sizes of batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from msgspec import Struct, field
from numpy.typing import NDArray

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.types import DTYPES, Case, CheckResult

Arrays = Mapping[str, NDArray[Any]]


class EvaluatedCase(Struct, frozen=True, dict=True):
    """A judged case with its tensors."""

    case: Case
    result: CheckResult
    actual: Arrays = field(default_factory=dict)
    given: Arrays | None = None
    bring_expected: Callable[[], Arrays] = dict

    @cached_property
    def inputs(self) -> Arrays:
        """Return the inputs as the op got them, in their layouts."""
        return materialise(self.case) if self.given is None else self.given

    @cached_property
    def expected(self) -> Arrays:
        """Fetch the reference's outputs, which is possible only while `actual` is valid."""
        return self.bring_expected()


class Prepared(Struct, frozen=True):
    """A case with its expected outputs."""

    case: Case
    inputs: Arrays
    expected: Arrays
    allowed: Mapping[str, list[str]]
    check: Callable[[Arrays], CheckResult]

    @property
    def dtypes(self) -> dict[str, str]:
        """Return the likeliest dtype of each output."""
        return {name: names[0] for name, names in self.allowed.items()}


class BatchSize:
    """Chooses how many cases one message to the programs has: as many as run in a short time.

    A message costs as much as a small case, so few messages are better. But the processing of a
    message cannot be interrupted and shows no progress, and the tensors of too many cases do not
    fit into the processor's cache.
    """

    MAX_CASES = 128
    MAX_BYTES = 16 << 20
    MAX_SECONDS = 0.25

    def __init__(self) -> None:
        self._allowed = 1

    def admits(self, count: int, nbytes: int) -> bool:
        """Tell whether a batch may have `count` cases with inputs of `nbytes` bytes in total."""
        return count <= 1 or (count <= self._allowed and nbytes <= self.MAX_BYTES)

    def took(self, count: int, seconds: float) -> None:
        """Record how long a batch of `count` cases took."""
        by_time = self.MAX_SECONDS / max(seconds / count, 1e-9)
        self._allowed = max(1, int(min(self.MAX_CASES, 2 * self._allowed, by_time)))


def input_bytes(case: Case) -> int:
    """Return the size of a case's inputs in bytes, without gaps."""
    return sum(math.prod(spec.shape) * DTYPES[spec.dtype].itemsize for spec in case.inputs)
