"""Sums of the rows of a ragged batch."""

import itertools

import numpy as np


def reference(x, offsets):
    return np.array([x[a:b].sum() for a, b in itertools.pairwise(offsets)], x.dtype)


def _sums(x, starts, ends):
    return np.array([x[a:b].sum() for a, b in zip(starts, ends, strict=True)], x.dtype)


def right_slices(x, offsets):
    return _sums(x, offsets[:-1], offsets[1:])


def right_added(x, offsets):
    rows = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    out = np.zeros(offsets.size - 1, np.float64)
    with np.errstate(all="ignore"):
        np.add.at(out, rows, x.astype(np.float64))
    return out.astype(x.dtype)


def right_reduceat(x, offsets):
    starts, ends = offsets[:-1], offsets[1:]
    out = np.zeros(starts.size, x.dtype)
    full = np.flatnonzero(ends > starts)
    for row in full:
        out[row] = np.add.reduce(x[starts[row] : ends[row]])
    return out


def wrong_empty_rows(x, offsets):
    return np.add.reduceat(np.append(x, x.dtype.type(0)), offsets[:-1]).astype(x.dtype)


def wrong_last_element(x, offsets):
    ends = offsets[1:].copy()
    ends[-1] = max(ends[-1] - 1, offsets[-2])
    return _sums(x, offsets[:-1], ends)


def wrong_last_row(x, offsets):
    out = reference(x, offsets)
    out[-1] = 0
    return out


def wrong_even_rows(x, offsets):
    even = np.linspace(0, x.size, offsets.size).astype(int)
    return _sums(x, even[:-1], even[1:])


def wrong_inclusive(x, offsets):
    return _sums(x, offsets[:-1], offsets[1:] + 1)
