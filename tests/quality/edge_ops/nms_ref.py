"""The reference: the boxes that no better kept one overlaps by more than half."""

import numpy as np


def reference(corner, size, score):
    order = np.argsort(-score)
    low, high = corner, corner + size
    kept = np.zeros(len(score), bool)
    for i in order:
        sides = np.minimum(high[i], high[kept]) - np.maximum(low[i], low[kept])
        shared = np.maximum(sides, 0).prod(axis=1)
        areas = size[i].prod() + size[kept].prod(axis=1) - shared
        kept[i] = not (shared > 0.5 * areas).any()
    return kept
