"""Places that put the elements in ascending order."""

import numpy as np


def right_quick(x):
    return np.argsort(x, kind="quicksort")


def right_last_of_equals_first(x):
    return len(x) - 1 - np.argsort(x[::-1], kind="stable")


def right_python(x):
    return np.array(sorted(range(len(x)), key=x.__getitem__), np.int64)


def bug_descending(x):
    return np.argsort(-x)


def bug_by_size(x):
    return np.argsort(np.abs(x))


def bug_ranks(x):
    return np.argsort(np.argsort(x))


def bug_first_twice(x):
    at = np.argsort(x)
    at[-1:] = at[:1]
    return at if len(x) > 1 else at + 1


def bug_int32(x):
    return np.argsort(x).astype(np.int32)
