"""Masks that are off by one, and lost edges of tiles: wrong versions of the formulas."""

from __future__ import annotations

import formulas as ref
import numpy as np

F = np.float32


def softmax_last_column(x):
    y = np.zeros_like(x)
    if x.shape[1] > 1:
        y[:, :-1] = ref.softmax(x[:, :-1])
    return y


def softmax_last_row(x):
    y = ref.softmax(x)
    y[-1:] = 0
    return y


def layernorm_last_as_zero(x, w, b):
    loaded = x.copy()
    loaded[:, -1:] = 0
    return ref.layernorm(loaded, w, b)


def mean_one_short(x):
    return x[:, :-1].sum(-1) / F(x.shape[-1])


def logsumexp_one_short(x):
    return ref.logsumexp(x[:, :-1]) if x.shape[1] > 1 else np.full(len(x), -np.inf, x.dtype)


def logsumexp_from_one(x):
    return ref.logsumexp(x[:, 1:]) if x.shape[1] > 1 else np.full(len(x), -np.inf, x.dtype)


def axpy_one_short(x, y):
    out = np.ascontiguousarray(2 * x + y)
    out.reshape(-1)[-1:] = 0
    return out


def gelu_last_column(x):
    y = np.zeros_like(x)
    y[:, :-1] = ref.gelu(x[:, :-1])
    return y


def mean_one_more(x):
    flat = np.append(x.reshape(-1), F(0))
    n = x.shape[1]
    beyond = flat[n::n] if n else np.zeros(len(x), x.dtype)
    return (x.sum(-1) + beyond[: len(x)]) / F(max(n, 1))


def cumsum_tile_edge(x):
    y = np.cumsum(x, axis=1)
    y[:, 31::32] = 0
    return y


def matmul_tile_edge(a, b):
    kept = np.arange(a.shape[1]) % 16 != 15
    return a[:, kept] @ b[kept]


def attention_one_key_less(q, k, v):
    return ref.attention(q, k[:-1], v[:-1]) if len(k) > 1 else np.zeros((len(q), v.shape[1]), F)


def causal_attention_strict(q, k, v):
    scores = q @ k.T / F(np.sqrt(q.shape[1]))
    allowed = np.tri(q.shape[0], k=-1, dtype=bool)
    y = np.zeros((len(q), v.shape[1]), q.dtype)
    y[1:] = ref.softmax(np.where(allowed, scores, F(-np.inf))[1:]) @ v
    return y


def bias_relu_tail(x, b):
    y = ref.bias_relu(x, b)
    y[:, y.shape[1] // 16 * 16 :] = 0
    return y


def conv1d_last(x, w):
    y = ref.conv1d(x, w)
    y[-1:] = 0
    return y


def mean_tail_tile(x):
    return x[:, : x.shape[1] // 32 * 32].sum(-1) / F(x.shape[1])


def matvec_last_stale(a, v):
    y = ref.matvec(a, v)
    y[-1:] = y[:1] + 1
    return y


def softmax_eight_of_each(x):
    y = ref.softmax(x)
    y[:, 7::8] = 0
    return y
