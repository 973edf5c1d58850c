"""Control for scripts/l2norm.py: squares without a scale, and a reciprocal root."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


@np.errstate(all="ignore")
def scaled(x: NDArray, *, eps: float = 1e-6) -> NDArray:
    """``x / sqrt(sum(x^2) + eps)`` over the last axis of `x` [..., N]."""
    wide = x.astype(np.float32)
    inverse = 1 / np.sqrt(np.square(wide).sum(axis=-1, keepdims=True) + np.float32(eps))
    return (wide * inverse).astype(x.dtype)
