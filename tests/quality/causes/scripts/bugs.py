"""Planted bugs, each a wrong version of an op of `ref.py`, as a careless port of a kernel has it.

`truths.py` says of each what really is its cause.
"""

from __future__ import annotations

import math

import formulas as ref
import numpy as np

F = np.float32


def softmax_no_max(x):
    e = np.exp(x)
    return e / e.sum(-1, keepdims=True)


def softmax_zero_padding(x):
    pad = -x.shape[-1] % 32
    padded = np.pad(x, ((0, 0), (0, pad)))
    return ref.softmax(padded)[:, : x.shape[-1]]


def softmax_pairs(x):
    y = ref.softmax(x)
    if x.shape[-1] % 2:
        y[:, -1] = 0
    return y


def log_softmax_of_softmax(x):
    return np.log(ref.softmax(x))


def log_softmax_base_two(x):
    return ref.log_softmax(x) * F(1.4426950408889634)


def logsumexp_first_tile(x):
    return ref.logsumexp(x[:, :64])


def logsumexp_without_max(x):
    return ref.logsumexp(x) - x.max(-1)


def layernorm_eps_outside(x, w, b):
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    return centred / (np.sqrt(variance) + F(1e-5)) * w + b


def layernorm_unbiased(x, w, b):
    n = x.shape[-1]
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred * centred).sum(-1, keepdims=True) / F(max(n - 1, 1))
    return centred / np.sqrt(variance + F(1e-5)) * w + b


def layernorm_no_bias(x, w, b):
    return ref.layernorm(x, w, np.zeros_like(b))


def layernorm_one_pass(x, w, b):
    mean = x.mean(-1, keepdims=True)
    variance = (x * x).mean(-1, keepdims=True) - mean * mean
    return (x - mean) / np.sqrt(np.maximum(variance, 0) + F(1e-5)) * w + b


def rmsnorm_no_weight(x, w):
    return ref.rmsnorm(x, np.ones_like(w))


def rmsnorm_sum(x, w):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + F(1e-6)) * w


def rmsnorm_no_eps(x, w):
    return x / np.sqrt((x * x).mean(-1, keepdims=True)) * w


def l2norm_overflow(x):
    squares = (x * x).sum(-1, keepdims=True)
    return x / np.maximum(np.sqrt(squares), F(1e-30))


def l2norm_no_root(x):
    top = np.maximum(np.abs(x).max(-1, keepdims=True), F(1e-30))
    scaled = x / top
    return scaled / np.maximum((scaled * scaled).sum(-1, keepdims=True), F(1e-30))


def matmul_k_tail(a, b):
    k = a.shape[1] // 16 * 16
    return a[:, :k] @ b[:k]


def matmul_square_transposed(a, b):
    return a @ b.T if b.shape[0] == b.shape[1] else a @ b


def matmul_half(a, b):
    total = np.zeros((a.shape[0], b.shape[1]), np.float16)
    for k in range(a.shape[1]):
        total += (a[:, k : k + 1] * b[k : k + 1]).astype(np.float16)
    return total.astype(a.dtype)


def matmul_strides(a, b):
    if a.size and not a.flags.c_contiguous:
        a = np.ascontiguousarray(a.T).reshape(a.shape)
    return a @ b


def matvec_stale(a, v):
    y = a @ v
    if len(y) % 2 and len(y) > 1:
        y[-1] = y[-2]
    return y


def matvec_rows(a, v):
    y = a @ v
    y[128:] = 0
    return y


def linear_bias_shifted(x, w, bias):
    return ref.linear(x, w, np.roll(bias, -1))


def linear_relu(x, w, bias):
    return np.maximum(ref.linear(x, w, bias), 0)


def attention_no_scale(q, k, v):
    return ref.softmax(q @ k.T) @ v


def attention_no_max(q, k, v):
    e = np.exp(q @ k.T / F(math.sqrt(q.shape[1])))
    return e / e.sum(-1, keepdims=True) @ v


def attention_key_tail(q, k, v):
    whole = k.shape[0] // 4 * 4
    return ref.attention(q, k[:whole], v[:whole]) if whole else np.zeros_like(q)


def attention_scale_d(q, k, v):
    return ref.softmax(q @ k.T / F(q.shape[1])) @ v


def causal_attention_mask_late(q, k, v):
    scores = q @ k.T / F(math.sqrt(q.shape[1]))
    allowed = np.tri(q.shape[0], k=1, dtype=bool)
    return ref.softmax(np.where(allowed, scores, F(-np.inf))) @ v


def causal_attention_small_mask(q, k, v):
    scores = q @ k.T / F(math.sqrt(q.shape[1]))
    allowed = np.tri(q.shape[0], dtype=bool)
    return ref.softmax(np.where(allowed, scores, scores - F(100))) @ v


def causal_attention_second_tile(q, k, v):
    scores = q @ k.T / F(math.sqrt(q.shape[1]))
    allowed = np.tri(q.shape[0], dtype=bool)
    allowed[:, 32:] = True
    return ref.softmax(np.where(allowed, scores, F(-np.inf))) @ v


def cumsum_no_carry(x):
    tiles = [np.cumsum(x[:, i : i + 32], axis=1) for i in range(0, x.shape[1], 32)]
    return np.concatenate(tiles, axis=1) if tiles else x.copy()


def cumsum_exclusive(x):
    y = np.zeros_like(x)
    y[:, 1:] = np.cumsum(x, axis=1)[:, :-1]
    return y


def argmax_last(x):
    n = x.shape[1]
    return (n - 1 - np.argmax(x[:, ::-1], axis=1)).astype(np.int32)


def argmax_nan_ignored(x):
    return np.argmax(np.where(np.isnan(x), F(-np.inf), x), axis=1).astype(np.int32)


def argmax_from_zero(x):
    best, at = np.zeros(len(x), x.dtype), np.zeros(len(x), np.int32)
    for j in range(x.shape[1]):
        better = ~(x[:, j] <= best) & ~np.isnan(best)
        best, at = np.where(better, x[:, j], best), np.where(better, np.int32(j), at)
    return at


def transpose_edge_rows(x):
    y = np.zeros(x.shape[::-1], x.dtype)
    whole = x.shape[0] // 8 * 8
    y[:, :whole] = x[:whole].T
    return y


def transpose_square(x):
    return x.copy() if x.shape[0] == x.shape[1] else np.ascontiguousarray(x.T)


def gelu_tanh(x):
    inner = F(math.sqrt(2 / math.pi)) * (x + F(0.044715) * x * x * x)
    return F(0.5) * x * (1 + np.tanh(inner))


def gelu_low(x):
    return np.where(x <= -50, x, ref.gelu(x)).astype(x.dtype)


def swiglu_swapped(x, g):
    return ref.swiglu(g, x)


def swiglu_overflow(x, g):
    e = np.exp(g)
    return x * g * (e / (1 + e))


def cross_entropy_negative_labels(logits, labels):
    picked = ref.log_softmax(logits)[np.arange(len(labels)), labels]
    return -picked


def cross_entropy_no_max(logits, labels):
    valid = labels >= 0
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    picked = logs[np.arange(len(labels)), np.where(valid, labels, 0)]
    return np.where(valid, -picked, 0).astype(logits.dtype)


def gather_off_by_one(table, rows):
    return table[np.maximum(rows - 1, 0)]


def gather_vectors_of_four(table, rows):
    y = np.zeros((len(rows), table.shape[1]), table.dtype)
    whole = table.shape[1] // 4 * 4
    y[:, :whole] = table[rows][:, :whole]
    return y


def axpy_strides(x, y):
    if not y.flags.c_contiguous:
        y = np.ascontiguousarray(y.T).reshape(y.shape)
    return 2 * x + y


def axpy_grid(x, y):
    out = (2 * x + y).copy()
    out[:, 256:] = x[:, 256:]
    return out


def variance_unbiased(x):
    n = x.shape[-1]
    return ref.variance(x) * F(n / max(n - 1, 1))


def variance_root(x):
    return np.sqrt(ref.variance(x))


def mean_padded(x):
    return x.sum(-1) / F(-(-x.shape[-1] // 32) * 32)


def mean_block(x):
    return x[:, :256].sum(-1) / F(x.shape[-1])


def rowmax_nan_lost(x):
    return np.fmax.reduce(x, axis=-1)


def rowmax_zero_padding(x):
    return ref.rowmax(np.pad(x, ((0, 0), (0, -x.shape[-1] % 32))))


def conv1d_flipped(x, w):
    return ref.conv1d(x, w[::-1])


def conv1d_no_halo(x, w):
    return np.concatenate([ref.conv1d(x[i : i + 64], w) for i in range(0, len(x), 64)] or [x])


def rope_sign(x, cos, sin):
    return ref.rope(x, cos, -sin)


def rope_first_position(x, cos, sin):
    return ref.rope(x, cos, np.broadcast_to(sin[:1], sin.shape))


def bias_relu_late(x, b):
    return np.maximum(x, 0) + b


def bias_relu_wrapped(x, b):
    return ref.bias_relu(x, b[np.arange(len(b)) % 64])


def gelu_scaled(x):
    return ref.gelu(x) * F(1.001)


def rowmax_first_rows(x):
    y = ref.rowmax(x)
    rows = np.arange(len(y))
    return y[np.where(rows >= 16, rows % 16, rows)]


def mean_wrong_axis(x):
    return x[:, : x.shape[0]].mean(0) if x.shape[0] == x.shape[1] else x.mean(-1)


def softmax_wrong_axis(x):
    return ref.softmax(x.T).T.copy()


def rmsnorm_half(x, w):
    return ref.rmsnorm(x.astype(np.float16).astype(x.dtype), w)
