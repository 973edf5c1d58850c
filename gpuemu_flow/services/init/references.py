"""Sources of the references that a new workspace gets: plain formulas in numpy."""

SOFTMAX = '''\
"""Softmax, as a textbook has it: what scripts/softmax.py is held against, in float64."""

import numpy as np


def softmax(x):
    """Softmax of `x` over its last axis."""
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)
'''

RMSNORM = '''\
"""Root mean square normalisation, as a textbook has it."""

import numpy as np


def rmsnorm(x, weight, eps):
    """`x` [M, N] over the root of its rows' mean squares, times `weight` [N]."""
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight
'''

MATMUL = '''\
"""Matrix product, by numpy."""


def matmul(a, b):
    """`a` [M, K] times `b` [K, N]."""
    return a @ b
'''
