"""Index of the largest element of each row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def argmax(x: NDArray) -> NDArray:
    """Return the index [M], int32, of each row's first largest element; NaN is the largest."""
    return np.argmax(x, axis=1).astype(np.int32)
