"""L2 normalisation of rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


@np.errstate(all="ignore")
def l2norm(x: NDArray, eps: float = 1e-6) -> NDArray:
    """Return ``x / sqrt(sum(x^2) + eps)`` over the last axis of `x` [..., N]."""
    wide = x.astype(np.float64)
    norm = np.sqrt((wide**2).sum(axis=-1, keepdims=True) + eps)
    return (wide / norm).astype(x.dtype)
