"""Eigenvalues and eigenvectors, which are columns of any sign."""

import numpy as np


def right_negated(x):
    w, v = np.linalg.eigh(x + x.T)
    return w, -v


def right_first_positive(x):
    w, v = np.linalg.eigh((x + x.T).astype(np.float64))
    v = v * np.where(v[:1] < 0, -1, 1)
    return w.astype(x.dtype), v.astype(x.dtype)


def right_of_negative(x):
    w, v = np.linalg.eigh(-(x + x.T).astype(np.float64))
    return (-w[::-1]).astype(x.dtype), v[:, ::-1].astype(x.dtype)


def bug_rows(x):
    w, v = np.linalg.eigh(x + x.T)
    return w, v.T.copy()


def bug_not_scaled(x):
    w, v = np.linalg.eigh(x + x.T)
    return w, v * np.float32(1.01)


def bug_descending(x):
    w, v = np.linalg.eigh(x + x.T)
    return w[::-1].copy(), v[:, ::-1].copy()


def bug_one_element_negated(x):
    w, v = np.linalg.eigh(x + x.T)
    at = np.unravel_index(np.abs(v[:, -1]).argmin(), v[:, -1].shape)[0]
    v = v.copy()
    v[at, -1] *= -1
    if len(v) == 1:
        w = w + 1
    return w, v


def bug_upper_half_only(x):
    w, v = np.linalg.eigh(np.triu(x + x.T))
    return w, v
