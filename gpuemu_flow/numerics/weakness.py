"""Weak comparisons: the expected values are all equal, or the tolerance is too large."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.errors import Problem
from gpuemu_flow.numerics.checked_output import CheckedOutput
from gpuemu_flow.numerics.dtypes import to_float64
from gpuemu_flow.types import CheckResult, Tolerance, Verdict, WeakOutput
from gpuemu_flow.verdicts import ZEROS, weakness_alone

GLANCE = 4096
"""Number of elements examined first; nearly always they show that no comparison is weak."""

BLOCK = 1 << 20
"""Number of elements examined at a time afterwards."""


def only_zeros_or_nan(inputs: Mapping[str, NDArray[Any]] | None) -> bool:
    """Tell whether a case's inputs have elements, and all of them are 0 or NaN."""
    filled = [array for array in (inputs or {}).values() if array.size]
    # Nearly always an element at an end already shows that the inputs are something else.
    for array in filled:
        for place in (0, -1):
            value = array.item(place)
            if isinstance(value, (int, float)) and (value < 0 or value > 0):
                return False
    with np.errstate(invalid="ignore"):  # bfloat16 warns of comparisons with NaN
        return bool(filled) and not any(((array < 0) | (array > 0)).any() for array in filled)


def note_of_zeros(result: CheckResult) -> tuple[str, ...]:
    """Return a warning if a case that was judged alone passed on inputs of only zeros or NaN.

    Otherwise, return an empty tuple. In a run, an op does not pass if all of its cases have such
    inputs; see `verdicts.Tally`.
    """
    if not result.blank or result.verdict is not Verdict.PASSED:
        return ()
    problem = Problem(
        "inputs-only-zeros",
        f"all inputs on which outputs were compared are {ZEROS}",
        "give random inputs: on such inputs many wrong ops give the right output",
        warning=True,
    )
    return (_as_note(problem),)


def note_of_tolerance(result: CheckResult) -> tuple[str, ...]:
    """Return a warning if a case that was judged alone would also pass with outputs of zeros.

    Otherwise, return an empty tuple.
    """
    reason = weakness_alone(result)
    hint = 'give a smaller one, or `tolerance = "auto"`'
    return (_as_note(Problem("loose-tolerance", reason, hint, warning=True)),) if reason else ()


def _as_note(problem: Problem) -> str:
    return f"{problem.slug}: {problem.message}; {problem.hint}"


def weakness(output: CheckedOutput) -> WeakOutput | None:
    """Describe the weakness of an output's comparison; None when it has none.

    A comparison is weak if all finite expected values are equal, or if the explicit tolerance would
    accept zeros in place of all of them. With such a tolerance, even negated values could pass.
    """
    flat = output.expected.reshape(-1)
    if not flat.size:
        return None
    tolerance = None if output.envelope is not None else output.tolerance
    found = _Looked(tolerance)
    found.look(flat[:: -(-flat.size // GLANCE)])
    for start in range(0, flat.size, BLOCK) if flat.size > GLANCE else ():
        if not found.weak:
            return None
        found.look(flat[start : start + BLOCK])
    if not found.weak or found.value is None:
        return None
    return WeakOutput(output.name, found.value if found.constant else None, found.zeros)


class _Looked:
    """The weaknesses that are still possible after the expected values examined so far."""

    def __init__(self, tolerance: Tolerance | None) -> None:
        self._tolerance = tolerance
        self.value: float | None = None
        self.constant = True
        self.zeros = tolerance is not None

    @property
    def weak(self) -> bool:
        """Tell whether the values examined so far leave a weakness possible."""
        return self.constant or self.zeros

    def look(self, expected: NDArray[Any]) -> None:
        """Examine some more of the output's expected values."""
        values = to_float64(expected) if expected.dtype.kind not in "biu" else expected
        values = values[np.isfinite(values)].astype(np.float64)
        if not values.size:
            return
        if self.value is None:
            self.value = float(values[0])
        self.constant = self.constant and bool((values == self.value).all())
        if self.zeros and self._tolerance is not None:
            sizes = np.abs(values)
            with np.errstate(over="ignore"):
                allowed = self._tolerance.atol + self._tolerance.rtol * sizes
            self.zeros = bool((sizes <= allowed).all())
