"""The place of the largest of each row; of equal ones any."""

import numpy as np


def right_last(x):
    return (x.shape[1] - 1 - np.argmax(x[:, ::-1], axis=1)).astype(np.int32)


def right_loop(x):
    return np.array([max(range(len(row)), key=row.__getitem__) for row in x], np.int32)


def right_by_halves(x):
    half = (x.shape[1] + 1) // 2
    left = x[:, :half].argmax(1)
    if half == x.shape[1]:
        return left.astype(np.int32)
    right = half + x[:, half:].argmax(1)
    rows = np.arange(len(x))
    return np.where(x[rows, right] >= x[rows, left], right, left).astype(np.int32)


def bug_absolute(x):
    return np.abs(x).argmax(1).astype(np.int32)


def bug_int64(x):
    return x.argmax(1)


def bug_starts_at_zero(x):
    best, at = np.zeros(len(x), x.dtype), np.zeros(len(x), np.int32)
    for i in range(x.shape[1]):
        at[x[:, i] > best] = i
        best = np.maximum(best, x[:, i])
    return at


def bug_last_left_out(x):
    return x[:, : max(1, x.shape[1] - 1)].argmax(1).astype(np.int32)


def bug_one_beyond_when_last(x):
    at = x.argmax(1).astype(np.int32)
    return np.where(at == x.shape[1] - 1, x.shape[1], at).astype(np.int32)
