"""One output of a case: its comparison under a tolerance, and the resulting failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpuemu_flow.model.errors import Problem
from gpuemu_flow.model.types import (
    DTYPES,
    CheckResult,
    Failure,
    FailureKind,
    Shape,
    Tolerance,
    Verdict,
    WeakOutput,
)
from gpuemu_flow.model.verdicts import ZEROS, weakness_alone
from gpuemu_flow.numerics.blocked import (
    BlockedOutcome,
    compare_floats,
    compare_integers,
    paired_blocks,
    take,
)
from gpuemu_flow.numerics.contract import default_tolerance
from gpuemu_flow.numerics.contracts import SeenOutputs
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, FloatLimits, dtype_name, to_float64
from gpuemu_flow.numerics.envelope import Envelope
from gpuemu_flow.numerics.judge import AffineBound, BoolArray, Bound, ExcusedBound, Rules
from gpuemu_flow.numerics.layouts import multi_index

MOST_TIMES = 1e6
"""Multiple of the tolerance above which the figure says no more."""
CHUNK = 1 << 20
"""Number of elements examined at a time, so that memory stays bounded."""


class BrokenInvariant(Struct, frozen=True):
    """The first violation of an invariant by an output."""

    message: str
    index: Shape | None = None
    actual: float | None = None


def check_invariant(
    name: str,
    output: Array,
    dtype: str,
    tolerance: Tolerance,
    exempt: BoolArray | None = None,
) -> BrokenInvariant | None:
    """Check one invariant of one output.

    Raises ValueError when the name is unknown.

    ``non_negative``: no element below zero; -0.0 and NaN are not below zero. ``finite``: no NaN and
    no Inf; ``no_nan``: no NaN; ``no_inf``: no Inf. ``symmetric``: the last two dims are square and
    the matrices equal their transposes, NaN counting as equal to NaN. ``normalized``: sums over the
    last dim, taken in float64, are 1 to within ``max(atol, rtol, n * epsilon(dtype))``.
    """
    if name == "shape_preserved" or output.size == 0:
        return None
    if name == "symmetric":
        return _check_symmetric(output, tolerance, exempt)
    if name == "normalized":
        return _check_normalized(output, dtype, tolerance, exempt)
    if name not in _ELEMENTWISE:
        raise ValueError(f"unknown invariant {name!r}")
    known = DTYPES.get(dtype)
    if (
        known is not None
        and known.kind != "float"
        and (name, known.kind) != ("non_negative", "int")
    ):
        return None
    return _check_elements(name, output, exempt)


def as_failure(name: str, output_name: str, violation: BrokenInvariant) -> Failure:
    """Return a violation in the form of a failure."""
    return Failure(
        FailureKind.INVARIANT,
        f"invariant {name} does not hold: {violation.message}",
        output=output_name,
        index=violation.index,
        actual=violation.actual,
    )


def check_shape_preserved(
    shape: Shape, input_name: str, input_shape: Shape
) -> BrokenInvariant | None:
    """Check a ``shape_preserved`` that names an input: the output must have this input's shape."""
    if shape == input_shape:
        return None
    return BrokenInvariant(
        f"the output has shape {list(shape)}, {input_name!r} {list(input_shape)}"
    )


_ELEMENTWISE: dict[str, tuple[Callable[[Array], BoolArray], str]] = {
    "non_negative": (lambda values: values < 0, "is below zero"),
    "finite": (lambda values: ~np.isfinite(values), "is not finite"),
    "no_nan": (np.isnan, "is NaN"),
    "no_inf": (np.isinf, "is infinite"),
}


def _check_elements(name: str, output: Array, exempt: BoolArray | None) -> BrokenInvariant | None:
    violates, what = _ELEMENTWISE[name]
    for start, block, _ in paired_blocks(output, output):
        # int64 does not fit float64, and the dtypes of ml_dtypes have no predicates of numpy's.
        values = block if block.dtype.kind in "iu" else to_float64(block)
        bad = violates(values)
        if exempt is not None:
            bad &= ~exempt.reshape(-1)[start : start + bad.size]
        if bad.any():
            at = int(bad.argmax())
            index, value = multi_index(start + at, output.shape), float(values[at])
            return BrokenInvariant(f"the element at {list(index)} {what}", index, value)
    return None


def _check_normalized(
    output: Array, dtype: str, tolerance: Tolerance, exempt: BoolArray | None
) -> BrokenInvariant | None:
    length = output.shape[-1] if output.ndim else 1
    epsilon = FLOAT_LIMITS[dtype].eps if dtype in FLOAT_LIMITS else 0.0
    allowed = max(tolerance.atol, tolerance.rtol, length * epsilon)
    rows_at_once = max(1, CHUNK // length)
    for first in range(0, output.size // length, rows_at_once):
        last = min(first + rows_at_once, output.size // length)
        where = slice(first * length, last * length)
        rows = to_float64(take(output, where)).reshape(-1, length)
        with np.errstate(all="ignore"):
            sums = rows.sum(axis=1)
            bad = ~(np.abs(sums - 1.0) <= allowed)
        if exempt is not None:
            bad &= ~exempt.reshape(-1)[where].reshape(-1, length).any(axis=1)
        if bad.any():
            row = int(bad.argmax())
            index = multi_index((first + row) * length, output.shape)[:-1]
            total = float(sums[row])
            message = (
                f"the last dim at {list(index)} sums to {total:.9g}, 1 +- {allowed:.3g} wanted"
            )
            return BrokenInvariant(message, index, total)
    return None


def _check_symmetric(
    output: Array, tolerance: Tolerance, exempt: BoolArray | None
) -> BrokenInvariant | None:
    if output.ndim < 2 or output.shape[-1] != output.shape[-2]:
        return BrokenInvariant(f"shape {list(output.shape)} does not end in a square matrix")
    size = output.shape[-1]
    rows_at_once = max(1, CHUNK // size)
    for lead in np.ndindex(output.shape[:-2]):
        matrix = output[lead]
        for first in range(0, size, rows_at_once):
            rows = slice(first, first + rows_at_once)
            values, mirrored = to_float64(matrix[rows]), to_float64(matrix[:, rows].T)
            with np.errstate(all="ignore"):
                error = np.abs(values - mirrored)
                allowed = tolerance.atol + tolerance.rtol * np.abs(mirrored)
                finite = np.isfinite(error)
            equal = (values == mirrored) | (np.isnan(values) & np.isnan(mirrored))
            bad = ~(equal | (finite & (error <= allowed)))
            if exempt is not None:
                bad &= ~(exempt[lead][rows] | exempt[lead][:, rows].T)
            if bad.any():
                row, column = divmod(int(bad.argmax()), size)
                index = (*lead, first + row, column)
                message = (
                    f"the elements at {list(index)} and mirrored are "
                    f"{values[row, column]:.9g} and {mirrored[row, column]:.9g}"
                )
                return BrokenInvariant(message, index, float(values[row, column]))
    return None


Array = NDArray[Any]
Arrays = Mapping[str, Array]

QUICK_SHARE = 0.75
"""Under ``auto`` a case within this share of the quick bound needs no further evaluation."""


class Policy(Struct, frozen=True):
    """Requirements on an output besides closeness to the expected values."""

    # The policies for NaN and for Inf. For NaN, the values mean the following. ``match``: the
    # output must be NaN exactly where the expected value is NaN. ``strict``: the same, and if the
    # case's inputs hold neither NaN nor Inf, no element may be NaN. ``ignore``: an element is not
    # judged if its expected value is NaN, or if its actual value is NaN and the case's inputs hold
    # NaN or Inf. The values mean the same for Inf, except that ``match`` and ``strict`` also
    # require the same sign.
    nan_policy: str = "match"
    inf_policy: str = "match"
    invariants: tuple[str, ...] = ()  # names from `types.INVARIANTS`, checked on every output
    # Input whose shape the first output must have; None if no shape is demanded. It is set if the
    # configuration has a table ``invariants`` that sets ``shape_preserved``.
    shape_preserved_input: str | None = None
    # Outputs that are gradients; no invariant is checked on them
    gradients: frozenset[str] = frozenset()


class SpecialInputs:
    """A flag that tells whether a case's inputs hold NaN or Inf, computed when first needed."""

    def __init__(self, inputs: Arrays | None) -> None:
        self._inputs = inputs or {}
        self._found: bool | None = None

    def __bool__(self) -> bool:
        if self._found is None:
            self._found = any(_has_special(array) for array in self._inputs.values())
        return self._found


def _has_special(array: Array) -> bool:
    known = DTYPES.get(dtype_name(array.dtype) or "")
    if known is None or known.kind != "float" or not array.size:
        return False
    values = array if array.itemsize > 2 else to_float64(array)
    # NaN propagates through max and min, Inf is one of the two: two reductions and no mask.
    return not (np.isfinite(values.max()) and np.isfinite(values.min()))


def times_text(share: float) -> str:
    """Return a share of the tolerance with four digits, none of them an exponent's."""
    if share > MOST_TIMES:
        return "over a million times"
    return f"{share:.4g} times" if share < 1e4 else f"{float(f'{share:.4g}'):,.0f} times"


class CheckedOutput(Struct, frozen=True):
    """The comparison of one output, and the failures that follow from it."""

    name: str
    dtype: str
    actual: Array
    expected: Array
    rules: Rules
    tolerance: Tolerance
    label: str
    envelope: Envelope | None
    outcome: BlockedOutcome
    seen: SeenOutputs | None = None

    def value_failures(self) -> list[Failure]:
        totals = self.outcome.totals
        if not totals.failing_values or totals.worst_value.position is None:
            return []
        worst = totals.worst_value
        index, actual, expected = self._element(totals.worst_value.position)
        times = f", {times_text(worst.share)} the tolerance" if np.isfinite(worst.share) else ""
        place = self._place(index)
        note = self.seen.contracts.note(self.name) if self.seen is not None else ""
        message = (
            f"{totals.failing_values} of {totals.count} elements of {self.name!r} exceed "
            f"{self.label}; worst at {list(place)}: actual {self._text(self.actual[index])}, "
            f"expected {self._text(self.expected[index])}{times}{f' ({note})' if note else ''}"
        )
        kind = FailureKind.TOLERANCE
        return [Failure(kind, message, self.name, place, expected=expected, actual=actual)]

    def _place(self, index: tuple[int, ...]) -> tuple[int, ...]:
        """Convert an index in the compared part to an index in the whole output."""
        if self.seen is None:
            return index
        place = self.seen.contracts.index(self.name, index)
        return index if place is None else place

    def nan_failures(self) -> list[Failure]:
        totals = self.outcome.totals
        return self._special_failures(
            FailureKind.NAN, "NaN", totals.failing_nan, totals.first_nan, self.rules.nan
        )

    def inf_failures(self) -> list[Failure]:
        totals = self.outcome.totals
        return self._special_failures(
            FailureKind.INF, "Inf", totals.failing_inf, totals.first_inf, self.rules.inf
        )

    def invariant_failures(self, policy: Policy, special: SpecialInputs) -> list[Failure]:
        failures = []
        for invariant in () if self.name in policy.gradients else policy.invariants:
            values, exempt = self._invariant_arrays(None)
            violation = check_invariant(invariant, values, self.dtype, self.tolerance, exempt)
            if violation is not None:
                values, exempt = self._invariant_arrays(self._exempt(special))
                if exempt is not None:
                    violation = check_invariant(
                        invariant, values, self.dtype, self.tolerance, exempt
                    )
            if violation is not None:
                failures.append(as_failure(invariant, self.name, violation))
        return failures

    def _invariant_arrays(
        self, exempt: NDArray[np.bool_] | None
    ) -> tuple[Array, NDArray[np.bool_] | None]:
        """Return the array on which invariants are checked, and a mask of its exempt elements."""
        if self.seen is None:
            return self.actual, exempt
        raw = self.seen.actual[self.name]
        return self.seen.contracts.with_properties(self.name, raw, self.actual, exempt)

    def _special_failures(
        self, kind: FailureKind, what: str, number: int, position: int | None, rule: str
    ) -> list[Failure]:
        if not number or position is None:
            return []
        index, actual, expected = self._element(position)
        unasked = "which the strict policy forbids" if rule == "strict" else "unlike the reference"
        place = self._place(index)
        message = (
            f"{number} of {self.actual.size} elements of {self.name!r} are {what}, {unasked}; "
            f"first at {list(place)}: expected {self._text(self.expected[index])}"
        )
        return [Failure(kind, message, self.name, place, expected=expected, actual=actual)]

    def _element(self, position: int) -> tuple[tuple[int, ...], float, float]:
        index = multi_index(position, self.actual.shape)
        return index, float(self.actual[index]), float(self.expected[index])

    def _text(self, value: Any) -> str:
        """Format a value with all the digits that its dtype distinguishes."""
        if self.dtype not in FLOAT_LIMITS and np.asarray(value).dtype.kind in "biu":
            return str(int(value))
        return f"{float(value):.{17 if self.dtype == 'float64' else 9}g}"

    def _exempt(self, special: SpecialInputs) -> NDArray[np.bool_] | None:
        """Mark elements exempt from invariants; return None if there are none.

        If the expected value overflows the output's format, the element is exempt. So is an
        expected NaN or Inf, if the case's inputs hold NaN or Inf. Elements without a verdict are
        not exempt, since invariants need no expected value.
        """
        if self.dtype not in FLOAT_LIMITS:
            return None
        if self.rules.clip is not None:
            # The right value overflows the output's format, whatever the op does.
            excused: BoolArray = ~(np.abs(self.expected) <= self.rules.clip.max)
            return excused if special else excused & np.isfinite(self.expected)
        return ~np.isfinite(to_float64(self.expected)) if special else None


FEW, FEW_SHARE = 16, 0.01
"""Largest number of failing elements, or share of all elements, that gets a second look. The first
draws may miss a few elements of an ill-conditioned problem, but never a whole output."""


def compare_output(
    name: str,
    actual: Array,
    expected: Array,
    dtype: str,
    tolerance: Mapping[str, Tolerance] | Envelope,
    policy: Policy,
    special: SpecialInputs,
    *,
    seen: SeenOutputs | None = None,
    excused: BoolArray | None = None,
) -> CheckedOutput:
    """Compare one output of an op with the expected output."""
    fmt = FLOAT_LIMITS.get(dtype)
    if fmt is None:
        expected = _as_integers(expected, actual.dtype)
    rules = _rules(policy, special, fmt if expected.dtype != actual.dtype else None)

    def run(bound: Bound, *, stop: bool = False) -> BlockedOutcome:
        if excused is not None:
            bound = ExcusedBound(bound, excused.reshape(-1))
        if fmt is None and expected.dtype == actual.dtype:
            return compare_integers(actual, expected, bound)
        return compare_floats(actual, expected, bound, rules, fmt, stop_at_failure=stop)

    envelope = tolerance if isinstance(tolerance, Envelope) else None
    if isinstance(tolerance, Envelope):
        outcome = _compare_auto(name, tolerance, run, actual, expected)
        # Only now is it known whether the reference has a shadow.
        allowed, label = default_tolerance(dtype), f"the tolerance ({tolerance.label_of(name)})"
    else:
        allowed = tolerance.get(dtype) or default_tolerance(dtype)
        label = f"{allowed.atol:g} + {allowed.rtol:g} * |expected| ({allowed.origin})"
        outcome = run(AffineBound(allowed.atol, allowed.rtol))
    return CheckedOutput(
        name, dtype, actual, expected, rules, allowed, label, envelope, outcome, seen
    )


def _compare_auto(
    name: str,
    envelope: Envelope,
    run: Callable[..., BlockedOutcome],
    actual: Array,
    expected: Array,
) -> BlockedOutcome:
    """Compare one output under the ``auto`` tolerance.

    Bounds are tried from the cheapest to the most expensive:

    1. The quick bound takes no evaluation of the reference. It decides if no element exceeds it or
       comes near it, or if the output has no envelope.
    2. Two early bounds take some evaluations. They decide if no element comes near them.
    3. The envelope takes twice as many. It decides if no element exceeds it.
    4. The second envelope takes more evaluations. It decides if no element exceeds it, or if more
       than a few do.
    5. The third envelope takes even more evaluations. It decides about the few elements.
    """
    quick = envelope.quick(name)
    outcome = run(quick, stop=True)
    if not outcome.totals.failing and outcome.totals.share <= QUICK_SHARE:
        return outcome
    for early in envelope.early(name):
        closer = run(early, stop=True)
        if not closer.totals.failing and closer.totals.share <= QUICK_SHARE:
            return closer
    full = envelope.full(name)
    if full == quick:
        return run(quick) if outcome.stopped else outcome
    envelope.excuse(name, actual, expected)
    outcome = run(envelope.full(name))
    if outcome.totals.failing:
        envelope.cancelled(name)
        envelope.excuse(name, actual, expected)
        outcome = run(envelope.full(name))
    failing = outcome.totals.failing
    if 0 < failing <= max(FEW, FEW_SHARE * outcome.totals.count):
        envelope.thorough(name)
        envelope.excuse(name, actual, expected)
        return run(envelope.thorough(name))
    return outcome


def _rules(policy: Policy, special: SpecialInputs, clip: FloatLimits | None) -> Rules:
    # Under two match policies it makes no difference, and finding out would cost a read of all
    # inputs.
    fed = {policy.nan_policy, policy.inf_policy} != {"match"} and bool(special)
    nan = "match" if policy.nan_policy == "strict" and fed else policy.nan_policy
    inf = "match" if policy.inf_policy == "strict" and fed else policy.inf_policy
    return Rules(nan, inf, special_inputs=fed, clip=clip)


def _as_integers(expected: Array, dtype: np.dtype[Any]) -> Array:
    """Convert float64 values to an integer dtype; return all unchanged if any does not fit."""
    if expected.dtype == dtype:
        return expected
    with np.errstate(all="ignore"):
        cast = expected.astype(dtype)
    same = np.array_equal(cast.astype(np.float64), expected.astype(np.float64))
    return cast if same else expected


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
