"""Softmax of ragged rows; what is left in the padding is nobody's business."""

import numpy as np


def _softmax(row):
    e = np.exp(row.astype(np.float32) - row.max().astype(np.float32))
    return e / e.sum()


def right_nan_padding(x, lengths):
    y = np.full_like(x, np.nan)
    for b, n in enumerate(lengths):
        y[b, :n] = _softmax(x[b, :n])
    return y


def right_unwritten_padding(x, lengths):
    y = np.empty_like(x)
    for b, n in enumerate(lengths):
        y[b, :n] = _softmax(x[b, :n])
    return y


def right_minus_infinity(x, lengths):
    valid = np.arange(x.shape[1]) < lengths[:, None]
    wide = np.where(valid, x.astype(np.float32), np.float32(-np.inf))
    e = np.exp(wide - wide.max(1, keepdims=True))
    return (e / e.sum(1, keepdims=True)).astype(x.dtype)


def bug_whole_rows(x, lengths):
    return np.stack([_softmax(row) for row in x]).astype(x.dtype)


def bug_one_short(x, lengths):
    y = np.zeros_like(x)
    for b, n in enumerate(np.maximum(lengths - 1, 1)):
        y[b, :n] = _softmax(x[b, :n])
    return y


def bug_one_more(x, lengths):
    y = np.zeros_like(x)
    for b, n in enumerate(lengths + 1):
        y[b, :n] = _softmax(x[b, :n])
    return y


def bug_first_length_for_all(x, lengths):
    return right_nan_padding(x, np.full_like(lengths, lengths[0]))


def bug_sum_and_all(x, lengths):
    y = right_nan_padding(x, lengths)
    return (y * np.asarray(1.03, x.dtype)).astype(x.dtype)
