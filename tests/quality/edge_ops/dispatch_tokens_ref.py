"""The reference: tokens by expert, as many as it takes; zeros in what is left."""

import numpy as np


def reference(x, expert, capacity):
    chosen = [np.flatnonzero(expert == e)[:most] for e, most in enumerate(capacity)]
    rows = np.zeros_like(x)
    places = np.concatenate(chosen)
    rows[: len(places)] = x[places]
    return rows, np.cumsum([0, *map(len, chosen)]).astype(np.int32)
