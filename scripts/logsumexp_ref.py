"""Log-sum-exp over the last axis, and the row maximum."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


@np.errstate(all="ignore")
def logsumexp(x: NDArray) -> dict[str, NDArray]:
    """Return the maximum, and ``m + log(sum(exp(x - m)))`` with m the maximum if finite, else 0."""
    wide = x.astype(np.float64)
    maximum = wide.max(axis=-1, keepdims=True)
    shift = np.where(np.isfinite(maximum), maximum, 0)
    lse = shift + np.log(np.exp(wide - shift).sum(axis=-1, keepdims=True))
    return {"lse": lse[..., 0].astype(x.dtype), "max": maximum[..., 0].astype(x.dtype)}
