"""A step of SGD that changes the weights in place."""

import numpy as np


def _step(w, g):
    return (w.astype(np.float32) - np.float32(0.125) * g.astype(np.float32)).astype(w.dtype)


def right_none(w, g):
    w[...] = _step(w, g)


def right_returns_it(w, g):
    w[...] = _step(w, g)
    return w


def right_rows(w, g):
    for row, step in zip(w, g, strict=True):
        row[:] = _step(row, step)


def bug_not_in_place(w, g):
    w = _step(w, g)


def bug_last_row_left(w, g):
    if len(w) > 1:
        w[:-1] = _step(w[:-1], g[:-1])
    else:
        w[...] = _step(w, g)


def bug_gradient_changed(w, g):
    g *= np.asarray(0.125, g.dtype)
    w -= g


def bug_twice(w, g):
    w[...] = _step(_step(w, g), g)


def bug_sign(w, g):
    w[...] = _step(w, -g)
