"""Places at which values would have to be put into sorted edges, left of equal ones."""

import numpy as np


def reference(edges, x):
    return (edges[None, :] < x[:, None]).sum(axis=1).astype(np.int64)


def right_library(edges, x):
    return np.searchsorted(edges, x, side="left").astype(np.int64)


def right_counted(edges, x):
    return np.array([np.count_nonzero(edges < value) for value in x], np.int64)


def right_bisected(edges, x):
    out = np.empty(x.size, np.int64)
    for place, value in enumerate(x):
        low, high = 0, edges.size
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if edges[middle] < value else (low, middle)
        out[place] = low
    return out


def wrong_never_past_the_end(edges, x):
    return np.minimum(right_library(edges, x), edges.size - 1)


def wrong_first_edge_left_out(edges, x):
    return np.searchsorted(edges[1:], x, side="left").astype(np.int64) + 1


def wrong_by_distance(edges, x):
    return np.abs(edges[None, :] - x[:, None]).argmin(axis=1).astype(np.int64)


def wrong_last_edge_left_out(edges, x):
    return np.searchsorted(edges[:-1], x, side="left").astype(np.int64)


def wrong_duplicates_dropped(edges, x):
    return np.searchsorted(np.unique(edges), x, side="left").astype(np.int64)
