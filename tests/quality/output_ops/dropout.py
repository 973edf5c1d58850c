"""A quarter of the elements is 0, the others are scaled."""

import random

import numpy as np


def _scaled(x, keep):
    return np.where(keep, x.astype(np.float32) / np.float32(0.75), 0).astype(x.dtype)


def right_vectors(x):
    return _scaled(x, np.random.random(x.shape) >= 0.25)


def right_own_generator(x):
    return _scaled(x, np.random.default_rng().random(x.shape) < 0.75)


def right_loop(x):
    keep = [random.random() < 0.75 for _ in range(x.size)]
    return _scaled(x, np.reshape(keep, x.shape))


def bug_not_scaled(x):
    return np.where(np.random.random(x.shape) >= 0.25, x, 0).astype(x.dtype)


def bug_shares_exchanged(x):
    return np.where(np.random.random(x.shape) < 0.25, x / 0.25, 0).astype(x.dtype)


def bug_one_mask_for_all_rows(x):
    return _scaled(x, np.random.random(x.shape[1]) >= 0.25)


def bug_nothing(x):
    return x.copy()


def bug_last_row_kept(x):
    y = right_vectors(x)
    y[48:] = x[48:]
    return y


def bug_reads_the_next_row(x):
    return right_vectors(np.roll(x, -1, 0))


def bug_reads_transposed(x):
    return right_vectors(np.ascontiguousarray(x.T).reshape(x.shape))


def bug_never_reads(x):
    return right_vectors(np.random.standard_normal(x.shape).astype(x.dtype))
