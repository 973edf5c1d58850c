"""The logistic function without overflow, shared by the gated activations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def sigmoid(x: NDArray) -> NDArray:
    """Return ``1 / (1 + exp(-x))`` in the dtype of `x`, from ``exp(-|x|)``, which is at most 1."""
    decay = np.exp(-np.abs(x))
    return np.where(x < 0, decay, 1) / (1 + decay)
