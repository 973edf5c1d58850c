"""Kernels and a tensor that the snippets of the documentation assume."""

import numpy as np

x = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)


def my_softmax(x):
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(x.dtype)


def my_matmul(a, b):
    return (a.astype(np.float32) @ b.astype(np.float32)).astype(a.dtype)
