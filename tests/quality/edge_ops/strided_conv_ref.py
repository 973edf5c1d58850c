"""The reference: a grouped convolution of three taps, every second one, with a zero at each end."""

import numpy as np


def reference(x, w):
    groups, _, channels, _ = w.shape
    full = np.pad(x, ((0, 0), (0, 0), (1, 1)))
    taps = np.stack([full[:, :, t : t + x.shape[2] : 2] for t in range(3)], axis=3)
    taps = taps.reshape(len(x), groups, channels, -1, 3)
    return np.einsum("bgclt,goct->bgol", taps, w).reshape(len(x), -1, taps.shape[3])
