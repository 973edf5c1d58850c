"""The reference: solutions of symmetric systems."""

import numpy as np


def reference(a, b):
    return np.linalg.solve(a, b[..., None])[..., 0]
