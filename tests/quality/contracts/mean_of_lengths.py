"""Means of the first elements of rows, 0 where there are none."""

import numpy as np


def reference(x, lengths):
    kept = np.arange(x.shape[1]) < lengths[:, None]
    return (x * kept).sum(axis=1) / np.maximum(lengths, 1)


def right_masked(x, lengths):
    return reference(x, lengths).astype(x.dtype)


def right_loop(x, lengths):
    pairs = zip(x.astype(np.float64), lengths, strict=True)
    means = [row[:n].sum() / max(n, 1) for row, n in pairs]
    return np.array(means, x.dtype)


def right_accumulated(x, lengths):
    sums = np.concatenate(
        [np.zeros((x.shape[0], 1)), np.cumsum(x, axis=1, dtype=np.float64)], axis=1
    )
    return (sums[np.arange(x.shape[0]), lengths] / np.maximum(lengths, 1)).astype(x.dtype)


def wrong_empty_row(x, lengths):
    with np.errstate(all="ignore"):
        return ((x * (np.arange(x.shape[1]) < lengths[:, None])).sum(axis=1) / lengths).astype(
            x.dtype
        )


def wrong_full_length(x, lengths):
    return right_loop(x, np.minimum(lengths, max(x.shape[1] - 1, 0)))


def wrong_padding_counts(x, lengths):
    kept = np.arange(x.shape[1]) < lengths[:, None]
    return (x * kept).mean(axis=1).astype(x.dtype)


def wrong_length_of_row_zero(x, lengths):
    return right_loop(x, np.full_like(lengths, lengths[0]))


def wrong_one_too_many(x, lengths):
    return right_loop(x, np.where(lengths > 0, np.minimum(lengths + 1, x.shape[1]), 0))
