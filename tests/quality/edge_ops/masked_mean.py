"""Means over masked rows, some of which are empty."""

import numpy as np

BLOCK = 16


def right_where(x, mask):
    sums = np.where(mask, x.astype("f4"), 0).sum(axis=1)
    return (sums / np.maximum(mask.sum(axis=1), 1)).astype(x.dtype)


def right_running(x, mask):
    """The mean so far moves by a part of its distance to each new element."""
    out = np.zeros(len(x), np.float64)
    for b, row in enumerate(x.astype("f8")):
        for count, value in enumerate(row[mask[b]], 1):
            out[b] += (value - out[b]) / count
    return out.astype(x.dtype)


def _blocks(x, mask, *, sums=np.float32, stop=None, least=1):
    total, count = np.zeros(len(x), sums), np.zeros(len(x), np.float32)
    for start in range(0, stop or x.shape[1], BLOCK):
        part = slice(start, start + BLOCK)
        kept = mask[:, part]
        block = (x[:, part].astype(sums) * kept).astype(sums)
        total = (total + block.sum(axis=1, dtype=sums)).astype(sums)
        count += kept.sum(axis=1)
    with np.errstate(all="ignore"):
        return (total / np.maximum(count, least)).astype(x.dtype)


def right_blocks(x, mask):
    return _blocks(x, mask)


def bug_empty_row(x, mask):
    return _blocks(x, mask, least=0)


def bug_epsilon_in_the_count(x, mask):
    sums = np.where(mask, x.astype("f4"), 0).sum(axis=1)
    return (sums / (mask.sum(axis=1) + np.float32(1e-2))).astype(x.dtype)


def bug_last_block_unread(x, mask):
    return _blocks(x, mask, stop=x.shape[1] // BLOCK * BLOCK or BLOCK)


def bug_count_of_the_first_row(x, mask):
    sums = np.where(mask, x.astype("f4"), 0).sum(axis=1)
    return (sums / max(mask[0].sum(), 1)).astype(x.dtype)


def bug_mean_of_all(x, mask):
    return (np.where(mask, x.astype("f4"), 0).mean(axis=1)).astype(x.dtype)


def bug_zeros_do_not_count(x, mask):
    kept = np.where(mask, x.astype("f4"), 0)
    return (kept.sum(axis=1) / np.maximum((kept != 0).sum(axis=1), 1)).astype(x.dtype)


def bug_one_element_left_out(x, mask):
    out = _blocks(x, mask)
    return np.where(mask.sum(axis=1) == 1, 0, out).astype(x.dtype)


def bug_mask_read_as_it_lies(x, mask):
    return _blocks(x, np.ravel(mask, order="K").reshape(mask.shape))
