"""RMS norm with a weight that may be None."""

import numpy as np


def _scaled(x, weight, root):
    out = x / root
    return out if weight is None else out * weight


def reference(x, weight, eps):
    return _scaled(x, weight, np.sqrt((x * x).mean(axis=1, keepdims=True) + eps))


def right_plain(x, weight, eps):
    return reference(x, weight, eps).astype(x.dtype)


def right_wide(x, weight, eps):
    wide = x.astype(np.float64)
    return reference(wide, weight, eps).astype(x.dtype)


def right_loop(x, weight, eps):
    factor = np.ones(x.shape[1]) if weight is None else weight.astype(np.float64)
    rows = [row * factor / np.sqrt((row @ row) / row.size + eps) for row in x.astype(np.float64)]
    return np.stack(rows).astype(x.dtype)


def wrong_fixed_eps(x, weight, eps):
    return right_wide(x, weight, 1e-6)


def wrong_eps_outside(x, weight, eps):
    wide = x.astype(np.float64)
    root = np.sqrt((wide * wide).mean(axis=1, keepdims=True)) + eps
    return _scaled(wide, weight, root).astype(x.dtype)


def wrong_weight_needed(x, weight, eps):
    return (right_wide(x, None, eps) * weight).astype(x.dtype)


def wrong_weight_ignored(x, weight, eps):
    return right_wide(x, None, eps)


def wrong_last_weight(x, weight, eps):
    if weight is not None:
        weight = weight.copy()
        weight[-1] = 1
    return right_wide(x, weight, eps)
