"""Validation in this process, without a daemon: the same comparison and results as a client's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from msgspec import to_builtins
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.client.arrays import as_array
from gpuemu_flow.client.calls import check_tolerances
from gpuemu_flow.client.context import failed
from gpuemu_flow.client.results import FailureInfo, ValidationResult
from gpuemu_flow.frameworks.local_shadow import OPERANDS, PLAIN, SHADOW, STEPS, Versions
from gpuemu_flow.model.errors import Problem, RunnerError, UsageError, did_you_mean
from gpuemu_flow.model.types import PRECISIONS, CheckResult, Failure, Tolerance, Verdict
from gpuemu_flow.model.verdicts import Elements
from gpuemu_flow.numerics.checked_output import note_of_tolerance, note_of_zeros
from gpuemu_flow.numerics.compare import Policy, check_outputs
from gpuemu_flow.numerics.contract import PartialTolerance, resolve
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name, to_float64
from gpuemu_flow.numerics.envelope import (
    Envelope,
    build_envelope,
    exact_outputs_of,
    is_exact_op,
    separate_axes,
    shadow_is_faithful,
)
from gpuemu_flow.numerics.operand import TENSOR_CORE, Rounding, rounding_for, rounding_to

Arrays = dict[str, NDArray[Any]]
OUTPUT = "output"


def outputs_by_name(returned: Any, names: tuple[str, ...] = ()) -> Arrays:
    """Convert the return value of an op to arrays by name.

    An op returns one tensor, several in an order (`names` names them), or a mapping.
    """
    if isinstance(returned, Mapping):
        values = {str(name): value for name, value in returned.items()}
    elif isinstance(returned, (tuple, list)):
        given = names or tuple(f"{OUTPUT}_{n}" for n in range(len(returned)))
        values = dict(zip(given, returned, strict=True))
    else:
        values = {(names or (OUTPUT,))[0]: returned}
    return {name: as_array(value, name) for name, value in values.items()}


def reference_of(
    function: Callable[..., Any] | Versions,
    call: Callable[[Callable[..., Any], Arrays], Any],
) -> LocalReference:
    """Return a function as a `LocalReference`.

    Parameters
    ----------
    function : callable or Versions
    call : callable
        Calls a version of the function, such as its float32 version, on arrays by name. Returns the
        outputs in a form that `outputs_by_name` accepts.
    """
    return LocalReference(function, lambda version, arrays: outputs_by_name(call(version, arrays)))


def compare(
    actual: Any,
    expected: Any,
    *,
    inputs: Mapping[str, Any] | None = None,
    op_name: str = "op",
    seed: int = 0,
    atol: float | None = None,
    rtol: float | None = None,
    found: tuple[Failure, ...] = (),
    raise_on_failure: bool = False,
    reference: LocalReference | None = None,
    precision: str = TENSOR_CORE,
) -> ValidationResult:
    """Judge the outputs of an op against those of its reference.

    Parameters
    ----------
    actual, expected : tensor, sequence of tensors, or mapping of name to tensor
        Of any framework. Expected floats that are wider than the actual ones are not rounded before
        the comparison.
    inputs : mapping of name to tensor, optional
        The op's inputs. `reference` is measured on them, and they show whether NaN and Inf in the
        output can come from NaN and Inf in the inputs.
    atol, rtol : float, optional
        Replace the tolerance measured on the reference or, if the reference cannot be called again,
        the documented tolerance of the output's dtype.
    found : tuple of Failure
        Further failures of the output that are already known.
    raise_on_failure : bool
    reference : LocalReference, optional
        The function that gave `expected`, called with float64 arrays; see `reference_of`.
    precision : str
        Which values a correct op may round; one of `types.PRECISIONS`. It only affects a tolerance
        that is measured on `reference`.

    Raises
    ------
    ValidationError
        Only with `raise_on_failure`.
    ClientError
        ``client-not-a-tensor``, ``client-bad-tolerance``.
    """
    start = time.perf_counter()
    check_tolerances(atol, rtol)
    ours, theirs = outputs_by_name(actual), outputs_by_name(expected)
    if len(ours) == len(theirs) == 1:
        ours = dict(zip(theirs, ours.values(), strict=True))
    dtypes: dict[str, str] = {}
    for name, array in theirs.items():
        own = dtype_name(ours[name].dtype) if name in ours else None
        if own in FLOAT_LIMITS and _is_wider(array, ours[name]):
            theirs[name], dtypes[name] = to_float64(array), own
    call = PartialTolerance(atol, rtol)
    tolerance: dict[str, Tolerance] | Envelope = {
        name: resolve(name, call=call)
        for name in {dtype_name(array.dtype) or "" for array in ours.values()}
    }
    held = {name: as_array(value, name) for name, value in (inputs or {}).items()}
    if reference is not None and atol is None and rtol is None and held:
        of_ours = {name: dtype_name(array.dtype) or "" for name, array in ours.items()}
        tolerance = local_envelope(reference, held, theirs, of_ours, seed, precision)
    checked = check_outputs(
        ours,
        theirs,
        tolerance=tolerance,
        policy=Policy(),
        expected_dtypes=dtypes,
        inputs=held,
    )
    result = as_result(checked, ours, op_name, seed, found, time.perf_counter() - start)
    if raise_on_failure and not result.passed:
        raise failed(result)
    return result


def _is_wider(expected: NDArray[Any], actual: NDArray[Any]) -> bool:
    name = dtype_name(expected.dtype)
    return name in FLOAT_LIMITS and expected.dtype.itemsize > actual.dtype.itemsize


def as_result(
    checked: CheckResult,
    outputs: Arrays,
    op_name: str,
    seed: int,
    found: tuple[Failure, ...] = (),
    seconds: float = 0.0,
) -> ValidationResult:
    """Return a comparison as the `ValidationResult` that a client would return.

    `found` are further failures, and `seconds` is the duration.
    """
    failures = (*found, *checked.failures)
    verdict = checked.verdict
    if found and verdict in (Verdict.PASSED, Verdict.INCONCLUSIVE):
        verdict = Verdict.FAILED
    stats = checked.stats
    return ValidationResult(
        passed=verdict is Verdict.PASSED,
        seed=seed,
        op_name=op_name,
        max_diff=stats.max_abs,
        max_rel_diff=stats.max_rel,
        failures=[_failure_info(failure, outputs) for failure in failures],
        timestamp=int(time.time()),
        duration_ms=round(seconds * 1000),
        error_stats=to_builtins(stats),
        verdict=verdict.value,
        notes=[*note_of_tolerance(checked), *note_of_zeros(checked), *checked.notes],
        tolerance_used=stats.tolerance_used,
        unjudged=stats.unjudged,
        compared=Elements.of(checked).to_json(),
    )


def with_changes(result: ValidationResult, changed: Mapping[str, int]) -> ValidationResult:
    """Return a result with notes on the inputs that the op changed in place.

    `changed` has, for each of these inputs, the number of changed elements. Such a change is not a
    failure: without a configuration, it may be intended.
    """
    notes = [
        f"inputs-changed: the op changed {count} elements of input {name!r} in place"
        for name, count in changed.items()
    ]
    return replace(result, notes=[*notes, *result.notes]) if notes else result


def _failure_info(failure: Failure, outputs: Arrays) -> FailureInfo:
    flat = None
    array = outputs.get(failure.output)
    if failure.index is not None and array is not None and len(failure.index) == array.ndim:
        flat = int(np.ravel_multi_index(failure.index, array.shape)) if array.ndim else 0
    return FailureInfo(
        kind=failure.kind.value,
        message=failure.message,
        index=flat,
        expected=failure.expected,
        actual=failure.actual,
        output=failure.output,
        multi_index=None if failure.index is None else list(failure.index),
    )


# The ``auto`` tolerance of an output whose reference is a function in this process.


GivenArrays = Mapping[str, NDArray[Any]]
Outputs = dict[str, NDArray[Any]]
_ROUNDING = threading.RLock()  # what a shadow rounds to is a setting of the whole process


class LocalReference:
    """A reference in this process, which can be evaluated repeatedly.

    Parameters
    ----------
    function : callable or Versions
        The user's own function. Other versions, such as one that computes in float32, are made from
        its source.
    outputs : callable
        Takes the function, or another version of it, and inputs. Calls the function on the inputs,
        and returns its outputs as arrays by name.
    """

    def __init__(
        self,
        function: Callable[..., Any] | Versions,
        outputs: Callable[[Callable[..., Any], dict[str, NDArray[Any]]], Outputs],
    ) -> None:
        self.versions = function if isinstance(function, Versions) else Versions(function)
        self._outputs = outputs

    def __call__(
        self, inputs: GivenArrays, *, shadow: bool = False, rounding: Rounding | None = None
    ) -> Outputs:
        """Return the reference's outputs, as `numerics.evaluations.Evaluate` describes."""
        name = SHADOW if shadow else PLAIN
        if rounding is not None:
            name = STEPS if rounding.steps else OPERANDS
        copies = {key: array.copy(order="K") for key, array in inputs.items()}
        try:
            function = self.versions.version(name)
            if rounding is None:
                with np.errstate(all="ignore"):
                    return self._outputs(function, copies)
            with _ROUNDING, rounding_to(rounding), np.errstate(all="ignore"):
                return self._outputs(function, copies)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            raise RunnerError(Problem("reference-failed", text)) from None


def checked_precision(precision: str | None) -> str | None:
    """Return `precision` if it is None or one of `PRECISIONS`.

    Raise UsageError ``validate-arguments`` for any other value.
    """
    if precision is None or precision in PRECISIONS:
        return precision
    raise UsageError(
        Problem(
            "validate-arguments",
            f"precision {str(precision)[:60]!r} is none of {', '.join(PRECISIONS)}",
            did_you_mean(str(precision)[:60], PRECISIONS),
        )
    )


def local_envelope(
    reference: LocalReference,
    inputs: GivenArrays,
    expected: GivenArrays,
    dtypes: Mapping[str, str],
    seed: int,
    precision: str,
) -> Envelope:
    """Return the error that a correct op may have, measured by evaluating the reference again.

    Parameters
    ----------
    reference : LocalReference
    inputs, expected : mapping of str to ndarray
        The inputs in their own dtypes, and the reference's outputs on them in float64.
    dtypes : mapping of str to str
        Dtypes of the op's outputs.
    seed : int
        Seed of random inputs, and of random changes of the given inputs.
    precision : str
        Which values a correct op may round as it computes; one of `PRECISIONS`.
    """
    plain = [_plain(inputs, seed)]
    exact = is_exact_op(reference, plain)
    weak = not exact and not shadow_is_faithful(reference, plain)
    names = [dtype_name(array.dtype) or "" for array in inputs.values()]
    floats = [name for name in names if name in FLOAT_LIMITS]
    return build_envelope(
        inputs,
        expected,
        reference,
        dtype=dtypes,
        seed=seed,
        exact_op=exact,
        exact_outputs=exact_outputs_of(reference, plain) if not exact and not weak else (),
        weak=weak,
        rounding=rounding_for(precision, floats[0]) if floats else None,
        separate=lambda: separate_axes(reference, plain),
    )


def _plain(inputs: GivenArrays, seed: int) -> dict[str, NDArray[Any]]:
    """Return the inputs with all floats replaced by normal random values, to test the reference."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(array.shape, dtype=np.float32)
        if dtype_name(array.dtype) in FLOAT_LIMITS
        else array
        for name, array in inputs.items()
    }
