"""Cross-entropy of logits against class labels: log-sum-exp minus the label's own logit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


@np.errstate(all="ignore")
def cross_entropy(logits: NDArray, labels: NDArray) -> NDArray:
    """Return each row's loss [N] from `logits` [N, C]; 0 for a label outside ``[0, C)``."""
    wide = logits.astype(np.float64)
    maximum = wide.max(axis=1)
    shift = np.where(np.isfinite(maximum), maximum, 0)
    lse = shift + np.log(np.exp(wide - shift[:, None]).sum(axis=1))
    valid = (labels >= 0) & (labels < wide.shape[1])
    picked = np.take_along_axis(wide, np.where(valid, labels, 0)[:, None], axis=1)[:, 0]
    return np.where(valid, lse - picked, 0).astype(logits.dtype)
