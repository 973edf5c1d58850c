"""The reference: pairs of the first and the second half turned by the angle of their place."""

import numpy as np


def reference(x, place, cosine, sine):
    c, s = cosine[place][:, None], sine[place][:, None]
    left, right = np.split(x, 2, axis=2)
    return np.concatenate([left * c - right * s, right * c + left * s], axis=2)
