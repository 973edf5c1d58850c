"""The reference: the two best experts of each token, and the softmax of their two gates."""

import numpy as np


def reference(gates):
    best = np.argsort(-gates, axis=1, kind="stable")[:, :2]
    powers = np.exp(np.take_along_axis(gates, best, 1) - gates.max(axis=1, keepdims=True))
    return best.astype(np.int32), powers / powers.sum(axis=1, keepdims=True)
