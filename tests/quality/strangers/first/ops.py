"""The first set of bugs that a stranger would plant, one function each."""

import base
import numpy as np

F = np.float32


def softmax_scale(x):
    return base.softmax(x.astype(F), F(0.12)).astype(x.dtype)


def softmax_no_max(x):
    e = np.exp(x.astype(F))
    return (e / e.sum(-1, keepdims=True)).astype(x.dtype)


def softmax_max_of_first_tile(x):
    z = x.astype(F)
    e = np.exp(z - z[:, :128].max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)).astype(x.dtype)


def layernorm_eps_outside(x, w, b):
    z = x.astype(F)
    d = z - z.mean(-1, keepdims=True)
    return d / (np.sqrt((d * d).mean(-1, keepdims=True)) + F(1e-5)) * w + b


def layernorm_unbiased(x, w, b):
    z = x.astype(F)
    d = z - z.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).sum(-1, keepdims=True) / max(x.shape[-1] - 1, 1) + F(1e-5)) * w + b


def layernorm_mean_of_columns(x, w, b):
    z = x.astype(F)
    d = z - z.mean(0, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + F(1e-5)) * w + b


def rmsnorm_padded_count(x, w):
    z = x.astype(F)
    n = -(-x.shape[-1] // 64) * 64
    return z / np.sqrt((z * z).sum(-1, keepdims=True) / F(n) + F(1e-6)) * w


def rmsnorm_weight_shifted(x, w):
    return base.rmsnorm(x.astype(F), np.roll(w, 1))


def matmul_k_tail(a, b):
    k = a.shape[1] // 32 * 32
    return a[:, :k] @ b[:k]


def matmul_stale_accumulator(a, b):
    out = np.zeros((a.shape[0], b.shape[1]), F)
    acc = np.zeros((a.shape[0], 64), F)
    for j in range(0, b.shape[1], 64):
        w = min(64, b.shape[1] - j)
        acc[:, :w] += a @ b[:, j : j + w]
        out[:, j : j + w] = acc[:, :w]
    return out


def matmul_half_sum(a, b):
    acc = np.zeros((a.shape[0], b.shape[1]), np.float16)
    for k in range(a.shape[1]):
        acc += (a[:, k : k + 1] * b[k : k + 1]).astype(np.float16)
    return acc.astype(F)


def matmul_square_transposed(a, b):
    return a @ (b.T if b.shape[0] == b.shape[1] else b)


def gemv_last_row(a, x):
    y = a @ x
    if len(y) % 4 == 1:
        y[-1] = 0
    return y


def conv1d_flipped(x, w):
    return base.conv1d(x, w[:, :, ::-1])


def conv1d_shifted(x, w):
    p = np.pad(x, ((0, 0), (2, 0)))
    n = x.shape[1]
    return sum(w[:, :, t] @ p[:, t : t + n] for t in range(3))


def attention_no_scale(q, k, v):
    return base.softmax(q @ k.T) @ v


def causal_without_diagonal(q, k, v):
    s = q @ k.T * F(q.shape[1] ** -0.5)
    keep = np.tri(len(q), k=-1, dtype=bool)
    keep[0, 0] = True
    return base.softmax(np.where(keep, s, F(-np.inf))) @ v


def causal_one_ahead(q, k, v):
    s = q @ k.T * F(q.shape[1] ** -0.5)
    return base.softmax(np.where(np.tri(len(q), k=1, dtype=bool), s, F(-np.inf))) @ v


def grouped_heads_modulo(q, k, v):
    return np.stack([base.attention(q[h], k[h % len(k)], v[h % len(k)]) for h in range(len(q))])


def gelu_constant(x):
    return 0.5 * x * (1 + np.tanh(F(0.7978845608028654) * (x + F(0.44715) * x**3)))


def gelu_cut_below(x):
    return np.where(x < -2, 0, base.gelu(x)).astype(x.dtype)


def row_sum_tail(x):
    return x[:, : x.shape[1] // 32 * 32].sum(-1) if x.shape[1] >= 32 else x.sum(-1)


def row_max_from_zero(x):
    return np.maximum(x.max(-1), 0)


def cumsum_no_carry(x):
    return np.concatenate([np.cumsum(x[:, j : j + 128], -1) for j in range(0, x.shape[1], 128)], -1)


def gather_seven_bits(table, index):
    return table[index & 127]


def scatter_add_lost_duplicates(x, index, out):
    y = out.copy()
    y[index] += x
    return y


def topk_by_magnitude(x):
    order = np.argsort(-np.abs(x), -1, kind="stable")[:, :4]
    return np.take_along_axis(x, order, -1)


def cross_entropy_ignores_nothing(logits, labels):
    return base.cross_entropy(logits, np.where(labels == -100, 0, labels))


def cross_entropy_mean_of_all(logits, labels):
    return np.asarray(base.cross_entropy(logits, labels).sum() / F(len(labels)), F)


def transpose_whole_tiles(x):
    y = np.zeros(x.shape[::-1], x.dtype)
    r, c = x.shape[0] // 16 * 16, x.shape[1] // 16 * 16
    y[:c, :r] = x[:r, :c].T
    return y


def transpose_swapped_strides(x):
    return x.reshape(x.shape[::-1]).copy()


def quantize_truncates(x):
    return np.clip(np.trunc(x * 16), -128, 127).astype(np.int8)


def quantize_wraps(x):
    return np.rint(np.clip(x * 16, -1e6, 1e6)).astype(np.int32).astype(np.int8)


def rope_interleaved(x, cos, sin):
    c, s = cos[:, None], sin[:, None]
    a, b = x[..., 0::2], x[..., 1::2]
    y = np.empty_like(x)
    y[..., 0::2], y[..., 1::2] = a * c - b * s, a * s + b * c
    return y


def rope_sign(x, cos, sin):
    return base.rope(x, cos, -sin)


def maxpool_zero_padding(x):
    p = np.pad(x, ((0, 0), (1, 1)))
    n = x.shape[1]
    return np.max([p[:, t : t + n] for t in range(3)], 0)


def avgpool_always_three(x):
    p = np.pad(x, ((0, 0), (1, 1)))
    n = x.shape[1]
    return sum(p[:, t : t + n] for t in range(3)) / F(3)


def histogram_last_bin(index):
    y = base.histogram(index)
    y[63] = 0
    return y


def batched_first_batch(a, b):
    return np.einsum("bij,jk->bik", a, b[0])


def relu_drops_nan(x):
    return np.where(x > 0, x, 0).astype(x.dtype)


def leaky_slope(x):
    return np.where(x > 0, x, x * F(0.1)).astype(x.dtype)


def sigmoid_through_half(x):
    z = x.astype(np.float16).astype(F)
    return 1 / (1 + np.exp(-z))


def swiglu_halves_swapped(x):
    d = x.shape[-1] // 2
    return base.swiglu(np.concatenate([x[..., d:], x[..., :d]], -1))
