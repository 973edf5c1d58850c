"""Compare a case's outputs with the reference's, and combine all checks into one verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.numerics.checked_output import (
    QUICK_SHARE,
    Arrays,
    CheckedOutput,
    Policy,
    SpecialInputs,
    compare_output,
)
from gpuemu_flow.numerics.contracts import CaseContracts, SeenOutputs
from gpuemu_flow.numerics.dtypes import dtype_name
from gpuemu_flow.numerics.envelope import Envelope
from gpuemu_flow.numerics.invariants import as_failure, check_shape_preserved
from gpuemu_flow.numerics.judge import BoolArray
from gpuemu_flow.numerics.statistics import Sample, Totals, combine
from gpuemu_flow.numerics.weakness import only_zeros_or_nan, weakness
from gpuemu_flow.types import CheckResult, ErrorStats, Failure, FailureKind, Tolerance, Verdict
from gpuemu_flow.verdicts import Compared, of_outputs

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

    Under ``auto`` an output is first compared with the envelope's quick bound, which needs no
    further evaluation of the reference. If no error exceeds `QUICK_SHARE` of this bound, the output
    passes, and `tolerance_used` is the largest share of the bound that an error takes up. The full
    envelope is never below the quick bound, so the errors take up no larger a share of it.
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
    notes = (*told, *reasons, *notes_on(extents, tolerance))
    empty = tuple(extent.name for extent in extents if not extent.count)
    weak = tuple(found for output in compared if (found := weakness(output)) is not None)
    blank = only_zeros_or_nan(inputs)
    sized = not stats.count and (
        (contracts is not None and contracts.empty_by_values)
        or any(0 in array.shape for array in (inputs or {}).values())
    )
    return CheckResult(
        verdict, tuple(failures), stats, notes, empty, weak, blank=blank, size_only=sized
    )


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
    extents: Sequence[Compared], tolerance: Mapping[str, Tolerance] | Envelope
) -> tuple[str, ...]:
    """Return the remarks on a comparison: on its tolerance, and on elements without a verdict."""
    notes = []
    if isinstance(tolerance, Envelope) and tolerance.label == "auto (weak)":
        notes.append("tolerance: auto (weak), the reference has no float32 shadow")
    if isinstance(tolerance, Envelope) and tolerance.reason:
        notes.append(f"the reference fails on all moved inputs: {tolerance.reason}")
    count = sum(extent.count for extent in extents)
    without = sum(extent.unjudged for extent in extents)
    shown = sum(extent.shown for extent in extents)
    if without:
        notes.append(f"no verdict on {without} of {count} elements")
    if nan := sum(extent.nan_unjudged for extent in extents):
        notes.append(f"NaN where a finite value is expected, without a verdict: {nan} of {count}")
    if shown > without:
        number = f"{shown - without} of {count} elements"
        notes.append(f"NaN is expected in {number}, on finite inputs: it has no value to compare")
    return tuple(notes)
