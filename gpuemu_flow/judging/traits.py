"""Traits of an op that are found once, by evaluating its reference on a few plain inputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.judging.verdicts import UNSTEADY
from gpuemu_flow.numerics.contracts import PairedReference
from gpuemu_flow.numerics.dtypes import to_float64
from gpuemu_flow.numerics.envelope import exact_outputs_of, is_exact_op, shadow_is_faithful
from gpuemu_flow.numerics.evaluations import Evaluate, Evaluations
from gpuemu_flow.numerics.perturb import widen
from gpuemu_flow.types import DTYPES, Case, CheckResult, Failure, FailureKind, Verdict


class OpTraits(Struct, frozen=True):
    """Traits of an op on which the ``auto`` tolerance depends."""

    exact: bool
    weak: bool
    exact_outputs: Sequence[str] = ()


def find_traits(reference: Any, samples: Sequence[Case]) -> OpTraits:
    """Find an op's traits by evaluating its reference on inputs of the samples' shapes.

    The samples' own values are replaced by ordinary ones; see `plain_inputs`.
    """
    inputs = [plain_inputs(case) for case in samples]
    evaluate = PairedReference(reference)
    exact = is_exact_op(evaluate, inputs)
    shadowed = evaluate.has_source and (exact or shadow_is_faithful(evaluate, inputs))
    outputs = exact_outputs_of(evaluate, inputs) if shadowed and not exact else []
    return OpTraits(exact, weak=not shadowed, exact_outputs=outputs)


# Make the inputs on which the traits of an op are decided.


def plain_inputs(case: Case) -> dict[str, NDArray[Any]]:
    """Make inputs in a case's shapes, but with plain values: those of the strategy ``normal``.

    All inputs are contiguous, and floats have the dtype float32. An input that a user's function
    makes keeps the values that it has in the case.
    """
    plain = tuple(
        replace(spec, layout="contiguous")
        if spec.rule is not None and spec.rule.generate  # only its function knows valid values
        else replace(
            spec,
            strategy="normal",
            layout="contiguous",
            dtype="float32" if DTYPES[spec.dtype].kind == "float" else spec.dtype,
        )
        for spec in case.inputs
    )
    made = materialise(replace(case, inputs=plain))
    floats = {spec.name for spec in plain if spec.is_generated and spec.dtype != "float32"}
    floats -= {spec.name for spec in plain if DTYPES[spec.dtype].kind != "float"}
    return {n: a.astype(np.float32) if n in floats else a for n, a in made.items()}


# Find references whose outputs differ between evaluations on the same inputs.


Arrays = Mapping[str, NDArray[Any]]

APART = 1e-3
"""Minimum relative difference for which two evaluations count as different. Threads that add in
another order cause much smaller differences."""

IN_SIGHT = 1e-6
"""Minimum difference, as a share of the output's largest magnitude. Results of cancellation may
differ by less."""

MOSTLY = 0.5
"""Share of differing elements above which small differences count, too, since cancellation does not
affect so many."""

TIMES = 2
"""Number of evaluations that must agree; a single one may agree by chance."""


def unsteady_output(
    evaluate: Evaluate, inputs: Arrays, expected: Arrays, *, random: Collection[str] = ()
) -> Failure | None:
    """Evaluate a reference again; return a failure if an output differs, None if none does."""
    kept = {name: array for name, array in expected.items() if name not in random and array.size}
    if not kept:
        return None
    evaluations = Evaluations(evaluate, inputs)
    found = (_once_more(evaluations, inputs, kept) for _ in range(TIMES))
    return next((failure for failure in found if failure is not None), None)


def blamed(result: CheckResult, found: Failure) -> CheckResult:
    """Turn the result of a case that did not pass into an error that blames the reference.

    `found` is the failure that `unsteady_output` returned.
    """
    notes = tuple(failure.message for failure in result.failures)
    told = "it draws random numbers or keeps state between calls: no verdict on the op"
    return replace(
        result,
        verdict=Verdict.ERROR,
        failures=(replace(found, message=f"{found.message}; {told}"),),
        notes=(*notes, *result.notes),
    )


def _once_more(evaluations: Evaluations, inputs: Arrays, expected: Arrays) -> Failure | None:
    """Evaluate the reference again; return a failure for the first output that differs, or None.

    The expected outputs were computed either from float64 inputs or from inputs of the case's own
    dtypes. So the reference is evaluated on both. The result is None if one of these evaluations
    gives the expected outputs again, or if both evaluations fail.
    """
    found: Failure | None = None
    for ask, given in ((evaluations.outputs, widen(inputs)), (evaluations.own_outputs, inputs)):
        outputs = ask({name: array.copy() for name, array in given.items()})
        if outputs is None:
            continue
        pairs = [(n, a, outputs[n]) for n, a in expected.items() if n in outputs]
        failures = [_difference(name, array, again) for name, array, again in pairs]
        different = [failure for failure in failures if failure is not None]
        if not different:
            return None
        found = found or different[0]
    return found


def _difference(name: str, first: NDArray[Any], again: NDArray[Any]) -> Failure | None:
    message = "the reference, evaluated twice on the same inputs, gives"
    if again.shape != first.shape:
        text = f"{message} {name!r} the shapes {list(first.shape)} and {list(again.shape)}"
        return Failure(FailureKind.REFERENCE, text, name, why=UNSTEADY)
    if first.dtype.kind == "c" or again.dtype.kind == "c":
        one, other = np.asarray(first, np.complex128), np.asarray(again, np.complex128)
    else:
        one, other = _as_float64(first), _as_float64(again)
    with np.errstate(all="ignore"):
        sizes = np.maximum(np.abs(one), np.abs(other))
        finite = sizes[np.isfinite(sizes)]
        least = IN_SIGHT * float(finite.max()) if finite.size else 0.0
        apart = np.abs(one - other)
        far = (apart > APART * sizes) & np.isfinite(one) & np.isfinite(other)
        if np.count_nonzero(far) < MOSTLY * far.size:
            far &= apart > least
        nan, infinite = (test(one) | test(other) for test in (np.isnan, np.isinf))
        far |= np.isnan(one) != np.isnan(other)
        far |= infinite & ~nan & (one != other)
    if not far.any():
        return None
    index = tuple(int(i) for i in np.unravel_index(int(np.flatnonzero(far)[0]), far.shape))
    values = f"{one[index]:.9g} and {other[index]:.9g}" if one.dtype.kind == "f" else "two values"
    text = f"{message} different values of {np.count_nonzero(far)} of {far.size} elements of"
    return Failure(
        FailureKind.REFERENCE, f"{text} {name!r}: {values} at {list(index)}", name, why=UNSTEADY
    )


def _as_float64(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.float64) if array.dtype.kind in "iub" else to_float64(array)
