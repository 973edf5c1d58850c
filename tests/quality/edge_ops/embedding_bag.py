"""Bags of rows of a table, as ``torch.nn.EmbeddingBag`` has them."""

import itertools

import numpy as np


def _bag(rows, mode, *, lowest=-np.inf, shortest=1):
    if mode == "max":
        best = rows.max(axis=0, initial=lowest)
        return best if len(rows) else np.zeros_like(best)
    total = rows.sum(axis=0, dtype=np.float32)
    return total / max(len(rows), shortest) if mode == "mean" else total


def right_by_bag(table, index, starts, mode):
    bags = [_bag(table[index[a:b]], mode) for a, b in itertools.pairwise(starts)]
    return np.stack(bags).astype(table.dtype)


def right_scattered(table, index, starts, mode):
    counts = np.diff(starts)
    bag = np.repeat(np.arange(len(counts)), counts)
    if mode == "max":
        out = np.full((len(counts), table.shape[1]), -np.inf, np.float32)
        np.maximum.at(out, bag, table[index])
        return np.where(counts[:, None] > 0, out, 0).astype(table.dtype)
    out = np.zeros((len(counts), table.shape[1]), np.float32)
    np.add.at(out, bag, table[index].astype(np.float32))
    return (out / np.maximum(counts, 1)[:, None] if mode == "mean" else out).astype(table.dtype)


def right_padded(table, index, starts, mode):
    counts = np.diff(starts)
    places = starts[:-1, None] + np.arange(max(counts.max(), 1))
    inside = (places < starts[1:, None])[..., None]
    if not index.size:
        return np.zeros((len(counts), table.shape[1]), table.dtype)
    rows = table[index[np.minimum(places, index.size - 1)]].astype(np.float64)
    if mode == "max":
        best = np.where(inside, rows, -1e300).max(axis=1)
        return np.where(counts[:, None] > 0, best, 0).astype(table.dtype)
    sums = (rows * inside).sum(axis=1)
    return (sums / np.maximum(counts, 1)[:, None] if mode == "mean" else sums).astype(table.dtype)


def bug_mean_of_an_empty_bag(table, index, starts, mode):
    with np.errstate(all="ignore"):
        out = right_by_bag(table, index, starts, "sum" if mode == "mean" else mode)
        return (out / np.diff(starts)[:, None] if mode == "mean" else out).astype(table.dtype)


def bug_maximum_begins_at_zero(table, index, starts, mode):
    pairs = itertools.pairwise(starts)
    return np.stack([_bag(table[index[a:b]], mode, lowest=0) for a, b in pairs]).astype(table.dtype)


def bug_last_bag_one_short(table, index, starts, mode):
    ends = starts.copy()
    ends[-1] = max(ends[-1] - 1, ends[-2])
    return right_by_bag(table, index, ends, mode)


def bug_index_of_one_byte(table, index, starts, mode):
    return right_by_bag(table, index.astype(np.uint8), starts, mode)


def bug_empty_bag_has_the_next_row(table, index, starts, mode):
    ends = np.minimum(np.maximum(starts[1:], starts[:-1] + 1), max(index.size, 1))
    bags = [_bag(table[index[a:b]], mode) for a, b in zip(starts[:-1], ends, strict=True)]
    return np.stack(bags).astype(table.dtype)


def bug_repeated_row_counts_once(table, index, starts, mode):
    pairs = itertools.pairwise(starts)
    return np.stack([_bag(table[np.unique(index[a:b])], mode) for a, b in pairs]).astype(
        table.dtype
    )


def bug_empty_bags_maximum_is_lowest(table, index, starts, mode):
    out = right_by_bag(table, index, starts, mode)
    if mode == "max":
        out[np.diff(starts) == 0] = np.finfo(table.dtype).min
    return out


def bug_mean_of_two_is_their_sum(table, index, starts, mode):
    out = right_by_bag(table, index, starts, mode)
    if mode == "mean":
        out[np.diff(starts) == 2] *= 2
    return out
