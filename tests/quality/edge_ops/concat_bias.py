"""A list of tensors joined, with a bias that may be None."""

import numpy as np

ROWS = 8


def _plus(x, bias):
    return x.copy() if bias is None else (x.astype("f4") + bias.astype("f4")).astype(x.dtype)


def right_joined_first(xs, bias):
    return _plus(np.concatenate(xs), bias)


def right_each_by_itself(xs, bias):
    return np.vstack([_plus(x, bias) for x in xs])


def right_rows(xs, bias):
    out = np.empty((sum(map(len, xs)), xs[0].shape[1]), xs[0].dtype)
    place = 0
    for x in xs:
        for start in range(0, len(x), ROWS):
            block = _plus(x[start : start + ROWS], bias)
            out[place : place + len(block)] = block
            place += len(block)
    return out


def bug_three_tensors_at_most(xs, bias):
    out = right_rows(xs, bias)
    out[3 * len(xs[0]) :] = 0
    return out


def bug_bias_of_the_first_only(xs, bias):
    return np.concatenate([_plus(x, bias if n == 0 else None) for n, x in enumerate(xs)])


def bug_no_bias_fails(xs, bias):
    return right_joined_first(xs, np.asarray(bias, xs[0].dtype))


def bug_no_bias_is_one(xs, bias):
    return right_rows(xs, np.ones(xs[0].shape[1], xs[0].dtype) if bias is None else bias)


def bug_interleaved(xs, bias):
    return _plus(np.stack(xs, axis=1).reshape(-1, xs[0].shape[1]), bias)


def bug_last_rows_not_biased(xs, bias):
    out = right_rows(xs, bias)
    whole = len(out) // ROWS * ROWS
    out[whole:] = np.concatenate(xs)[whole:]
    return out


def bug_last_bias_element(xs, bias):
    if bias is not None:
        bias = np.append(bias[:-1], bias[:1])
    return right_rows(xs, bias)


def bug_zero_bias_counts_as_none(xs, bias):
    return _plus(np.concatenate(xs), None if bias is None or not bias[0] else bias)
