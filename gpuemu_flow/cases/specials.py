"""Make the first case of `special` for each input hold NaN, +Inf and -Inf for certain.

A tensor of few rows has only few of the kinds of special numbers that `special` draws: a vector has
a single kind.
"""

from __future__ import annotations

import math
from dataclasses import replace

from gpuemu_flow.types import DTYPES, InputSpec

FEW_ROWS = 8
"""Number of rows from which on `special` has NaN and both infinities by itself."""
NEEDED = 3
"""Number of elements that NaN and both infinities need."""


def holds_specials(spec: InputSpec) -> bool:
    """Tell whether NaN and infinities may be written into the values of an input."""
    rule = spec.rule
    if spec.strategy != "special" or DTYPES[spec.dtype].kind != "float" or 0 in spec.shape:
        return False
    return rule is None or not (
        rule.kind or rule.values or rule.concerns_whole or rule.nonfinite is False
    )


def with_specials(spec: InputSpec, shown: set[str]) -> InputSpec:
    """Return the input's spec; in the first case of `special`, it demands NaN and infinities.

    Parameters
    ----------
    spec : InputSpec
    shown : set of str
        Names of the inputs for which such a case was already made. This input is added if the case
        is its first.
    """
    elements = math.prod(spec.shape)
    if spec.name in shown or elements < NEEDED or not holds_specials(spec):
        return spec
    shown.add(spec.name)
    few = elements < FEW_ROWS * spec.shape[-1]
    return replace(spec, ends=spec.ends or 1) if few else spec
