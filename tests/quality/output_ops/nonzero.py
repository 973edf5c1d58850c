"""The places of all elements that are not 0, in any order."""

import numpy as np


def right_columns_first(x):
    return np.argwhere(x.T != 0)[:, ::-1].copy()


def right_backwards(x):
    return np.argwhere(x != 0)[::-1].copy()


def right_loop(x):
    m, n = x.shape
    found = [(i, j) for j in range(n) for i in reversed(range(m)) if x[i, j] != 0]
    return np.array(found, np.int64).reshape(-1, 2)


def bug_exchanged(x):
    return np.argwhere(x.T != 0)


def bug_columns_sorted_apart(x):
    at = np.argwhere(x != 0)
    at[:, 1] = np.sort(at[:, 1])
    return at


def bug_positive_only(x):
    return np.argwhere(x > 0)


def bug_last_column_as_first(x):
    at = np.argwhere(x != 0)
    at[at[:, 1] == x.shape[1] - 1, 1] = 0
    return at


def bug_one_twice(x):
    at = np.argwhere(x != 0)
    at[-1:] = at[:1]
    return at
