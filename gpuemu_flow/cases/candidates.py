"""Smaller versions of a failing case, and the search that tries each version once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from gpuemu_flow.model.types import effective_layout
from gpuemu_flow.numerics.layouts import expanded_axis, lay_out, reduced_shape

Array = NDArray[Any]


class StopMinimising(Exception):  # noqa: N818 - an event, not an error
    """Raised by the predicate to end a minimisation early; the result is the best candidate."""


class BudgetSpentError(Exception):
    """Raised when all permitted calls of the predicate have been made."""


class Candidate(Struct, frozen=True):
    """The inputs of one case."""

    # Values in C order, read-only; `laid_out` puts them into their layouts
    inputs: Mapping[str, Array]
    layouts: Mapping[str, str]  # the layout of each input, one of `types.LAYOUTS`
    dims: Mapping[str, int]  # Sizes of the schema's dims; empty where there are none

    def laid_out(self) -> dict[str, Array]:
        return {name: lay_out(values, self.layouts[name]) for name, values in self.inputs.items()}

    def digest(self) -> bytes:
        """Return a digest; it is the same for candidates that no program can tell apart."""
        content = hashlib.sha256()
        for name, values in sorted(self.inputs.items()):
            layout = effective_layout(self.layouts[name], values.shape)
            head = (name, values.dtype.name, values.shape, layout)
            content.update(repr(head).encode("utf-8", "surrogatepass"))
            content.update(values.tobytes())
        return content.digest()

    def repeated_axis(self, name: str) -> int | None:
        """Return the axis along which an input's layout repeats one stored element, or None."""
        if self.layouts[name] != "expanded":
            return None
        return expanded_axis(self.inputs[name].shape)

    def stored(self, name: str) -> Array:
        """Return an input's values as its layout stores them. If the layout repeats one element
        along an axis, this axis has the size 1 in the result."""
        values = self.inputs[name]
        axis = self.repeated_axis(name)
        return values if axis is None else values[(slice(None),) * axis + (slice(0, 1),)]

    def with_stored(self, changed: Mapping[str, Array]) -> Candidate:
        """Return the candidate with the values of some inputs replaced. `changed` maps names of
        inputs to new values, in the shapes that `stored` returns."""
        inputs = dict(self.inputs)
        for name, values in changed.items():
            inputs[name] = np.broadcast_to(values, inputs[name].shape)
        return make_candidate(inputs, self.layouts, self.dims)


def make_candidate(
    inputs: Mapping[str, Array], layouts: Mapping[str, str], dims: Mapping[str, int]
) -> Candidate:
    """Make a candidate from values in any memory order. An input becomes ``contiguous`` if its
    values no longer fit the layout ``expanded``, for example because slicing left a single element
    of the repeated axis."""
    values = {name: _frozen(array) for name, array in inputs.items()}
    kept = {
        name: "contiguous" if layouts[name] == "expanded" and not _repeats(array) else layouts[name]
        for name, array in values.items()
    }
    return Candidate(values, kept, dict(dims))


def _frozen(array: Array) -> Array:
    """Return read-only values in C order, so that candidates can share unchanged inputs."""
    if array.flags.c_contiguous and not array.flags.writeable:
        return array
    values = np.array(array, order="C")
    values.flags.writeable = False
    return values


def _repeats(values: Array) -> bool:
    """Tell whether values are bitwise equal along the axis that the ``expanded`` layout repeats."""
    if reduced_shape(values.shape) == values.shape:
        return True
    axis = expanded_axis(values.shape) or 0
    bits = values.view(np.dtype(f"u{values.itemsize}"))
    first = bits[(slice(None),) * axis + (slice(0, 1),)]
    return bool((bits == first).all())


Predicate = Callable[[Candidate], bool]


class Search(Struct):
    """Keeps the best candidate so far, and every answer of the predicate `still_fails`."""

    best: Candidate  # the smallest candidate so far that fails
    still_fails: Predicate  # the predicate: tells whether a candidate fails as the original does
    budget: int  # largest permitted number of calls of the predicate
    calls: int = 0  # number of calls made
    log: list[str] = field(default_factory=list)  # one line for each step to a smaller case
    # Returns the nearest candidate that satisfies the op's schema; None if there is none
    correct: Callable[[Candidate], Candidate | None] = lambda candidate: candidate
    _answers: dict[bytes, bool] = field(default_factory=dict)
    _taken: set[bytes] = field(default_factory=set)

    @property
    def steps(self) -> int:
        return len(self.log)

    def fails(self, candidate: Candidate) -> bool:
        """Tell whether a candidate fails as the original does. Raises BudgetSpentError: The answer
        is not known, and no call of the predicate is left."""
        digest = candidate.digest()
        known = self._answers.get(digest)
        if known is None:
            if self.calls >= self.budget:
                raise BudgetSpentError
            self.calls += 1
            known = self._answers[digest] = bool(self.still_fails(candidate))
        return known

    def accept(self, candidate: Candidate, step: str) -> bool:
        """Correct a candidate, and make it the best one if it then fails as the original case does.
        The correction makes the candidate satisfy the op's schema. Return True if the candidate is
        now the best. Then `step`, the name of the reduction, is added to the log. A candidate that
        was the best before is not accepted again, so that steps cannot go round in circles."""
        corrected = self.correct(candidate)
        if corrected is None:
            return False
        digest = corrected.digest()
        self._taken.add(self.best.digest())
        if digest in self._taken or not self.fails(corrected):
            return False
        self.best = corrected
        self.log.append(step)
        return True

    def within(self, calls: int, phase: Callable[[], None]) -> bool:
        """Run a phase with a limit on predicate calls; return False if the limit ended the phase.
        Raises BudgetSpentError: The whole budget is spent."""
        whole = self.budget
        self.budget = min(whole, self.calls + calls)
        try:
            phase()
        except BudgetSpentError:
            if self.calls >= whole:
                raise
            return False
        finally:
            self.budget = whole
        return True
