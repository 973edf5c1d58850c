"""What is found out about a reference: traits of the op, steadiness, and overflow."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.judge.protocol import OpTraits
from gpuemu_flow.judge.verdicts import UNSTEADY
from gpuemu_flow.model.errors import FlowError
from gpuemu_flow.model.types import DTYPES, SCALAR, Case, CheckResult, Failure, FailureKind, Verdict
from gpuemu_flow.numerics.contract_views import after_call
from gpuemu_flow.numerics.contracts import PairedReference
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name, to_float64
from gpuemu_flow.numerics.envelope import (
    Axis,
    exact_outputs_of,
    is_exact_op,
    is_separate,
    rounds_in_float32,
    shadow_is_faithful,
)
from gpuemu_flow.numerics.evaluations import Evaluate, Evaluations, on_each
from gpuemu_flow.numerics.perturb import widen

MOST_KEPT = 1 << 18
"""Most elements of the samples' inputs that are kept for further evaluations."""

LARGER = np.float32(61.3)
"""Factor on the first sample's free values, to see that an op is exact on larger ones, too."""


class Probes:
    """What evaluations of an op's reference on its samples show; a worker serves several dtypes.

    The samples' own values are replaced by ordinary ones; see `_plain`. They are the same for
    all float dtypes of an op.
    """

    def __init__(self, reference: Any, samples: Sequence[Case]) -> None:
        self._reference = PairedReference(reference)
        self._cases = [_plain(case) for case in with_all_scalars(samples)]
        memo: dict[bytes, dict[Any, Any]] = getattr(reference, "memo", {})
        alike = [replace(each, dtype="", strategy="", layout="") for each in self._cases]
        self._known = memo.setdefault(msgspec.msgpack.encode(alike), {})
        self._kept: list[Evaluations] = []

    def _samples(self) -> list[Evaluations]:
        if self._kept:
            return self._kept
        made = on_each(self._reference, map(_plain_values, self._cases))
        if sum(array.size for each in made for array in each.inputs.values()) <= MOST_KEPT:
            self._kept = made
        return made

    def traits(self) -> OpTraits:
        """Find the op's traits."""
        if OpTraits not in self._known:
            samples = self._samples()
            exact, shadowed = self._is_exact(samples), self._reference.has_source
            if shadowed and (not exact or rounds_in_float32(samples)):
                shadowed = shadow_is_faithful(samples)
                exact = exact and not shadowed
            outputs = exact_outputs_of(samples) if shadowed and not exact else []
            changes = tuple(_changed_by(samples))
            self._known[OpTraits] = OpTraits(exact, not shadowed, tuple(outputs), changes)
        found: OpTraits = self._known[OpTraits]
        return found

    def _is_exact(self, samples: Sequence[Evaluations]) -> bool:
        """Tell whether the op does not round, on larger numbers, either.

        `round(x / s) * s` is exact where all quotients are small.
        """
        if not is_exact_op(samples):
            return False
        case = self._cases[0]
        free = [s for s in case.inputs if (s.low, s.high, s.rule) == (None, None, None)]
        names = [spec.name for spec in free if DTYPES[spec.dtype].kind == "float"]
        if not names:
            return True
        values = _plain_values(case)
        larger = Evaluations(
            self._reference, values | {name: values[name] * LARGER for name in names}
        )
        return larger.plain is None or is_exact_op([larger])

    def is_separate(self, axis: Axis) -> bool:
        """Tell whether the op does not combine elements along an axis of an input."""
        if axis not in self._known:
            self._known[axis] = is_separate(axis, self._samples())
        return bool(self._known[axis])


def _changed_by(samples: Sequence[Evaluations]) -> list[str]:
    """Return the inputs, of those whose content after the call is known, that a reference changes.

    An op may use the others as scratch memory: the reference does not say what they hold.
    """
    changed: set[str] = set()
    for evaluations in samples:
        inputs, outputs = evaluations.inputs, evaluations.plain or {}
        if not any(after_call(name) in outputs for name in inputs):
            break
        changed.update(
            name
            for name, array in inputs.items()
            if after_call(name) in outputs and not same_values(outputs[after_call(name)], array)
        )
    return sorted(changed)


def same_values(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Tell whether two arrays hold the same values, whatever their dtypes."""
    return np.array_equal(_as_float64(one), _as_float64(other), equal_nan=True)


# Make the inputs on which the traits of an op are decided.


MOST_SCALARS = 16
"""Most listed values of a scalar that are tried."""


def with_all_scalars(samples: Sequence[Case]) -> list[Case]:
    """Return the samples, or more, so that each listed value of each scalar is in one of them.

    With one value, an op may do nothing that rounds: attention to a window of one key is a copy.
    """
    listed = {
        spec.name: len(spec.rule.values)
        for case in samples
        for spec in case.inputs
        if spec.rule is not None and spec.rule.kind == SCALAR and spec.rule.values
    }
    count = max(len(samples), min(max(listed.values(), default=0), MOST_SCALARS))
    return [
        replace(
            case,
            inputs=tuple(
                replace(spec, strategy=f"pick{number % listed[spec.name]}")
                if spec.name in listed
                else spec
                for spec in case.inputs
            ),
        )
        for number, case in ((n, samples[n % len(samples)]) for n in range(count))
    ]


def _plain(case: Case) -> Case:
    """Return a case of the same shapes with plain values: those of the strategy ``normal``.

    All inputs are contiguous, and floats have the dtype float32. An input that a user's function
    makes keeps the values that it has in the case.
    """
    plain = tuple(
        replace(spec, layout="contiguous")
        if spec.rule is not None and spec.rule.generate  # only its function knows valid values
        else replace(
            spec,
            strategy=spec.strategy if spec.rule and spec.rule.kind == SCALAR else "normal",
            layout="contiguous",
            dtype="float32" if DTYPES[spec.dtype].kind == "float" else spec.dtype,
        )
        for spec in case.inputs
    )
    return replace(case, index=0, inputs=plain)


def _plain_values(case: Case) -> dict[str, NDArray[Any]]:
    """Make the inputs of a plain case, all floats in float32."""
    floats = {spec.name for spec in case.inputs if DTYPES[spec.dtype].kind == "float"}
    return {
        name: array.astype(np.float32, copy=False) if name in floats else array
        for name, array in materialise(case).items()
    }


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
        # In their layouts: another order of additions may give other values.
        outputs = ask({name: array.copy(order="K") for name, array in given.items()})
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


_WITH_POLES = (
    np.true_divide, np.reciprocal, np.log, np.log2, np.log10, np.log1p, np.arctanh, np.tan,
)  # fmt: skip
"""Functions whose exact result is infinite for some finite operands."""


class OverflowWatch(np.ndarray[Any, np.dtype[Any]]):
    """A float64 array that records which numpy functions overflow on it."""

    found: dict[str, float]

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: tuple[Any, ...] = (), **options: Any
    ) -> Any:
        plain = [_bare(value) for value in inputs]
        if out:
            options["out"] = tuple(map(_bare, out))
        result = getattr(ufunc, method)(*plain, **options)
        if method == "__call__" and ufunc not in _WITH_POLES:
            self._note(ufunc, plain, result)
        if out:
            return out[0] if len(out) == 1 else out
        if getattr(result, "dtype", None) == np.float64:
            return np.asarray(result).view(type(self))
        return result

    def _note(self, ufunc: np.ufunc, operands: list[Any], result: Any) -> None:
        if getattr(result, "dtype", None) != np.float64:
            return
        lost = np.isinf(result)
        for operand in operands:
            lost = lost & np.isfinite(operand)
        if lost.any():
            first = np.broadcast_to(np.abs(np.asarray(operands[0], np.float64)), lost.shape)
            least = float(first[lost].min())
            self.found[ufunc.__name__] = min(least, self.found.get(ufunc.__name__, least))


def _bare(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, OverflowWatch) else value


def overflow_notes(
    actual: Arrays, expected: Arrays, inputs: Arrays, evaluate: Evaluate
) -> list[str]:
    """Return a note if the reference overflows to Inf or NaN where the op gives numbers; else [].

    The note is only a hint and changes no verdict: the exact result, of an ``exp`` for example, may
    really exceed float64. There is no note for references that do not compute with numpy, or that
    are not evaluated in this process.
    """
    floats = [a for a in inputs.values() if dtype_name(a.dtype) in FLOAT_LIMITS]
    finite = all(np.isfinite(to_float64(array)).all() for array in floats)
    if not any(_lost(actual.get(n), values, nan=finite) for n, values in expected.items()):
        return []
    found: dict[str, float] = {}
    kind = type("OverflowWatch", (OverflowWatch,), {"found": found})
    watched = {
        name: array.view(kind) if array.dtype == np.float64 else array
        for name, array in widen(inputs).items()
    }
    try:
        evaluate(watched)
    except FlowError:
        return []
    if not found:
        return []
    which = " and ".join(f"`{name}` of {least:.6g} and more" for name, least in found.items())
    return [
        f"the reference itself overflows in float64, in {which}; if the exact result is a number, "
        "the reference is wrong there, not the op: write it without the overflow"
    ]


def _lost(actual: NDArray[Any] | None, expected: NDArray[Any], *, nan: bool) -> bool:
    """Tell whether an op gives a number where the reference gives Inf or, if `nan`, NaN."""
    if actual is None or actual.shape != expected.shape:
        return False
    wanted = to_float64(expected)
    lost = np.isinf(wanted) | (np.isnan(wanted) if nan else False)
    return bool((lost & np.isfinite(to_float64(actual))).any())
