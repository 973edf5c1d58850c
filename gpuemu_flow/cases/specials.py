"""Cases that hold NaN, +Inf and -Inf for certain, the first of `special` for each input.

A tensor of few rows has few of the kinds of numbers that `special` draws: a vector has one.
"""

from __future__ import annotations

import math
from dataclasses import replace

from gpuemu_flow.types import DTYPES, InputSpec

FEW_ROWS = 8
"""Number of rows from which on `special` has NaN and both infinities by itself."""
NEEDED = 3
"""Elements that NaN and both infinities need."""


def holds_specials(spec: InputSpec) -> bool:
    """Tell whether NaN and infinities may be written into the values of an input."""
    rule = spec.rule
    if spec.strategy != "special" or DTYPES[spec.dtype].kind != "float" or 0 in spec.shape:
        return False
    return rule is None or not (
        rule.kind or rule.values or rule.concerns_whole or rule.nonfinite is False
    )


def with_specials(spec: InputSpec, shown: set[str]) -> InputSpec:
    """Return the recipe, which in the first case of `special` demands NaN and infinities.

    Parameters
    ----------
    spec : InputSpec
    shown : set of str
        Inputs of which a case has had them; this one is added.
    """
    elements = math.prod(spec.shape)
    if spec.name in shown or elements < NEEDED or not holds_specials(spec):
        return spec
    shown.add(spec.name)
    few = elements < FEW_ROWS * spec.shape[-1]
    return replace(spec, ends=spec.ends or 1) if few else spec
