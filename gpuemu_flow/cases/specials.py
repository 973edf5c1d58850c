"""Ensure that each input contains NaN, +Inf and -Inf in its first case of strategy `special`.

By itself, `special` draws only a few kinds of special numbers for a tensor with few rows, and a
single kind for a vector. Special numbers outside of an input's range are left out.
"""

from __future__ import annotations

import math
from dataclasses import replace

from gpuemu_flow.types import DTYPES, InputSpec

FEW_ROWS = 8
"""Smallest number of rows for which `special` by itself draws NaN and both infinities."""
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
    """Return an input's spec; in the input's first `special` case, it demands NaN and infinities.

    Inputs with at least `FEW_ROWS` rows contain them anyway, so that their specs are unchanged.

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
