"""Rows added to those that an index names, as often as it names them."""

import numpy as np


def reference(base, index, rows):
    out = base.copy()
    np.add.at(out, index, rows)
    return out


def right_add_at(base, index, rows):
    with np.errstate(all="ignore"):
        return reference(base, index, rows)


def right_loop(base, index, rows):
    out = base.astype(np.float64)
    for place, row in zip(index, rows, strict=True):
        out[place] += row
    return out.astype(base.dtype)


def right_grouped(base, index, rows):
    out = base.astype(np.float64)
    for place in np.unique(index):
        out[place] += rows[index == place].astype(np.float64).sum(axis=0)
    return out.astype(base.dtype)


def wrong_duplicates(base, index, rows):
    out = base.copy()
    out[index] += rows
    return out


def wrong_last_place(base, index, rows):
    kept = index < max(base.shape[0] - 1, 1)
    return reference(base, index[kept], rows[kept])


def wrong_first_place(base, index, rows):
    kept = index > 0
    return reference(base, index[kept], rows[kept])


def wrong_overwrites(base, index, rows):
    out = base.copy()
    out[index] = rows
    return out


def wrong_last_row(base, index, rows):
    return reference(base, index[:-1], rows[:-1])
