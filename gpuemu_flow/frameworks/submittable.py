"""Outputs and gradients of an op, as a client submits them where the op has `gradients`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from gpuemu_flow.errors import Problem, UsageError
from gpuemu_flow.frameworks.base import FrameworkAdapter, Inputs, caller
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name
from gpuemu_flow.numerics.gradients import cotangent, gradient_name


def with_gradients(
    adapter: FrameworkAdapter,
    op: Callable[..., Any],
    inputs: Inputs,
    by: Sequence[str] | None,
    outputs: Sequence[str],
) -> dict[str, NDArray[Any]]:
    """Return the outputs of an op, and its gradients by the names that a verdict gives them.

    Raises
    ------
    UsageError
        ``gradient-outputs``: the op returns another number of outputs than there are names.
    """
    arrays = adapter.arrays(inputs)
    names = [n for n, a in arrays.items() if dtype_name(a.dtype) in FLOAT_LIMITS]
    names = [name for name in names if by is None or name in by]
    returned, pull = adapter.pullback(caller(op, inputs), arrays, names)
    if len(returned) != len(outputs):
        text = f"the op returns {len(returned)} outputs, and `outputs` names {len(outputs)}"
        hint = "name each, in the order of the op's outputs in gpuemu.toml"
        raise UsageError(Problem("gradient-outputs", text, hint))
    named = dict(zip(outputs, returned, strict=True))
    pulled = pull([cotangent(name, y.shape, None, arrays) for name, y in named.items()])
    found = {gradient_name(name): pulled[name].astype(arrays[name].dtype) for name in names}
    return {**named, **found}
