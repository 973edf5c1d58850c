"""Sources of the ops that a new workspace gets: ports of kernels to numpy."""

SOFTMAX = '''\
"""Softmax over the last axis, as a kernel does it: float32 inside, the input's dtype outside."""

import numpy as np


def softmax(x):
    """Softmax of `x` over its last axis."""
    wide = x.astype(np.float32)
    weights = np.exp(wide - wide.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(x.dtype)
'''

RMSNORM = '''\
"""Root mean square normalisation of rows, accumulated in float32 tile by tile."""

import numpy as np

TILE = 128


def rmsnorm(x, weight, eps):
    """`x` [M, N] over the root of its rows' mean squares, times `weight` [N]."""
    wide = x.astype(np.float32)
    squares = np.zeros((x.shape[0], 1), np.float32)
    for start in range(0, x.shape[1], TILE):
        tile = wide[:, start : start + TILE]
        squares += (tile * tile).sum(axis=1, keepdims=True)
    scale = 1 / np.sqrt(squares / np.float32(x.shape[1]) + np.float32(eps))
    return (wide * scale * weight.astype(np.float32)).astype(x.dtype)
'''

MATMUL = '''\
"""Matrix product in tiles, accumulated in float32."""

import numpy as np

TILE = 32


def matmul(a, b):
    """`a` [M, K] times `b` [K, N]."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for start in range(0, a.shape[1], TILE):
        left = a[:, start : start + TILE].astype(np.float32)
        total += left @ b[start : start + TILE].astype(np.float32)
    return total.astype(a.dtype)
'''
