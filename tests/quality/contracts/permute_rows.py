"""Rows put to the places that a permutation names."""

import numpy as np


def reference(x, order):
    out = np.empty_like(x)
    out[order] = x
    return out


def right_assigned(x, order):
    return reference(x, order)


def right_inverted(x, order):
    return x[np.argsort(order)]


def right_loop(x, order):
    out = np.zeros_like(x)
    for row, place in zip(x, order, strict=True):
        out[place] = row
    return out


def wrong_gathered(x, order):
    return x[order]


def wrong_reversed(x, order):
    return reference(x, order)[::-1]


def wrong_last_row(x, order):
    out = np.zeros_like(x)
    out[order[:-1]] = x[:-1]
    return out


def wrong_last_place(x, order):
    out = reference(x, order)
    out[-1] = x[-1]
    return out


def wrong_identity(x, order):
    return x.copy()
