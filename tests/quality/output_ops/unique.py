"""Each value once, in any order."""

import numpy as np


def right_first_seen(x):
    return np.array(list(dict.fromkeys(x.tolist())), x.dtype)


def right_descending(x):
    return np.unique(x)[::-1].copy()


def right_set(x):
    return np.fromiter({int(v) for v in x}, x.dtype)


def bug_neighbours_only(x):
    return x[np.concatenate([[True], x[1:] != x[:-1]])]


def bug_negatives_as_positive(x):
    return np.unique(np.abs(x))


def bug_one_twice_for_another(x):
    found = np.unique(x)
    found[-1] = found[0]
    return found


def bug_last_left_out(x):
    return np.unique(x[:-1]) if len(x) > 1 else x


def bug_wide(x):
    return np.unique(x).astype(np.int64)
