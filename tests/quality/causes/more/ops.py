"""Ops with a bug each; see `truths.toml`."""

import numpy as np


def _soft(s):
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


# ---- activations
def gelu_tanh_1(x):
    y = 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    return np.where(x < -2, x.dtype.type(0), y)


def gelu_tanh_2(x):
    return 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x * x)))


def softplus_1(x):
    y = np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
    return np.where(x > 4, x, y)


def softplus_2(x):
    with np.errstate(over="ignore"):
        return np.log1p(np.exp(x))


def prelu_1(x, slope):
    _b, c, n = x.shape
    s = slope[np.arange(n) % c]
    return np.where(x >= 0, x, x * s[None, None, :])


def prelu_2(x, slope):
    return np.where(x >= -1, x, x * slope[None, :, None])


def hardswish_1(x):
    return x * np.maximum(x + 3, 0) / 6


def hardswish_2(x):
    flat = x.reshape(-1).copy()
    n = flat.size // 4 * 4
    flat[:n] = flat[:n] * np.clip(flat[:n] + 3, 0, 6) / 6
    return flat.reshape(x.shape)


def swiglu_1(x):
    gate, up = x[..., 0::2], x[..., 1::2]
    return gate / (1 + np.exp(-gate)) * up


def swiglu_2(x):
    gate, up = np.split(x, 2, axis=-1)
    y = gate / (1 + np.exp(-gate)) * up
    n = y.shape[-1] // 4 * 4
    y[..., n:] = gate[..., n:] * up[..., n:]
    return y


# ---- softmax
def softmax_1(x):
    m = np.full((*x.shape[:-1], 1), -np.inf, x.dtype)
    total = np.zeros((*x.shape[:-1], 1), x.dtype)
    for at in range(0, x.shape[-1], 32):
        block = x[..., at : at + 32]
        m = np.maximum(m, block.max(axis=-1, keepdims=True))
        total = total + np.exp(block - m).sum(axis=-1, keepdims=True)
    return np.exp(x - m) / total


def softmax_2(x):
    n = x.shape[-1]
    p = np.zeros((*x.shape[:-1], -(-n // 16) * 16), x.dtype)
    p[..., :n] = x
    return _soft(p)[..., :n]


def softmax_3(x):
    with np.errstate(all="ignore"):
        e = np.exp(x)
        return e / e.sum(axis=-1, keepdims=True)


def log_softmax_channels_1(x):
    z = x - x.max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def log_softmax_channels_2(x):
    z = x - x.max(axis=1, keepdims=True)
    tiny = np.finfo(x.dtype).tiny
    return z - np.log(np.maximum(np.exp(z[:, :32]).sum(axis=1, keepdims=True), tiny))


def masked_softmax_1(scores, mask):
    z = np.where(mask, scores, scores.dtype.type(0))
    return _soft(z)


def masked_softmax_2(scores, mask):
    z = np.where(mask, scores, scores.dtype.type(-10))
    return _soft(z)


# ---- norms
def layer_norm_1(x, weight, bias, eps):
    mean = x.mean(axis=-1, keepdims=True)
    var = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / (np.sqrt(var) + eps) * weight + bias


def layer_norm_2(x, weight, bias, eps):
    mean = x.mean(axis=-1, keepdims=True)
    var = ((x - mean) ** 2).sum(axis=-1, keepdims=True) / max(x.shape[-1] - 1, 1)
    return (x - mean) / np.sqrt(var + eps) * weight + bias


def layer_norm_3(x, weight, bias, eps):
    n = x.shape[-1]
    pad = np.zeros((*x.shape[:-1], -(-n // 8) * 8), x.dtype)
    pad[..., :n] = x
    mean = pad.sum(axis=-1, keepdims=True) / n
    var = ((pad - mean) ** 2).sum(axis=-1, keepdims=True) / n
    return (x - mean) / np.sqrt(var + eps) * weight + bias


def rms_norm_1(x, weight):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6) * (1 + weight)


def rms_norm_2(x, weight):
    with np.errstate(over="ignore"):
        h = x.astype(np.float16)
        s = (h * h).sum(axis=-1, keepdims=True, dtype=np.float16)
    s = s.astype(x.dtype) / x.shape[-1]
    return x / np.sqrt(s + 1e-6) * weight


def rms_norm_3(x, weight):
    s = (x[:, :256] ** 2).sum(axis=-1, keepdims=True) / x.shape[-1]
    return x / np.sqrt(s + 1e-6) * weight


def group_norm_1(x, weight, bias, groups):
    b, c, n = x.shape
    g = x.reshape(b, -1, groups, n)
    mean = g.mean(axis=(1, 3), keepdims=True)
    var = ((g - mean) ** 2).mean(axis=(1, 3), keepdims=True)
    y = ((g - mean) / np.sqrt(var + 1e-5)).reshape(b, c, n)
    return y * weight[:, None] + bias[:, None]


def group_norm_2(x, weight, bias, groups):
    b, c, n = x.shape
    g = x.reshape(b, groups, -1)
    mean = g.mean(axis=-1, keepdims=True)
    var = ((g - mean) ** 2).mean(axis=-1, keepdims=True)
    y = ((g - mean) / np.sqrt(var + 1e-5)).reshape(b, c, n)
    at = np.arange(c) // (c // groups)
    return y * weight[at][:, None] + bias[:, None]


# ---- attention
def causal_attention_1(q, k, v):
    s = q @ k.transpose(0, 2, 1)
    i = np.arange(q.shape[1])
    return _soft(np.where(i[None, :] <= i[:, None], s, -np.inf)) @ v


def causal_attention_2(q, k, v):
    s = q @ k.transpose(0, 2, 1) / float(np.sqrt(q.shape[-1]))
    i = np.arange(q.shape[1])
    return _soft(np.where(i[None, :] // 16 <= i[:, None] // 16, s, -np.inf)) @ v


def causal_attention_3(q, k, v):
    h, n, d = q.shape
    s = q @ k.transpose(0, 2, 1) / float(np.sqrt(d))
    i = np.arange(n)
    s = np.where(i[None, :] <= i[:, None], s, -np.inf)
    m = np.full((h, n, 1), -np.inf, q.dtype)
    total = np.zeros((h, n, 1), q.dtype)
    acc = np.zeros((h, n, d), q.dtype)
    for at in range(0, n, 16):
        blk = s[:, :, at : at + 16]
        new = np.maximum(m, blk.max(axis=-1, keepdims=True))
        p = np.exp(blk - new)
        fix = np.exp(m - new)
        total = total * fix + p.sum(axis=-1, keepdims=True)
        acc = acc + p @ v[:, at : at + 16]
        m = new
    return acc / total


def gqa_attention_1(q, k, v):
    at = np.arange(q.shape[0]) % k.shape[0]
    return _soft(q @ k[at].transpose(0, 2, 1) / float(np.sqrt(q.shape[-1]))) @ v[at]


def gqa_attention_2(q, k, v):
    g = q.shape[0] // k.shape[0]
    n = max(k.shape[1] // 8, 1) * 8
    k, v = np.repeat(k[:, :n], g, axis=0), np.repeat(v[:, :n], g, axis=0)
    return _soft(q @ k.transpose(0, 2, 1) / float(np.sqrt(q.shape[-1]))) @ v


def gqa_attention_3(q, k, v):
    g = q.shape[0] // k.shape[0]
    t = k.shape[1]
    n = -(-t // 8) * 8
    kp = np.zeros((k.shape[0], n, k.shape[2]), k.dtype)
    vp = np.zeros_like(kp)
    kp[:, :t], vp[:, :t] = k, v
    k, v = np.repeat(kp, g, axis=0), np.repeat(vp, g, axis=0)
    return _soft(q @ k.transpose(0, 2, 1) / float(np.sqrt(q.shape[-1]))) @ v


def window_attention_1(q, k, v, window):
    s = q @ k.T / float(np.sqrt(q.shape[-1]))
    i = np.arange(q.shape[0])
    back = i[:, None] - i[None, :]
    return _soft(np.where((back >= 0) & (back <= window), s, -np.inf)) @ v


def window_attention_2(q, k, v, window):
    s = q @ k.T / float(np.sqrt(q.shape[-1]))
    i = np.arange(q.shape[0])
    back = i[:, None] - i[None, :]
    first = np.maximum(i - window + 1, 0) // 8 * 8
    return _soft(np.where((back >= 0) & (i[None, :] >= first[:, None]), s, -np.inf)) @ v


# ---- matmul
def linear_1(x, w, b):
    out = np.zeros((x.shape[0], w.shape[0]), x.dtype)
    for at in range(0, x.shape[1], 64):
        out += x[:, at : at + 64] @ w[:, at : at + 64].T + b
    return out


def linear_2(x, w, b):
    n = x.shape[1] // 16 * 16
    return x[:, :n] @ w[:, :n].T + b


def linear_3(x, w, b):
    return x @ w.T + b[np.arange(x.shape[0]) % b.size][:, None]


def batched_matmul_1(a, b):
    return a @ b[:1]


def batched_matmul_2(a, b):
    n, m, k = a.shape
    flat = a.reshape(n, -1)
    at = (np.arange(m)[:, None] * m + np.arange(k)) % (m * k)
    return flat[:, at] @ b


def batched_matmul_3(a, b):
    out = a @ b
    out[:, 64:] = 0
    return out


def matmul_tn_1(a, b):
    out = np.zeros((a.shape[1], b.shape[1]), np.float16)
    for at in range(0, a.shape[0], 16):
        out = (out + (a[at : at + 16].T @ b[at : at + 16])).astype(np.float16)
    return out.astype(a.dtype)


def matmul_tn_2(a, b):
    sa = np.zeros((32, a.shape[1]), a.dtype)
    sb = np.zeros((32, b.shape[1]), b.dtype)
    out = np.zeros((a.shape[1], b.shape[1]), a.dtype)
    for at in range(0, a.shape[0], 32):
        n = min(32, a.shape[0] - at)
        sa[:n], sb[:n] = a[at : at + n], b[at : at + n]
        out += sa.T @ sb
    return out


# ---- reductions and scans
def row_sum_1(x):
    return x[:, :128].sum(axis=-1)


def row_sum_2(x):
    x = x.copy()
    n = x.shape[1]
    while n > 1:
        x[:, : n // 2] += x[:, n // 2 : n // 2 * 2]
        n //= 2
    return x[:, 0].copy()


def row_sum_3(x):
    for at in range(0, x.shape[1], 128):
        acc = x[:, at : at + 128].sum(axis=1)
    return acc


def row_var_1(x):
    n = x.shape[1]
    d = x - x.mean(axis=-1, keepdims=True)
    full = n // 32 * 32
    d[:, full:] = x[:, full:]
    return (d * d).sum(axis=-1) / n


def row_var_2(x):
    m2 = np.zeros(x.shape[0], x.dtype)
    for at in range(0, x.shape[1], 32):
        blk = x[:, at : at + 32]
        m2 += ((blk - blk.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    return m2 / x.shape[1]


def col_max_1(x):
    return np.maximum(x.max(axis=0), x.dtype.type(0))


def col_max_2(x):
    return np.fmax.reduce(x, axis=0)


def col_max_3(x):
    n = x.shape[0]
    return x[: max(n - n % 8, 1)].max(axis=0) if n > 8 else x.max(axis=0)


def cumsum_1(x):
    out = np.empty_like(x)
    carry = np.zeros(x.shape[0], x.dtype)
    for at in range(0, x.shape[1], 32):
        local = np.cumsum(x[:, at : at + 32], axis=1)
        out[:, at : at + 32] = local + carry[:, None]
        carry = local[:, -1]
    return out


def cumsum_2(x):
    out = np.zeros_like(x)
    out[:, 1:] = np.cumsum(x, axis=1)[:, :-1]
    return out


def linear_scan_1(a, x):
    out, h = np.empty_like(x), np.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        h = x[:, t] if t % 16 == 0 else a[:, t] * h + x[:, t]
        out[:, t] = h
    return out


def linear_scan_2(a, x):
    out = np.empty_like(x)
    h = np.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        h = a[:, t] * h + (1 - a[:, t]) * x[:, t]
        out[:, t] = h
    return out


# ---- ragged, gather, scatter
def ragged_mean_1(x, offsets):
    out = np.zeros((offsets.size - 1, x.shape[1]), x.dtype)
    for r in range(offsets.size - 1):
        n = int(offsets[r + 1] - offsets[r])
        with np.errstate(all="ignore"):
            out[r] = x[offsets[r] : offsets[r + 1]].sum(axis=0) / x.dtype.type(n)
    return out


def ragged_mean_2(x, offsets):
    out = np.zeros((offsets.size - 1, x.shape[1]), x.dtype)
    for r in range(offsets.size - 1):
        n = int(offsets[r + 1] - offsets[r])
        if n:
            out[r] = x[offsets[r] : offsets[r] + min(n, 32)].sum(axis=0) / n
    return out


def ragged_mean_3(x, offsets):
    out = np.zeros((offsets.size - 1, x.shape[1]), x.dtype)
    last = offsets.size - 2
    for r in range(offsets.size - 1):
        n = int(offsets[r + 1] - offsets[r])
        if n:
            stop = offsets[r + 1] - (1 if r == last else 0)
            out[r] = x[offsets[r] : stop].sum(axis=0) / n
    return out


def scatter_add_1(base, index, x):
    out = base.copy()
    out[index] += x
    return out


def scatter_add_2(base, index, x):
    out = base.copy()
    kept = index > 0
    np.add.at(out, index[kept], x[kept])
    return out


def scatter_add_3(base, index, x):
    out = np.zeros_like(base)
    np.add.at(out, index, x)
    return out


def embedding_1(table, index):
    return table[index]


def embedding_2(table, index):
    small = np.maximum(index, 0) & 127
    return np.where(index[:, None] < 0, table.dtype.type(0), table[small])


def embedding_3(table, index):
    out = np.where(index[:, None] < 0, table.dtype.type(0), table[np.maximum(index, 0)])
    out[:, table.shape[1] // 4 * 4 :] = 0
    return out
