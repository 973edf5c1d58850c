"""Control for scripts/layernorm.py: moments about the row's first element, in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


@np.errstate(all="ignore")
def welford(
    x: NDArray, weight: NDArray, bias: NDArray, *, eps: float = 1e-5
) -> tuple[NDArray, NDArray, NDArray]:
    """Normalised rows [M, N], their means [M] and reciprocal standard deviations [M]."""
    wide = x.astype(np.float64)
    shift = wide[:, :1]
    offset = wide - shift
    first = offset.mean(axis=1, keepdims=True)
    second = (offset * offset).mean(axis=1, keepdims=True)
    rstd = 1 / np.sqrt(np.maximum(second - first * first, 0) + eps)
    mean = wide.mean(axis=1, keepdims=True)
    y = (offset - first) * rstd * weight.astype(np.float64) + bias.astype(np.float64)
    return y.astype(x.dtype), mean[:, 0].astype(x.dtype), rstd[:, 0].astype(x.dtype)
