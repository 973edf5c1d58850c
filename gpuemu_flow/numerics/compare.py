"""Compare a case's outputs with the reference's, and combine all checks into one verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.model.types import (
    DTYPES,
    ELEMENT_TYPES,
    Case,
    CheckResult,
    ErrorStats,
    Failure,
    FailureKind,
    Lean,
    Shape,
    Tolerance,
    Verdict,
    WeakOutput,
)
from gpuemu_flow.model.verdicts import Compared, decide, of_outputs
from gpuemu_flow.numerics.blocked import take
from gpuemu_flow.numerics.checked_output import (
    QUICK_SHARE,
    Arrays,
    CheckedOutput,
    Policy,
    SpecialInputs,
    as_failure,
    check_shape_preserved,
    compare_output,
    only_zeros_or_nan,
    weakness,
)
from gpuemu_flow.numerics.contract import default_tolerance
from gpuemu_flow.numerics.contracts import CaseContracts, SeenOutputs
from gpuemu_flow.numerics.dtypes import (
    FLOAT_LIMITS,
    Float64Array,
    FloatLimits,
    dtype_name,
    spacing,
    to_float64,
    ulp_distance,
)
from gpuemu_flow.numerics.envelope import Envelope
from gpuemu_flow.numerics.judge import AffineBound, BoolArray, Bound, Judgement, Rules, judge
from gpuemu_flow.numerics.statistics import (
    MOST_LEANING,
    Sample,
    Totals,
    combine,
    leaning,
    rank,
)

__all__ = ["QUICK_SHARE", "Policy", "SeparateVerdict", "check_outputs", "check_structure"]


class SeparateVerdict(Struct, frozen=True):
    """The verdict on an output that was not judged element by element."""

    name: str
    # Number of the output's elements, and of its elements without a verdict
    count: int
    no_verdict: int = 0
    failures: tuple[Failure, ...] = ()
    note: str = ""

    @property
    def totals(self) -> Totals:
        """Return totals that contain only the output's numbers of elements, and no errors."""
        judged = self.count - self.no_verdict
        failing = len(self.failures)
        return Totals(count=self.count, judged=judged, finite=judged, failing=failing)


def check_outputs(
    actual: Arrays,
    expected: Arrays,
    *,
    tolerance: Mapping[str, Tolerance] | Envelope,
    policy: Policy,
    expected_dtypes: Mapping[str, str] | None = None,
    inputs: Arrays | None = None,
    seen: SeenOutputs | None = None,
    apart: Sequence[SeparateVerdict] = (),
    excused: Mapping[str, BoolArray] | None = None,
) -> CheckResult:
    """Check all outputs of one case.

    Under ``auto`` an output is first compared with bounds that need no or few evaluations of the
    reference. If no error exceeds `QUICK_SHARE` of one of them, the output passes, and
    `tolerance_used` is the largest share of that bound that an error takes up. The full envelope is
    not below these bounds, so the errors take up no larger a share of it.
    """
    names = expected_dtypes or {}
    wanted = {name: names.get(name) or dtype_name(expected[name].dtype) for name in expected}
    structural = check_structure(actual, expected, wanted)
    contracts = None if seen is None else seen.contracts
    preserved = _check_preserved(actual if seen is None else seen.actual, policy, inputs)
    if structural:
        return CheckResult(Verdict.ERROR, (*structural, *preserved))
    special = SpecialInputs(inputs)
    compared = [
        compare_output(
            name,
            actual[name],
            expected[name],
            wanted[name] or "",
            tolerance_of(name, wanted[name] or "", tolerance, contracts),
            policy,
            special,
            seen=seen,
            excused=(excused or {}).get(name),
        )
        for name in expected
    ]
    failures = [
        *(() if seen is None else seen.contracts.faults(seen.actual)),
        *(failure for output in apart for failure in output.failures),
        *(f for output in compared for f in output.value_failures()),
        *(f for output in compared for f in output.nan_failures()),
        *(f for output in compared for f in output.inf_failures()),
        *(f for output in compared for f in output.invariant_failures(policy, special)),
        *preserved,
    ]
    extents = [_extent(output, special) for output in compared]
    extents += [Compared(output.name, output.count, output.no_verdict) for output in apart]
    stats = combine(
        [
            *((c.outcome.totals, c.outcome.sample, c.actual.shape) for c in compared),
            *((output.totals, Sample(np.zeros(0)), ()) for output in apart),
        ],
        unjudged=sum(extent.shown for extent in extents),
    )
    if contracts is not None and compared:
        stats = _placed(stats, compared, contracts)
    verdict, reasons = of_outputs(bool(failures), extents)
    told = tuple(output.note for output in apart if output.note)
    said = bool(reasons) and len(extents) == 1
    notes = (*told, *reasons, *notes_on(extents, tolerance, said=said))
    empty = tuple(extent.name for extent in extents if not extent.count)
    weak = tuple(found for output in compared if (found := weakness(output)) is not None)
    blank = only_zeros_or_nan(inputs)
    sized = not stats.count and (
        (contracts is not None and contracts.empty_by_values)
        or any(0 in array.shape for array in (inputs or {}).values())
    )
    return CheckResult(
        verdict,
        tuple(failures),
        stats,
        notes,
        empty,
        weak,
        blank=blank,
        uncounted=sized,
        lean=tuple(found for output in compared for found in _lean(output)),
    )


def _lean(output: CheckedOutput) -> list[Lean]:
    """Return how an output's errors lean; empty if its tolerance or its dtype says nothing."""
    fmt, actual, expected = FLOAT_LIMITS.get(output.dtype), output.actual, output.expected
    if fmt is None or output.envelope is None or not _may_lean(fmt, output.envelope, expected):
        return []
    if dtype_name(actual.dtype) != output.dtype or not actual.size:
        return []
    where = slice(None, None, -(-actual.size // MOST_LEANING))
    one, other = (to_float64(take(each, where)).reshape(1, -1) for each in (actual, expected))
    return [found for found in leaning(output.name, one, other, fmt) if found]


def _may_lean(fmt: FloatLimits, envelope: Envelope, expected: Array) -> bool:
    return fmt.eps > 2.0**-23 and expected.dtype == np.float64 and not envelope.rounds_steps


def tolerance_of(
    name: str,
    dtype: str,
    tolerance: Mapping[str, Tolerance] | Envelope,
    contracts: CaseContracts | None,
) -> Mapping[str, Tolerance] | Envelope:
    """Return the tolerance that applies to one output.

    This is the tolerance that the configuration declares for the output itself. If there is none,
    it is `tolerance`, which applies to the whole case.
    """
    own = None if contracts is None else contracts.tolerances.get(name)
    return tolerance if own is None else {dtype: own}


def _placed(
    stats: ErrorStats, compared: Sequence[CheckedOutput], contracts: CaseContracts
) -> ErrorStats:
    """Return the statistics with the worst element's index in the output itself.

    The index in `stats` is the element's index in the form in which the output was compared.
    """
    if stats.worst_index is None:
        return stats
    worst = max(compared, key=lambda output: output.outcome.totals.worst.share)
    return replace(stats, worst_index=contracts.index(worst.name, stats.worst_index))


def _extent(output: CheckedOutput, special: SpecialInputs) -> Compared:
    """Measure how much of an output was compared.

    The inputs are searched for NaN and Inf (see `SpecialInputs`) only if NaN is expected.
    """
    totals = output.outcome.totals
    return Compared(
        output.name,
        totals.count,
        totals.count - totals.judged,
        totals.nan,
        finite_inputs=bool(totals.nan) and not special,
        nan_unjudged=totals.nan_unjudged,
    )


def check_structure(
    actual: Arrays,
    expected: Arrays,
    wanted: Mapping[str, str | None],
    known: Callable[[np.dtype[Any]], str | None] = dtype_name,
) -> list[Failure]:
    """List wrong names of outputs, then wrong shapes, then wrong dtypes.

    `wanted` maps each output to its dtype. `known` returns the name of a numpy dtype, or None.
    """
    shapes: list[Failure] = []
    dtypes: list[Failure] = []
    for name, reference in expected.items():
        if name not in actual:
            continue
        output = actual[name]
        if output.shape != reference.shape:
            message = (
                f"output {name!r} has shape {list(output.shape)}, expected {list(reference.shape)}"
            )
            shapes.append(Failure(FailureKind.SHAPE, message, output=name))
        dtype = known(output.dtype)
        if dtype is None or dtype != wanted[name]:
            message = f"output {name!r} has dtype {output.dtype}, expected {wanted[name]}"
            if dtype in DTYPES and DTYPES[dtype].kind == ELEMENT_TYPES[wanted[name] or dtype].kind:
                message += (
                    ": end with `.astype(x.dtype)` (of tensors, `.to(x.dtype)`), or declare it, "
                    f'`output = {{ dims = …, dtype = "{dtype}" }}`'
                )
            dtypes.append(Failure(FailureKind.DTYPE, message, output=name))
    return [*_check_names(tuple(actual), tuple(expected)), *shapes, *dtypes]


def _check_names(given: Sequence[str], expected: Sequence[str]) -> list[Failure]:
    """Return a list with one failure if the outputs' names differ from the expected ones.

    The list is empty if they are the same.
    """
    missing = [name for name in expected if name not in given]
    unknown = [name for name in given if name not in expected]
    if not missing and not unknown:
        return []
    wanted, came = (", ".join(map(repr, names)) or "none" for names in (expected, given))
    message = f"outputs expected: {wanted}; outputs given: {came}"
    return [Failure(FailureKind.OUTPUT_NAMES, message, output=(*missing, *unknown)[0])]


def _check_preserved(actual: Arrays, policy: Policy, inputs: Arrays | None) -> list[Failure]:
    source = policy.shape_preserved_input
    if source is None or not inputs or source not in inputs or not actual:
        return []
    name, output = next((n, a) for n, a in actual.items() if n not in policy.gradients)
    violation = check_shape_preserved(output.shape, source, inputs[source].shape)
    return [as_failure("shape_preserved", name, violation)] if violation else []


def notes_on(
    extents: Sequence[Compared],
    tolerance: Mapping[str, Tolerance] | Envelope,
    *,
    said: bool = False,
) -> tuple[str, ...]:
    """Return the remarks on a comparison: on its tolerance, and on elements without a verdict.
    `said` means that the number of these stands in the reason for the verdict."""
    notes = []
    if isinstance(tolerance, Envelope) and tolerance.label == "auto (weak)":
        notes.append("tolerance: auto (weak), the reference has no float32 shadow")
    if isinstance(tolerance, Envelope) and tolerance.reason:
        notes.append(f"the reference fails on all moved inputs: {tolerance.reason}")
    count = sum(extent.count for extent in extents)
    without = sum(extent.unjudged for extent in extents)
    shown = sum(extent.shown for extent in extents)
    if without and not said:
        notes.append(f"no verdict on {without} of {count} elements")
    if nan := sum(extent.nan_unjudged for extent in extents):
        notes.append(f"NaN where a finite value is expected, without a verdict: {nan} of {count}")
    if shown > without:
        number = f"{shown - without} of {count} elements"
        notes.append(f"NaN is expected in {number}, on finite inputs: it has no value to compare")
    return tuple(notes)


Array = NDArray[Any]

MOST_ELEMENTS = 1024
"""Largest outputs compared together: for larger ones, numpy's fixed costs hardly matter."""

MOST_CASES = 64
"""Cases compared together, so that all their elements stay in the processor's cache."""


class Form(Struct, frozen=True):
    """The facts, besides values, that decide how a case with one output is compared."""

    name: str
    case_dtype: str
    shape: tuple[int, ...]
    actual: np.dtype[Any]
    expected: np.dtype[Any]
    # Name, shape and dtype of each input, on which the output's shape and dtype may depend
    inputs: tuple[tuple[str, Shape, np.dtype[Any]], ...]
    # Sizes of the case's dims, on which the output's shape may depend
    dims: tuple[tuple[str, int], ...]
    policies: frozenset[str]  # the policies for NaN and for Inf


def form_of(
    case: Case, actual: Arrays, expected: Arrays, inputs: Arrays, policy: Policy
) -> Form | None:
    """Return a case's form; None if its outputs cannot be compared with those of other cases."""
    if len(expected) != 1 or actual.keys() != expected.keys():
        return None
    if policy.invariants or policy.shape_preserved_input is not None or policy.gradients:
        return None
    ((name, values),) = expected.items()
    output = actual[name]
    known = dtype_name(values.dtype) in FLOAT_LIMITS and dtype_name(output.dtype) in FLOAT_LIMITS
    if not known or output.shape != values.shape or not 0 < values.size <= MOST_ELEMENTS:
        return None
    if not (values.dtype.isnative and output.dtype.isnative):
        return None
    given = tuple((name, array.shape, array.dtype) for name, array in inputs.items())
    policies = frozenset((policy.nan_policy, policy.inf_policy))
    return Form(
        name, case.dtype, values.shape, output.dtype, values.dtype, given, case.dims, policies
    )


def check_batch(
    form: Form,
    actual: Sequence[Array],
    expected: Sequence[Array],
    inputs: Sequence[Arrays],
    *,
    dtype: str,
    tolerance: Mapping[str, Tolerance] | Envelope,
) -> list[CheckResult | None]:
    """Check the outputs of several cases of one form; see `compare.check_outputs`."""
    results: list[CheckResult | None] = [None] * len(actual)
    if dtype_name(form.actual) != dtype:
        return results
    side_a, side_e = np.stack(actual), np.stack(expected)
    side_a, side_e = side_a.reshape(len(actual), -1), side_e.reshape(len(actual), -1)
    with np.errstate(all="ignore"):
        numbers = _comparable(form, to_float64(side_a), to_float64(side_e), inputs)
        if not numbers.size:
            return results
        if numbers.size < len(actual):
            side_a, side_e = side_a[numbers], side_e[numbers]
        rows = _Rows(form, side_a, side_e, dtype, tolerance)
    notes = notes_on([], tolerance)
    for row in np.flatnonzero(rows.passes).tolist():
        number = int(numbers[row])
        results[number] = CheckResult(
            decide(False, side_e.shape[1]),
            (),
            rows.stats(row),
            notes,
            weak=rows.weak(row),
            lean=rows.lean(row),
            blank=only_zeros_or_nan(inputs[number]),
        )
    return results


def _comparable(
    form: Form, actual: Float64Array, expected: Float64Array, inputs: Sequence[Arrays]
) -> NDArray[np.intp]:
    """Return the indices of the rows in which the policies only demand that NaN and Inf match.

    A NaN that is expected on finite inputs is no evidence (see `verdicts.Compared`), so such a row
    is left out, too.
    """
    both = np.isfinite(actual) & np.isfinite(expected)
    chosen: NDArray[np.bool_] = np.all(both, axis=1)
    for row in np.flatnonzero(~chosen).tolist():
        plain = form.policies == {"match"} and not np.isnan(expected[row]).any()
        # On inputs with NaN or Inf, ``strict`` means ``match``.
        chosen[row] = plain or ("ignore" not in form.policies and bool(SpecialInputs(inputs[row])))
    return np.flatnonzero(chosen)


class _Rows:
    """The comparison of several outputs, one per row, with their expected values.

    NaN and Inf have to match the expected ones; they are neither forbidden nor ignored.

    A sum over a row adds its elements in the order in which `np.add.reduce` adds those of a single
    output, so that both sums are rounded in the same way.
    """

    def __init__(
        self,
        form: Form,
        actual: Array,
        expected: Array,
        dtype: str,
        tolerance: Mapping[str, Tolerance] | Envelope,
    ) -> None:
        self._form = form
        fmt = FLOAT_LIMITS[dtype]
        explicit = None
        bound: Bound
        if isinstance(tolerance, Envelope):
            bound = tolerance.quick(form.name)
        else:
            explicit = tolerance.get(dtype) or default_tolerance(dtype)
            bound = AffineBound(explicit.atol, explicit.rtol)
        self._actual, self._expected = to_float64(actual), to_float64(expected)
        rules = Rules(clip=fmt if form.actual != form.expected else None)
        flat_a, flat_e = self._actual.reshape(-1), self._expected.reshape(-1)
        judgement = judge(flat_a, flat_e, bound, slice(0, flat_a.size), rules)
        self._special = judgement.finite is not None
        self._measure(judgement, _ulps(judgement, actual, expected, fmt))
        self.passes = ~judgement.failed.reshape(self._actual.shape).any(axis=1)
        if explicit is None:
            self.passes = self.passes & (self._largest_share <= QUICK_SHARE)
        self._look_for_weakness(explicit)
        self._lean: list[Lean | None] = []
        if isinstance(tolerance, Envelope) and _may_lean(fmt, tolerance, expected):
            self._lean = leaning(form.name, self._actual, self._expected, fmt)

    def _measure(self, judgement: Judgement, ulps: Float64Array) -> None:
        """Compute the statistics of all rows."""
        shape = self._actual.shape
        count = shape[1]
        self._finite = [count] * shape[0]
        if self._special:
            self._finite = np.isfinite(self._expected).sum(axis=1).tolist()
        error, share = judgement.error.reshape(shape), judgement.share.reshape(shape)
        ordered = np.sort(error, axis=1)
        ranks = [ordered[:, rank(level, count)] for level in (0.50, 0.90, 0.99)]
        self._percentiles = np.stack(ranks, axis=1).tolist()
        self._max_abs = ordered[:, -1].tolist()
        self._mean_abs = (np.add.reduce(error, axis=1) / count).tolist()
        self._max_ulp = ulps.max(axis=1).tolist()
        self._mean_ulp = (np.add.reduce(ulps, axis=1) / count).tolist()
        places = share.argmax(axis=1)
        self._largest_share = share[np.arange(shape[0]), places]
        self._shares = self._largest_share.tolist()
        self._places = places.tolist()
        axes = np.unravel_index(places, self._form.shape) if self._form.shape else ()
        self._indices = list(zip(*(axis.tolist() for axis in axes), strict=True))
        magnitude = np.abs(self._expected)
        relative = error / magnitude
        self._max_rel = relative.max(axis=1).tolist()
        self._mean_rel = (np.add.reduce(relative, axis=1) / count).tolist()
        self._correct_relative(relative, magnitude > 0.0)

    def _correct_relative(self, relative: Float64Array, counted: NDArray[np.bool_]) -> None:
        """Correct the relative errors of rows in which some expected values are zero or NaN.

        `counted` is False for these elements, which have no relative error; see
        `statistics.relative_errors`.
        """
        numbers = counted.sum(axis=1)
        rows = np.flatnonzero(numbers < counted.shape[1])
        for number in np.unique(numbers[rows]).tolist():
            of_number = rows[numbers[rows] == number]
            kept = relative[of_number][counted[of_number]].reshape(-1, number or 1)
            largest = kept.max(axis=1).tolist() if number else [0.0] * len(of_number)
            total = np.add.reduce(kept, axis=1).tolist() if number else largest
            for row, top, summed in zip(of_number.tolist(), largest, total, strict=True):
                self._max_rel[row], self._mean_rel[row] = top, summed / (number or 1)

    def _look_for_weakness(self, tolerance: Tolerance | None) -> None:
        """Find the rows whose comparison is weak; see `weakness.weakness`."""
        expected = self._expected
        first = expected[:, :1]
        other = np.zeros(expected.shape, bool)
        if self._special:  # only finite values count
            finite = np.isfinite(expected)
            first = np.take_along_axis(expected, finite.argmax(axis=1)[:, np.newaxis], axis=1)
            other = ~finite
        any_value = ~other.all(axis=1)
        self._first = first[:, 0]
        self._constant = (np.all((expected == first) | other, axis=1) & any_value).tolist()
        self._zeros = [False] * len(expected)
        if tolerance is not None:
            sizes = np.abs(expected)
            allowed = tolerance.atol + tolerance.rtol * sizes
            self._zeros = (np.all((sizes <= allowed) | other, axis=1) & any_value).tolist()

    def weak(self, row: int) -> tuple[WeakOutput, ...]:
        """Return a `WeakOutput` if a row's comparison proves little; else an empty tuple.

        A comparison proves little if all finite expected values are equal, or if the explicit
        tolerance would accept zeros in place of all of them.
        """
        constant, zeros = self._constant[row], self._zeros[row]
        if not (constant or zeros):
            return ()
        value = float(self._first[row]) if constant else None
        return (WeakOutput(self._form.name, value, zeros),)

    def lean(self, row: int) -> tuple[Lean, ...]:
        """Return how a row's errors lean, as an only item; an empty tuple if nothing tells."""
        found = self._lean[row] if self._lean else None
        return () if found is None else (found,)

    def stats(self, row: int) -> ErrorStats:
        """Return the statistics of a row that passes."""
        share, place = self._shares[row], self._places[row]
        found = share > 0.0
        p50, p90, p99 = self._percentiles[row]
        count = self._actual.shape[1]
        return ErrorStats(
            count=count,
            num_finite=self._finite[row],
            max_abs=self._max_abs[row],
            mean_abs=self._mean_abs[row],
            p50_abs=p50,
            p90_abs=p90,
            p99_abs=p99,
            max_rel=self._max_rel[row],
            mean_rel=self._mean_rel[row],
            max_ulp=self._max_ulp[row],
            mean_ulp=self._mean_ulp[row],
            tolerance_used=share,
            worst_index=(self._indices[row] if self._indices else ()) if found else None,
            worst_expected=float(self._expected[row, place]) if found else None,
            worst_actual=float(self._actual[row, place]) if found else None,
        )


def _ulps(judgement: Judgement, actual: Array, expected: Array, fmt: FloatLimits) -> Float64Array:
    """Return each element's error in ulp, as in `blocked`; it is 0 where NaN or Inf match."""
    error = judgement.error.reshape(actual.shape)
    ulps: Float64Array
    if actual.dtype == expected.dtype:
        ulps = ulp_distance(actual, expected).astype(np.float64)
    else:
        ulps = error / spacing(to_float64(expected), fmt)
    if judgement.finite is not None:
        ulps = np.where(judgement.finite.reshape(actual.shape), ulps, 0.0)
    return ulps
