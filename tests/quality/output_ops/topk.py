"""The four largest of each row with their places; of equal elements any."""

import heapq

import numpy as np


def right_last_of_equals(x):
    at = np.argsort(x, axis=1, kind="stable")[:, :-5:-1]
    return np.take_along_axis(x, at, 1), np.ascontiguousarray(at)


def right_heap(x):
    values, indices = np.empty((len(x), 4), x.dtype), np.empty((len(x), 4), np.int64)
    for b, row in enumerate(x):
        best = heapq.nlargest(4, enumerate(row.tolist()), key=lambda pair: pair[1])
        indices[b] = [i for i, _ in best]
        values[b] = row[indices[b]]
    return values, indices


def right_one_by_one(x):
    left = x.astype(np.float32)
    indices = np.empty((len(x), 4), np.int64)
    for k in range(4):
        indices[:, k] = left.shape[1] - 1 - left[:, ::-1].argmax(1)
        np.put_along_axis(left, indices[:, k : k + 1], -np.inf, 1)
    return np.take_along_axis(x, indices, 1), indices


def bug_same_index_for_equals(x):
    values, _ = right_heap(x)
    pairs = zip(x, values, strict=True)
    indices = np.stack([[int((row == v).argmax()) for v in best] for row, best in pairs])
    return values, indices


def bug_last_column_never(x):
    at = np.argsort(-x[:, :-1], axis=1)[:, :4]
    at = np.concatenate([at, np.full((len(x), 4 - at.shape[1]), x.shape[1] - 1)], 1)
    return np.take_along_axis(x, at, 1), at


def bug_int32(x):
    values, indices = right_heap(x)
    return values, indices.astype(np.int32)


def bug_fifth_in_place_of_fourth(x):
    at = np.argsort(-x, axis=1, kind="stable")[:, :5]
    at = np.concatenate([at[:, :3], at[:, -1:]], 1)
    return np.take_along_axis(x, at, 1), at


def bug_indices_from_one(x):
    values, indices = right_heap(x)
    return values, indices + 1
