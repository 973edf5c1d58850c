"""A histogram of 0 to 1; both ends are counted."""

import numpy as np

LANES = 64


def right_library(x, bins):
    place = np.minimum((x * bins).astype(np.int64), bins - 1)
    return np.bincount(place, minlength=bins).astype(np.int32)


def right_edges(x, bins):
    edges = np.arange(bins + 1) / bins
    below = np.array([np.count_nonzero(x < edge) for edge in edges[:-1]] + [x.size])
    return np.diff(below).astype(np.int32)


def right_lanes(x, bins):
    """Each block has a histogram of its own; they are added in the end."""
    blocks = []
    for start in range(0, x.size, LANES):
        private = [0] * bins
        for value in x[start : start + LANES].tolist():
            private[min(int(value * bins), bins - 1)] += 1
        blocks.append(private)
    return np.sum(blocks, axis=0).astype(np.int32)


def bug_upper_end_is_dropped(x, bins):
    place = (x * bins).astype(np.int64)
    return np.bincount(place[place < bins], minlength=bins).astype(np.int32)


def bug_upper_end_is_a_bin(x, bins):
    return np.bincount((x * bins).astype(np.int64), minlength=bins).astype(np.int32)


def bug_counts_of_one_byte(x, bins):
    return right_library(x, bins).astype(np.uint8).astype(np.int32)


def bug_a_bin_once_in_a_block(x, bins):
    counts = np.zeros(bins, np.int32)
    for start in range(0, x.size, LANES):
        counts[np.minimum((x[start : start + LANES] * bins).astype(int), bins - 1)] += 1
    return counts


def bug_last_block_unread(x, bins):
    return right_library(x[: x.size // LANES * LANES] if x.size > LANES else x, bins)


def bug_nearest_bin(x, bins):
    return np.bincount(np.rint(x * (bins - 1)).astype(np.int64), minlength=bins).astype(np.int32)


def bug_zeros_are_skipped(x, bins):
    return right_library(x[x > 0], bins)


def bug_wide_counts(x, bins):
    return right_library(x, bins).astype(np.int64)


def bug_inner_edges_belong_below(x, bins):
    place = np.maximum(np.ceil(x * bins).astype(np.int64) - 1, 0)
    return np.bincount(place, minlength=bins).astype(np.int32)
