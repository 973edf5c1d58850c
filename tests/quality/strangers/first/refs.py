"""Plain formulas of the ops of the first set."""

import numpy as np


def softmax(x, scale=1.0):
    z = x * scale
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def softmax_eighth(x):
    return softmax(x, 0.125)


def layernorm(x, w, b):
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * w + b


def rmsnorm(x, w):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w


def matmul(a, b):
    return a @ b


def gemv(a, x):
    return a @ x


def conv1d(x, w):
    # x [C, L], w [O, C, 3], padding 1
    p = np.pad(x, ((0, 0), (1, 1)))
    n = x.shape[1]
    return sum(w[:, :, t] @ p[:, t : t + n] for t in range(3))


def attention(q, k, v):
    return softmax(q @ k.T, q.shape[1] ** -0.5) @ v


def causal(q, k, v):
    s = q @ k.T * q.shape[1] ** -0.5
    s = np.where(np.tri(len(q), dtype=bool), s, -np.inf)
    return softmax(s) @ v


def grouped(q, k, v):
    # q [Hq, T, D], k and v [Hk, T, D]
    g = len(q) // len(k)
    return np.stack([attention(q[h], k[h // g], v[h // g]) for h in range(len(q))])


def gelu(x):
    return 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))


def row_sum(x):
    return x.sum(-1)


def row_max(x):
    return x.max(-1)


def cumsum(x):
    return np.cumsum(x, -1)


def gather(table, index):
    return table[index]


def scatter_add(x, index, out):
    y = out.copy()
    np.add.at(y, index, x)
    return y


def topk(x):
    return -np.sort(-x, -1)[:, :4]


def cross_entropy(logits, labels):
    m = logits.max(-1, keepdims=True)
    lse = np.log(np.exp(logits - m).sum(-1)) + m[:, 0]
    keep = labels != -100
    safe = np.where(keep, labels, 0)
    return np.where(keep, lse - logits[np.arange(len(logits)), safe], 0)


def cross_entropy_mean(logits, labels):
    loss = cross_entropy(logits, labels)
    return np.asarray(loss.sum() / max((labels != -100).sum(), 1))


def transpose(x):
    return x.T.copy()


def quantize(x):
    return np.clip(np.rint(x * 16), -128, 127).astype(np.int8)


def rope(x, cos, sin):
    # x [T, H, 2*D], cos and sin [T, D]
    d = x.shape[-1] // 2
    a, b = x[..., :d], x[..., d:]
    c, s = cos[:, None], sin[:, None]
    return np.concatenate([a * c - b * s, a * s + b * c], -1)


def maxpool(x):
    p = np.pad(x, ((0, 0), (1, 1)), constant_values=-np.inf)
    n = x.shape[1]
    return np.max([p[:, t : t + n] for t in range(3)], 0)


def avgpool(x):
    p = np.pad(x, ((0, 0), (1, 1)))
    one = np.pad(np.ones(x.shape[1], x.dtype), 1)
    n = x.shape[1]
    return sum(p[:, t : t + n] for t in range(3)) / sum(one[t : t + n] for t in range(3))


def histogram(index):
    return np.bincount(index, minlength=64).astype(np.int32)


def batched(a, b):
    return np.einsum("bij,bjk->bik", a, b)


def relu(x):
    return np.maximum(x, 0)


def leaky(x):
    return np.where(x > 0, x, x * 0.01).astype(x.dtype)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def swiglu(x):
    d = x.shape[-1] // 2
    return x[..., :d] * sigmoid(x[..., :d]) * x[..., d:]
