"""The ``auto`` tolerance of an output whose reference is a function in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.errors import Problem, RunnerError
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name
from gpuemu_flow.numerics.envelope import Envelope, build_envelope, is_exact_op

Arrays = Mapping[str, NDArray[Any]]
Evaluate = Callable[[dict[str, NDArray[Any]]], dict[str, NDArray[Any]]]


def local_envelope(
    evaluate: Evaluate, inputs: Arrays, expected: Arrays, dtypes: Mapping[str, str], seed: int
) -> Envelope:
    """What the reference allows for, measured by calling it again on moved inputs.

    A function's source says nothing of what it closes over, so that it has no float32 shadow: the
    envelope is the weak one, see ``docs/oracle.md``.

    Parameters
    ----------
    evaluate : callable
        The reference: float inputs come as float64 arrays of its own.
    inputs, expected : mapping of str to ndarray
        The inputs in their own dtypes; what the reference gave on them in float64.
    dtypes : mapping of str to str
        Of the op's outputs.
    seed : int
        Decides how inputs are moved.
    """

    def call(inputs: Arrays, *, shadow: bool = False) -> Arrays:
        if shadow:
            raise RunnerError(Problem("reference-failed", "a function has no shadow"))
        try:
            return evaluate({name: np.array(array) for name, array in inputs.items()})
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            raise RunnerError(Problem("reference-failed", text)) from None

    return build_envelope(
        inputs,
        expected,
        call,
        dtype=dtypes,
        seed=seed,
        exact_op=is_exact_op(call, [_plain(inputs, seed)]),
        weak=True,
    )


def _plain(inputs: Arrays, seed: int) -> dict[str, NDArray[Any]]:
    """Inputs of the same shapes with plain float values, on which an op's nature shows."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(array.shape, dtype=np.float32)
        if dtype_name(array.dtype) in FLOAT_LIMITS
        else array
        for name, array in inputs.items()
    }
