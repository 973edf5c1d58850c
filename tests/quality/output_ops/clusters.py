"""A label for each group of equal elements, whatever the labels are."""

import numpy as np


def right_by_value(x):
    return x.astype(np.int32) + 100


def right_first_place(x):
    return np.array([int((x == v).argmax()) for v in x], np.int32)


def right_last_place(x):
    return np.array([-int(np.flatnonzero(x == v)[-1]) for v in x], np.int32)


def bug_two_groups_as_one(x):
    return (x // 2).astype(np.int32)


def bug_each_its_own(x):
    return np.arange(len(x), dtype=np.int32)


def bug_last_alone(x):
    y = x.astype(np.int32)
    y[-1] = 77
    return y


def bug_wide(x):
    return x.astype(np.int64)


def bug_all_one(x):
    return np.zeros_like(x)
