"""Matrix product."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


@np.errstate(all="ignore")
def matmul(a: NDArray, b: NDArray, *, alpha: float = 1.0) -> NDArray:
    """Return ``alpha * a @ b`` of `a` [M, K] and `b` [K, N]."""
    return (alpha * (a.astype(np.float64) @ b.astype(np.float64))).astype(a.dtype)
