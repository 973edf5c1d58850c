"""Index of the largest element of each row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def argmax(x: NDArray) -> NDArray:
    """Index [M], int32, of the first largest element of each row of `x` [M, N]; NaN is largest."""
    return np.argmax(x, axis=1).astype(np.int32)
