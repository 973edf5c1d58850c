"""Softmax over the elements that a mask lets through, 0 elsewhere."""

import numpy as np


def reference(x, mask):
    hidden = np.where(mask, x, -np.inf)
    powers = np.exp(hidden - hidden.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def right_hidden(x, mask):
    return reference(x, mask).astype(x.dtype)


def right_loop(x, mask):
    out = np.zeros_like(x)
    for row, kept, result in zip(x, mask, out, strict=True):
        powers = np.exp(row[kept] - row[kept].max())
        result[kept] = powers / powers.sum()
    return out


def right_shifted(x, mask):
    top = np.where(mask, x, x.dtype.type(-1e30)).max(axis=1, keepdims=True)
    powers = np.exp(np.minimum(x - top, 0)) * mask
    return powers / powers.sum(axis=1, keepdims=True)


def wrong_not_renormalised(x, mask):
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True) * mask


def wrong_taken_for_a_prefix(x, mask):
    return right_hidden(x, np.arange(x.shape[1]) < mask.sum(axis=1)[:, None])


def wrong_masked_with_zero(x, mask):
    return right_hidden(np.where(mask, x, 0), np.ones_like(mask))


def wrong_last_column(x, mask):
    seen = mask.copy()
    seen[:, -1] = seen[:, -1] & (mask.sum(axis=1) == 1)
    return right_hidden(x, seen)


def wrong_mask_of_row_zero(x, mask):
    return right_hidden(x, np.broadcast_to(mask[:1], mask.shape))
