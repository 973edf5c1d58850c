"""A loss of half inputs that is computed and given in float32."""

import numpy as np


def right_vectors(x, labels):
    x = x.astype(np.float32)
    m = x.max(1, keepdims=True)
    return np.log(np.exp(x - m).sum(1)) + (m[:, 0] - x[np.arange(len(x)), labels])


def right_loop(x, labels):
    out = np.empty(len(x), np.float32)
    for i, row in enumerate(x.astype(np.float32)):
        m = row.max()
        out[i] = np.log(np.exp(row - m).sum()) + (m - row[labels[i]])
    return out


def right_differences(x, labels):
    x = x.astype(np.float32)
    d = x - np.take_along_axis(x, labels[:, None], 1)
    m = d.max(1)
    return m + np.log(np.exp(d - m[:, None]).sum(1))


def bug_half(x, labels):
    return right_vectors(x, labels).astype(np.float16)


def bug_half_on_the_way(x, labels):
    loss = right_vectors(x, labels)
    return (loss + loss * np.float32(2e-3)).astype(np.float32)


def bug_no_maximum(x, labels):
    x = x.astype(np.float32)
    return np.log(np.exp(x).sum(1)) - x[np.arange(len(x)), labels]


def bug_mean(x, labels):
    return right_vectors(x, labels).mean(keepdims=True)


def bug_largest_label_as_zero(x, labels):
    return right_vectors(x, np.where(labels == 3, 0, labels))
