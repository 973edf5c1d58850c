"""The number of edges that are not above each element."""

import numpy as np

EDGES = (-0.5, 0.0, 0.5)


def right_count(x):
    nan = np.isnan(x)
    return sum(((x >= e) | nan).astype(np.int32) for e in EDGES)


def right_search(x):
    return np.searchsorted(np.array(EDGES, x.dtype), x, side="right").astype(np.int32)


def right_loop(x):
    return np.array([sum(not v < e for e in EDGES) for v in x.tolist()], np.int32)


def bug_left(x):
    return np.searchsorted(np.array(EDGES, x.dtype), x, side="left").astype(np.int32)


def bug_int64(x):
    return np.searchsorted(np.array(EDGES, x.dtype), x, side="right")


def bug_from_one(x):
    return right_search(x) + np.int32(1)


def bug_last_edge(x):
    return np.minimum(right_search(x), 2).astype(np.int32)


def bug_magnitude(x):
    return right_search(np.abs(x))
