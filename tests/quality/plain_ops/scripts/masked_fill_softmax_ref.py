"""The reference of masked_fill_softmax: the plain formula."""

import numpy as np


def masked_fill_softmax(x, mask):
    y = np.where(mask, -np.inf, x)
    m = y.max(-1, keepdims=True)
    m = np.where(np.isneginf(m), 0, m)
    e = np.exp(y - m)
    total = e.sum(-1, keepdims=True)
    return np.where(total == 0, 0, e / np.where(total == 0, 1, total))
