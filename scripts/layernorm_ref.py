"""Layer normalisation: mean, then variance about it, then scale and shift."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


@np.errstate(all="ignore")
def layernorm(
    x: NDArray, weight: NDArray, bias: NDArray, *, eps: float = 1e-5
) -> dict[str, NDArray]:
    """Return the normalised rows [M, N] of `x`, their means [M] and 1 / standard deviations [M]."""
    wide = x.astype(np.float64)
    mean = wide.mean(axis=1, keepdims=True)
    variance = ((wide - mean) ** 2).mean(axis=1, keepdims=True)
    rstd = 1 / np.sqrt(variance + eps)
    y = (wide - mean) * rstd * weight.astype(np.float64) + bias.astype(np.float64)
    return {
        "y": y.astype(x.dtype),
        "mean": mean[:, 0].astype(x.dtype),
        "rstd": rstd[:, 0].astype(x.dtype),
    }
