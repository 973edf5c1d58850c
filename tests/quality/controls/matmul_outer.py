"""Control for scripts/matmul.py: one outer product per k, summed in float32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


@np.errstate(all="ignore")
def blocked(a: NDArray, b: NDArray, *, alpha: float = 1.0) -> NDArray:
    """``alpha * a @ b`` of `a` [M, K] and `b` [K, N]."""
    left, right = a.astype(np.float32), b.astype(np.float32)
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        total += left[:, k, None] * right[None, k]
    return (np.float32(alpha) * total).astype(a.dtype)
