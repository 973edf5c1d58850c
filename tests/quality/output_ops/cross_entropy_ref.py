"""The reference: the loss of each row, in whatever it is given."""

import numpy as np


def reference(x, labels):
    x = x.astype(np.float64)
    m = x.max(1, keepdims=True)
    return np.log(np.exp(x - m).sum(1)) + m[:, 0] - x[np.arange(len(x)), labels]
