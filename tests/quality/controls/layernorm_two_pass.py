"""Control for scripts/layernorm.py: two plain passes in float32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


@np.errstate(all="ignore")
def welford(
    x: NDArray, weight: NDArray, bias: NDArray, *, eps: float = 1e-5
) -> tuple[NDArray, NDArray, NDArray]:
    """Normalised rows [M, N], their means [M] and reciprocal standard deviations [M]."""
    wide = x.astype(np.float32)
    mean = wide.mean(axis=1, keepdims=True)
    centred = wide - mean
    rstd = 1 / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + np.float32(eps))
    y = centred * (rstd * weight.astype(np.float32)) + bias.astype(np.float32)
    return y.astype(x.dtype), mean[:, 0].astype(x.dtype), rstd[:, 0].astype(x.dtype)
