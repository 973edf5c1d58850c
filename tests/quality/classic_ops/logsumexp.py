"""The logarithm of a vector's sum of exponentials."""

import numpy as np


def _about(x, base):
    with np.errstate(all="ignore"):
        return np.log(np.exp(x - base).sum(dtype=np.float32)) + np.float32(base)


def right_guarded(x):
    largest = x.max()
    return _about(x, largest if np.isfinite(largest) else np.float32(0))


def right_tiles(x):
    with np.errstate(all="ignore"):
        largest, total = np.float32(-np.inf), np.float32(0)
        for start in range(0, x.size, 64):
            tile = x[start : start + 64]
            new = np.maximum(largest, tile.max())
            base = new if np.isfinite(new) else np.float32(0)
            total = total * np.exp(largest - base) if total else total
            total = total + np.exp(tile - base).sum(dtype=np.float32)
            largest = new
        return np.log(total) + (largest if np.isfinite(largest) else np.float32(0))


def bug_no_guard(x):
    return _about(x, x.max())


def bug_only_minus_infinity_is_guarded(x):
    largest = x.max()
    return _about(x, np.float32(0) if largest == -np.inf else largest)


def bug_only_plus_infinity_is_guarded(x):
    largest = x.max()
    return _about(x, np.float32(0) if largest == np.inf else largest)


def bug_largest_starts_at_0(x):
    largest = np.maximum(x.max(), np.float32(0))
    return _about(x, largest if np.isfinite(largest) else np.float32(0))
