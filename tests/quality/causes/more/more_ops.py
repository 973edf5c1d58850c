"""More ops with a bug each; see `truths.toml`."""

import numpy as np


def _soft(s):
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


# ---- convolution, pooling
def conv1d_same_1(x, w):
    k = w.shape[2]
    p = np.pad(x, ((0, 0), (0, 0), (k // 2, k // 2)), mode="edge")
    return sum(np.einsum("bcl,oc->bol", p[:, :, j : j + x.shape[2]], w[:, :, j]) for j in range(k))


def conv1d_same_2(x, w):
    k = w.shape[2]
    p = np.pad(x, ((0, 0), (0, 0), (k // 2, k // 2)))
    return sum(
        np.einsum("bcl,oc->bol", p[:, :, j : j + x.shape[2]], w[:, :, k - 1 - j]) for j in range(k)
    )


def conv1d_same_3(x, w):
    k, n = w.shape[2], x.shape[2]
    out = np.zeros((x.shape[0], w.shape[0], n), x.dtype)
    for at in range(0, n, 16):
        tile = x[:, :, at : at + 16]
        p = np.pad(tile, ((0, 0), (0, 0), (k // 2, k // 2)))
        for j in range(k):
            out[:, :, at : at + 16] += np.einsum(
                "bcl,oc->bol", p[:, :, j : j + tile.shape[2]], w[:, :, j]
            )
    return out


def conv2d_valid_1(x, w):
    b, c, h, wd = x.shape
    flat = x.reshape(b, c, -1)
    oh, ow = h - 2, wd - 2
    out = np.zeros((b, w.shape[0], oh, ow), x.dtype)
    for i in range(3):
        for j in range(3):
            at = ((np.arange(oh)[:, None] + i) * h + np.arange(ow) + j) % (h * wd)
            out += np.einsum("bchw,oc->bohw", flat[:, :, at], w[:, :, i, j])
    return out


def conv2d_valid_2(x, w):
    oh, ow = x.shape[2] - 2, x.shape[3] - 2
    for at in range(0, x.shape[1], 4):
        out = np.zeros((x.shape[0], w.shape[0], oh, ow), x.dtype)
        for i in range(3):
            for j in range(3):
                out += np.einsum(
                    "bchw,oc->bohw",
                    x[:, at : at + 4, i : i + oh, j : j + ow],
                    w[:, at : at + 4, i, j],
                )
    return out


def max_pool2d_ceil_1(x):
    b, c, h, w = x.shape
    p = np.zeros((b, c, h + h % 2, w + w % 2), x.dtype)
    p[:, :, :h, :w] = x
    return p.reshape(b, c, p.shape[2] // 2, 2, p.shape[3] // 2, 2).max(axis=(3, 5))


def max_pool2d_ceil_2(x):
    b, c, h, w = x.shape
    flat = x.reshape(b, c, -1)
    out = np.empty((b, c, (h + 1) // 2, (w + 1) // 2), x.dtype)
    for i in range(out.shape[2]):
        for j in range(out.shape[3]):
            at = [r * w + s for r in (2 * i, 2 * i + 1) for s in (2 * j, 2 * j + 1)]
            at = [min(a, h * w - 1) for a in at]
            out[:, :, i, j] = flat[:, :, at].max(axis=2)
    return out


def avg_pool3_1(x):
    p = np.pad(x, ((0, 0), (1, 1)))
    n = x.shape[1]
    return (p[:, :n] + p[:, 1 : n + 1] + p[:, 2:]) / 3


def avg_pool3_2(x):
    n = x.shape[1]
    out = np.empty_like(x)
    for i in range(n):
        at = [j for j in (i - 1, i, i + 1) if 0 <= j < n]
        at = [i if j == i + 1 and j % 32 == 0 else j for j in at]
        out[:, i] = x[:, at].mean(axis=1)
    return out


# ---- quantisation
def fake_quant_rows_1(x):
    scale = np.maximum(np.abs(x).max(axis=1, keepdims=True), x.dtype.type(1e-6)) / 127
    return np.clip(np.trunc(x / scale), -127, 127) * scale


def fake_quant_rows_2(x):
    scale = np.maximum(np.abs(x).max(), x.dtype.type(1e-6)) / 127
    return np.clip(np.rint(x / scale), -127, 127) * scale


def fake_quant_rows_3(x):
    scale = np.maximum(x.max(axis=1, keepdims=True), x.dtype.type(1e-6)) / 127
    return np.clip(np.rint(x / scale), -127, 127) * scale


def dequant_int4_1(packed, scale):
    both = np.stack([packed >> 4, packed & 15], axis=2).reshape(packed.shape[0], -1)
    return (both.astype(scale.dtype) - 8) * np.repeat(scale, 16, axis=1)


def dequant_int4_2(packed, scale):
    both = np.stack([packed & 15, packed >> 4], axis=2).reshape(packed.shape[0], -1)
    return (both.astype(scale.dtype) - 7) * np.repeat(scale, 16, axis=1)


def dequant_int4_3(packed, scale):
    both = np.stack([packed & 15, packed >> 4], axis=2).reshape(packed.shape[0], -1)
    at = np.arange(both.shape[1]) // 32
    return (both.astype(scale.dtype) - 8) * scale[:, at]


# ---- losses
def _lse(x):
    m = x.max(axis=1)
    return m + np.log(np.exp(x - m[:, None]).sum(axis=1))


def cross_entropy_1(logits, target):
    kept = target >= 0
    loss = _lse(logits) - logits[np.arange(target.size), np.where(kept, target, 0)]
    return np.asarray(np.where(kept, loss, 0).sum() / target.size, logits.dtype)


def cross_entropy_2(logits, target):
    kept = target >= 0
    loss = _lse(logits) - logits[np.arange(target.size), np.where(kept, target, 0)]
    return np.asarray(loss.sum() / max(int(kept.sum()), 1), logits.dtype)


def cross_entropy_3(logits, target):
    kept = target >= 0
    loss = _lse(logits[:, :64]) - logits[np.arange(target.size), np.where(kept, target, 0)]
    return np.asarray(np.where(kept, loss, 0).sum() / max(int(kept.sum()), 1), logits.dtype)


def smoothed_loss_1(logits, target):
    logp = logits - _lse(logits)[:, None]
    return -(logp[np.arange(target.size), target] + 0.1 * logp.mean(axis=1))


def smoothed_loss_2(logits, target):
    logp = logits - _lse(logits)[:, None]
    c = -(-logits.shape[1] // 8) * 8
    return -(0.9 * logp[np.arange(target.size), target] + 0.1 * logp.sum(axis=1) / c)


# ---- others
def _angles(x, start=0):
    s, d = x.shape[0], x.shape[2] // 2
    ang = (np.arange(s) + start)[:, None] * 10000.0 ** (-np.arange(d) / d)
    return np.cos(ang).astype(x.dtype)[:, None], np.sin(ang).astype(x.dtype)[:, None], d


def rope_1(x):
    cos, sin, _d = _angles(x)
    a, b = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2], out[..., 1::2] = a * cos - b * sin, a * sin + b * cos
    return out


def rope_2(x):
    cos, sin, d = _angles(x, 1)
    a, b = x[..., :d], x[..., d:]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def rope_3(x):
    cos, sin, d = _angles(x)
    a, b = x[..., :d], x[..., d:]
    return np.concatenate([a * cos + b * sin, b * cos - a * sin], axis=-1)


def histogram_1(x):
    at = np.floor(x * 16).astype(np.int64)
    return np.bincount(at[at < 16], minlength=16).astype(x.dtype)


def histogram_2(x):
    at = np.minimum(np.floor(x * 16), 15).astype(np.int64)
    out = np.zeros(16, x.dtype)
    for start in range(0, x.size, 32):
        warp = at[start : start + 32]
        out[np.unique(warp)] += 1
    return out


def topk_values_1(x, k):
    x = x.copy()
    out = np.empty((x.shape[0], k), x.dtype)
    for j in range(k):
        m = x.max(axis=1)
        out[:, j] = m
        x[x == m[:, None]] = -1e30
    return out


def topk_values_2(x, k):
    n = 1
    while n < x.shape[1]:
        n *= 2
    p = np.zeros((x.shape[0], n), x.dtype)
    p[:, : x.shape[1]] = x
    return -np.sort(-p, axis=1)[:, :k]


def upsample2_linear_1(x):
    n = x.shape[1]
    src = np.arange(2 * n) * ((n - 1) / (2 * n - 1))
    lo = np.floor(src).astype(np.int64)
    hi = np.minimum(lo + 1, n - 1)
    f = (src - lo).astype(x.dtype)
    return x[:, lo] * (1 - f) + x[:, hi] * f


def upsample2_linear_2(x):
    n = x.shape[1]
    src = (np.arange(2 * n) + 0.5) / 2 - 0.5
    lo = np.floor(src).astype(np.int64)
    hi = np.minimum(lo + 1, n - 1)
    f = (src - lo).astype(x.dtype)
    return x[:, lo] * (1 - f) + x[:, hi] * f


def moe_top1_1(x, gates, w):
    p, e = _soft(gates), gates.argmax(axis=1)
    out = np.einsum("td,tdf->tf", x, w[e]) * p[np.arange(e.size), e][:, None]
    used = {}
    for t, at in enumerate(e):
        used[int(at)] = used.get(int(at), 0) + 1
        if used[int(at)] > 4:
            out[t] = 0
    return out


def moe_top1_2(x, gates, w):
    _p, e = _soft(gates), gates.argmax(axis=1)
    return np.einsum("td,tdf->tf", x, w[e]) * gates[np.arange(e.size), e][:, None]


def moe_top1_3(x, gates, w):
    p, e = _soft(gates), gates.argmax(axis=1)
    return np.einsum("td,tdf->tf", x, w[e & 7]) * p[np.arange(e.size), e][:, None]


def cdist_1(x, y):
    n = x.shape[1] // 4 * 4
    return np.sqrt(((x[:, None, :n] - y[None, :, :n]) ** 2).sum(axis=-1))


def cdist_2(x, y):
    return ((x[:, None] - y[None]) ** 2).sum(axis=-1)


def reflect_pad3_1(x):
    return np.pad(x, ((0, 0), (3, 3)), mode="symmetric")


def reflect_pad3_2(x):
    out = np.pad(x, ((0, 0), (3, 3)), mode="reflect")
    out[:, -3:] = x[:, -1:]
    return out


def huber_1(pred, target):
    d = np.abs(pred - target)
    return np.where(d <= 1, 0.5 * d * d, d)


def huber_2(pred, target):
    d = pred - target
    return np.where(d <= 1, 0.5 * d * d, d - 0.5)


def masked_mean_pool_1(x, lengths):
    keep = (np.arange(x.shape[1]) < lengths[:, None]).astype(x.dtype)
    return (x * keep[..., None]).sum(axis=1) / x.shape[1]


def masked_mean_pool_2(x, lengths):
    keep = (np.arange(x.shape[1]) <= lengths[:, None]).astype(x.dtype)
    return (x * keep[..., None]).sum(axis=1) / np.maximum(lengths, 1).astype(x.dtype)[:, None]


def adam_step_1(p, g, m, v, step):
    m1 = 0.9 * m + 0.1 * g
    v1 = 0.99 * v + 0.01 * g * g
    return p - 0.1 * m1 / (np.sqrt(v1) + 1e-3)


def adam_step_2(p, g, m, v, step):
    m1 = 0.9 * m + 0.1 * g
    v1 = 0.99 * v + 0.01 * g
    mh, vh = m1 / (1 - 0.9**step), np.maximum(v1, 0) / (1 - 0.99**step)
    return p - 0.1 * mh / (np.sqrt(vh) + 1e-3)


def transpose_1(x):
    out = x.T.copy()
    m, n = x.shape
    out[n // 32 * 32 :, m // 32 * 32 :] = 0
    return out


def transpose_2(x):
    return x.reshape(x.shape[1], x.shape[0]).copy()


def cosine_rows_1(x, y):
    n = np.sqrt((x * x).sum(axis=1)) * np.sqrt((y * y).sum(axis=1))
    with np.errstate(all="ignore"):
        return (x * y).sum(axis=1) / n


def cosine_rows_2(x, y):
    n = (x * x).sum(axis=1)
    return (x * y).sum(axis=1) / np.maximum(n, x.dtype.type(1e-6))


def kl_rows_1(logits, q):
    p = _soft(logits)
    return (q * (np.log(q) - np.log(p))).sum(axis=1)


def kl_rows_2(logits, q):
    p = _soft(logits)
    t = p * (np.log(p) - np.log(q))
    return t[:, : (t.shape[1] + 31) // 32 * 32 - 1].sum(axis=1)
