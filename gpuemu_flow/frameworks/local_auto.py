"""The ``auto`` tolerance of an output whose reference is a function in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.errors import Problem, RunnerError, UsageError, did_you_mean
from gpuemu_flow.frameworks.local_shadow import OPERANDS, PLAIN, SHADOW, STEPS, Versions
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name
from gpuemu_flow.numerics.envelope import (
    Envelope,
    build_envelope,
    exact_outputs_of,
    is_exact_op,
    shadow_is_faithful,
)
from gpuemu_flow.numerics.operand import Rounding, rounding_for, rounding_to
from gpuemu_flow.types import PRECISIONS

Arrays = Mapping[str, NDArray[Any]]
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
        self, inputs: Arrays, *, shadow: bool = False, rounding: Rounding | None = None
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
    inputs: Arrays,
    expected: Arrays,
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
    )


def _plain(inputs: Arrays, seed: int) -> dict[str, NDArray[Any]]:
    """Return the inputs with all floats replaced by normal random values, to test the reference."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(array.shape, dtype=np.float32)
        if dtype_name(array.dtype) in FLOAT_LIMITS
        else array
        for name, array in inputs.items()
    }
