"""Transposed copy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def transpose_copy(x: NDArray) -> NDArray:
    """Return ``x.T`` of `x` [M, N] as a C-contiguous array [N, M]."""
    return np.array(x.T, order="C")
