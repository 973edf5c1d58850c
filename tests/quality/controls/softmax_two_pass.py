"""Control for scripts/softmax.py: three plain passes in float32, the divisor as a reciprocal."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


@np.errstate(all="ignore")
def online(x: NDArray) -> NDArray:
    """Softmax of `x` [..., N]."""
    wide = x.astype(np.float32)
    e = np.exp(wide - wide.max(axis=-1, keepdims=True))
    return (e * (1 / e.sum(axis=-1, keepdims=True))).astype(x.dtype)
