"""The k largest or smallest of each row, in order, and zeros after them."""

import numpy as np


def _filled(values, x):
    out = np.zeros_like(x)
    out[:, : values.shape[1]] = values
    return out


def reference(x, k, largest):
    ordered = np.sort(x, axis=1)
    return _filled(ordered[:, ::-1][:, :k] if largest else ordered[:, :k], x)


def right_sorted(x, k, largest):
    return reference(x, k, largest)


def right_partition(x, k, largest):
    signed = -x if largest else x
    chosen = np.sort(np.partition(signed, k - 1, axis=1)[:, :k], axis=1)
    return _filled(-chosen if largest else chosen, x)


def right_loop(x, k, largest):
    return _filled(np.array([sorted(row.tolist(), reverse=largest)[:k] for row in x], x.dtype), x)


def wrong_ties_dropped(x, k, largest):
    rows = [np.unique(row)[::-1][:k] if largest else np.unique(row)[:k] for row in x]
    out = np.zeros_like(x)
    for result, row in zip(out, rows, strict=True):
        result[: row.size] = row
    return out


def wrong_full_length(x, k, largest):
    return reference(x, min(k, max(x.shape[1] - 1, 1)), largest)


def wrong_smallest_ignored(x, k, largest):
    return reference(x, k, True)


def wrong_k_is_one(x, k, largest):
    out = reference(x, k, largest)
    if k == 1:
        out[:, 0] = x[:, 0]
    return out


def wrong_unordered(x, k, largest):
    out = reference(x, k, largest)
    out[:, :k] = out[:, :k][:, ::-1]
    return out
