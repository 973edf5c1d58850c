"""25 ops as their plain formulas: what the planted bugs in `bugs.py` are held against."""

from __future__ import annotations

import math

import numpy as np

_erf = np.vectorize(math.erf, otypes=[np.float64])


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def log_softmax(x):
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def logsumexp(x):
    top = x.max(-1)
    return top + np.log(np.exp(x - top[:, None]).sum(-1))


def layernorm(x, w, b):
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    return centred / np.sqrt(variance + 1e-5) * w + b


def rmsnorm(x, w):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w


def l2norm(x):
    top = np.maximum(np.abs(x).max(-1, keepdims=True), 1e-30)
    scaled = x / top
    return scaled / np.maximum(np.sqrt((scaled * scaled).sum(-1, keepdims=True)), 1e-30)


def matmul(a, b):
    return a @ b


def matvec(a, v):
    return a @ v


def linear(x, w, bias):
    return x @ w.T + bias


def attention(q, k, v):
    return softmax(q @ k.T / math.sqrt(q.shape[1])) @ v


def causal_attention(q, k, v):
    scores = q @ k.T / math.sqrt(q.shape[1])
    allowed = np.tri(q.shape[0], dtype=bool)
    return softmax(np.where(allowed, scores, -np.inf)) @ v


def cumsum(x):
    return np.cumsum(x, axis=-1)


def argmax(x):
    return np.argmax(x, axis=-1).astype(np.int32)


def transpose(x):
    return np.ascontiguousarray(x.T)


def gelu(x):
    return (0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)))).astype(x.dtype)


def swiglu(x, g):
    return x * g / (1.0 + np.exp(-g))


def cross_entropy(logits, labels):
    valid = labels >= 0
    picked = log_softmax(logits)[np.arange(len(labels)), np.where(valid, labels, 0)]
    return np.where(valid, -picked, 0.0).astype(logits.dtype)


def gather(table, rows):
    return table[rows]


def axpy(x, y):
    return 2.0 * x + y


def variance(x):
    centred = x - x.mean(-1, keepdims=True)
    return (centred * centred).mean(-1)


def mean(x):
    return x.mean(-1)


def rowmax(x):
    return x.max(-1)


def conv1d(x, w):
    padded = np.concatenate([np.zeros(1, x.dtype), x, np.zeros(1, x.dtype)])
    return w[0] * padded[:-2] + w[1] * padded[1:-1] + w[2] * padded[2:]


def rope(x, cos, sin):
    half = x.shape[1] // 2
    first, second = x[:, :half], x[:, half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=1)


def bias_relu(x, b):
    return np.maximum(x + b, 0)
