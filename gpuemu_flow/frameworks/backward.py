"""Compare gradients with those of a reference, in any framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuemu_flow.client.results import ValidationResult
from gpuemu_flow.frameworks.base import Array, Arrays, FrameworkAdapter, Inputs, caller
from gpuemu_flow.frameworks.local import compare, reference_of
from gpuemu_flow.frameworks.local_shadow import STEPS, Versions
from gpuemu_flow.numerics.contract import default_tolerance
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name, widened
from gpuemu_flow.types import Verdict

GRADIENT_FACTOR = 10.0
"""Factor on the documented tolerances, for gradients whose tolerance cannot be measured: they sum
over many terms."""


def compare_gradients(
    adapter: FrameworkAdapter,
    ref_fn: Callable[..., Any],
    inputs: Inputs,
    gradients: Mapping[str, Array],
    *,
    arrays: Arrays,
    cotangents: Callable[[Sequence[Array]], list[Array]],
    op_name: str,
    atol: float | None,
    rtol: float | None,
    precision: str,
) -> dict[str, ValidationResult]:
    """Judge gradients by the error that the reference's own rounding causes.

    In a narrow dtype, frameworks round each step of a backward pass. The effect on the result is
    measured if the reference's source can be rewritten. If it cannot be rewritten, or if the
    measured tolerance gives no verdict, the documented table of tolerances is used.

    Parameters
    ----------
    gradients : mapping of str to ndarray
        The gradient for each input, by the input's name.
    arrays : mapping of str to ndarray
        The inputs.
    cotangents : callable
        Returns the cotangents for given outputs.
    """
    versions = Versions(ref_fn)
    names = list(gradients)

    def pulled(function: Callable[..., Any], given: Arrays) -> dict[str, Array]:
        outputs, pull = adapter.pullback(caller(function, inputs), given, names)
        return pull(cotangents(outputs))

    expected = pulled(ref_fn, widened(arrays))
    results = {}
    for name, gradient in gradients.items():
        dtype = dtype_name(gradient.dtype) or ""

        def one(function: Callable[..., Any], given: Arrays, name: str = name) -> Array:
            return pulled(function, given)[name]

        def judged(atol: float | None, rtol: float | None) -> ValidationResult:
            return compare(
                gradient,  # noqa: B023 - called in this turn of the loop
                expected[name],  # noqa: B023
                inputs=arrays,
                op_name=f"{op_name}, gradient by {name}",  # noqa: B023
                atol=atol,
                rtol=rtol,
                reference=reference_of(versions, one),
                precision=precision,
            )

        allowed = default_tolerance(dtype)
        table = allowed.atol * GRADIENT_FACTOR, allowed.rtol * GRADIENT_FACTOR
        given = atol is not None or rtol is not None
        if not given and _is_narrow(dtype) and not versions.rewritten(STEPS):
            results[name] = judged(*table)
            continue
        results[name] = judged(atol, rtol)
        if not given and results[name].verdict == Verdict.INCONCLUSIVE.value:
            # The gradient of a sum of softmax, for example, is 0 except for roundings. It has no
            # scale to measure by, so that only the table's absolute tolerance applies.
            results[name] = judged(*table)
    return results


def why(result: ValidationResult) -> str:
    """Return, in a few words, why a result did not pass."""
    if result.failures:
        return result.failures[0].message
    return f"{result.verdict}: {'; '.join(result.notes)}"


def _is_narrow(dtype: str) -> bool:
    fmt = FLOAT_LIMITS.get(dtype)
    return fmt is not None and fmt.eps > FLOAT_LIMITS["float32"].eps
