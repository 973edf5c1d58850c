"""The reference: three times as many points, in between by the line, none beyond the ends."""

import numpy as np


def reference(x):
    width = x.shape[1]
    at = np.clip((np.arange(3 * width) + 0.5) / 3 - 0.5, 0, width - 1)
    left = np.floor(at).astype(np.int64)
    share = at - left
    return x[:, left] * (1 - share) + x[:, np.minimum(left + 1, width - 1)] * share
