"""The third set of bugs, planted by somebody who had not read the code, one function each."""

import ml_dtypes
import numpy as np

np.seterr(all="ignore")
F = np.float32


def softmax_nomax(x):
    e = np.exp(x.astype(F))
    return (e / e.sum(-1, keepdims=True)).astype(x.dtype)


def softmax_tail(x):
    xf = x.astype(F)
    lanes = np.pad(xf, ((0, 0), (0, -xf.shape[1] % 32)))
    m = xf.max(-1, keepdims=True)
    s = np.exp(lanes - m).sum(-1, keepdims=True)
    return (np.exp(xf - m) / s).astype(x.dtype)


def layernorm_eps(x, weight, bias):
    xf = x.astype(F)
    c = xf - xf.mean(-1, keepdims=True)
    std = np.sqrt((c * c).mean(-1, keepdims=True))
    return (c / (std + F(1e-5)) * weight.astype(F) + bias.astype(F)).astype(x.dtype)


def layernorm_e2(x, weight, bias):
    xf = x.astype(F)
    mean = xf.mean(-1, keepdims=True)
    var = (xf * xf).mean(-1, keepdims=True) - mean * mean
    return ((xf - mean) / np.sqrt(var + F(1e-5)) * weight.astype(F) + bias.astype(F)).astype(
        x.dtype
    )


def rmsnorm_half(x, weight):
    ss = (x * x).sum(-1, keepdims=True, dtype=x.dtype).astype(F)
    r = 1 / np.sqrt(ss / F(x.shape[1]) + F(1e-6))
    return (x.astype(F) * r * weight.astype(F)).astype(x.dtype)


def groupnorm_interleave(x, weight, bias, groups):
    xf = x.astype(F)
    out = np.empty_like(xf)
    channel = np.arange(x.shape[1])
    for g in range(groups):
        own = channel % groups == g
        part = xf[:, own]
        mean = part.mean((1, 2), keepdims=True)
        var = ((part - mean) ** 2).mean((1, 2), keepdims=True)
        out[:, own] = (part - mean) / np.sqrt(var + F(1e-5))
    return (out * weight.astype(F)[:, None] + bias.astype(F)[:, None]).astype(x.dtype)


def _attend(q, k, v, keep, scale):
    s = np.einsum("hid,hjd->hij", q.astype(F), k.astype(F)) * F(scale)
    s = np.where(keep, s, F(-np.inf))
    p = np.exp(s - s.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    return np.einsum("hij,hjd->hid", p, v.astype(F)).astype(q.dtype)


def attn_causal_align(q, k, v):
    i, j = np.arange(q.shape[1])[:, None], np.arange(k.shape[1])
    return _attend(q, k, v, j <= i, q.shape[-1] ** -0.5)


def attn_gqa(q, k, v):
    head = np.arange(q.shape[0]) % k.shape[0]
    return _attend(q, k[head], v[head], True, q.shape[-1] ** -0.5)


def attn_window(q, k, v, window):
    i, j = np.arange(q.shape[1])[:, None], np.arange(k.shape[1])
    return _attend(q, k, v, (j <= i) & (i - j <= window), q.shape[-1] ** -0.5)


def attn_padscale(q, k, v):
    padded = 1
    while padded < q.shape[-1]:
        padded *= 2
    return _attend(q, k, v, True, padded**-0.5)


def flash_norescale(q, k, v):
    qf, kf, vf = q.astype(F), k.astype(F), v.astype(F)
    h, s, d = qf.shape
    m = np.full((h, s, 1), -np.inf, F)
    total = np.zeros((h, s, 1), F)
    acc = np.zeros((h, s, d), F)
    for b in range(0, kf.shape[1], 16):
        t = np.einsum("hid,hjd->hij", qf, kf[:, b : b + 16]) * F(d**-0.5)
        new = np.maximum(m, t.max(-1, keepdims=True))
        p = np.exp(t - new)
        total = total * np.exp(m - new) + p.sum(-1, keepdims=True)
        acc = acc + np.einsum("hij,hjd->hid", p, vf[:, b : b + 16])
        m = new
    return (acc / total).astype(q.dtype)


def rope_freq(x):
    s, d = x.shape
    half = d // 2
    angle = np.arange(s)[:, None] * 10000.0 ** (-np.arange(half) / d)
    cos, sin = np.cos(angle).astype(F), np.sin(angle).astype(F)
    a, b = x[:, :half].astype(F), x[:, half:].astype(F)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], 1).astype(x.dtype)


def gelu_const(x):
    xf = x.astype(F)
    inner = F(0.7978845608) * (xf + F(0.047715) * xf * xf * xf)
    return (F(0.5) * xf * (1 + np.tanh(inner))).astype(x.dtype)


def silu_ovf(x):
    xf = x.astype(F)
    e = np.exp(xf)
    return (xf * e / (1 + e)).astype(x.dtype)


def ce_ignore_mean(logits, labels):
    z = logits.astype(F)
    m = z.max(1, keepdims=True)
    lse = m[:, 0] + np.log(np.exp(z - m).sum(1))
    own = z[np.arange(len(labels)), np.where(labels == -100, 0, labels)]
    loss = np.where(labels == -100, F(0), lse - own)
    return np.array([loss.sum() / len(labels)]).astype(logits.dtype)


def scatter_add_race(base, index, x):
    out = base.copy()
    out[index] = base[index] + x
    return out


def embedding_neg(table, index):
    return table[np.maximum(index, 0)]


def conv1d_edge(x, w):
    xf, wf = x.astype(F), w.astype(F)
    k = wf.shape[2]
    p = np.pad(xf, ((0, 0), (k // 2, k // 2)), mode="edge")
    out = np.zeros((wf.shape[0], xf.shape[1]), F)
    for t in range(k):
        out += wf[:, :, t] @ p[:, t : t + xf.shape[1]]
    return out.astype(x.dtype)


def maxpool_zero(x):
    c, h, w = x.shape
    p = np.zeros((c, h + 2, w + 2), x.dtype)
    p[:, 1:-1, 1:-1] = x
    out = p[:, :h, :w]
    for i in range(3):
        for j in range(3):
            out = np.maximum(out, p[:, i : i + h, j : j + w])
    return out


def cumsum_carry(x):
    xf = x.astype(F)
    out = np.empty_like(xf)
    carry = np.zeros((x.shape[0], 1), F)
    for b in range(0, x.shape[1], 128):
        part = np.cumsum(xf[:, b : b + 128], 1, dtype=F)
        out[:, b : b + 128] = part + carry
        carry = part[:, -1:]
    return out.astype(x.dtype)


def argmax_nan(x):
    best = np.full(len(x), -np.inf, x.dtype)
    at = np.zeros(len(x), np.int64)
    for j in range(x.shape[1]):
        more = x[:, j] > best
        best = np.where(more, x[:, j], best)
        at = np.where(more, j, at)
    return at


def topk_dups(x):
    left = x.copy()
    out = np.empty((len(x), 4), x.dtype)
    for k in range(4):
        out[:, k] = left.max(1)
        left = np.where(left == out[:, k : k + 1], x.dtype.type(-np.inf), left)
    return out


def sort_radix(x):
    bits = np.ascontiguousarray(x).view(np.uint32) ^ np.uint32(0x80000000)
    return (np.sort(bits, axis=1) ^ np.uint32(0x80000000)).view(np.float32)


def matmul_ktail(a, b):
    out = np.zeros((a.shape[0], b.shape[1]), F)
    for k in range(a.shape[1] // 16):
        part = slice(16 * k, 16 * k + 16)
        out += a[:, part].astype(F) @ b[part].astype(F)
    return out.astype(a.dtype)


def matmul_half_acc(a, b):
    acc = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    for k in range(a.shape[1]):
        acc = (acc + a[:, k : k + 1] * b[k]).astype(a.dtype)
    return acc


def gemm_beta(a, b, c, beta):
    return (a.astype(F) @ b.astype(F) + F(beta) * c.astype(F)).astype(a.dtype)


def dequant_zp(q, scale, zero_point):
    return ((q - zero_point[:, None]).astype(F) * scale.astype(F)[:, None]).astype(scale.dtype)


def quant_round(x, scale):
    q = np.floor(x.astype(F) / F(scale) + F(0.5))
    return np.clip(q, -128, 127).astype(np.int8)


def quant_sat(x, scale):
    q = np.rint(x.astype(np.float64) / scale)
    word = np.clip(q, -(2.0**31), 2.0**31 - 1).astype(np.int64)
    return (word & 255).astype(np.uint8).view(np.int8)


def transpose_bound(x):
    m, n = x.shape
    out = np.zeros((n, m), x.dtype)
    for r in range(0, m, 32):
        for c in range(0, n, 32):
            for i in range(r, min(r + 32, m)):
                end = min(c + 32, n, m)
                if end > c:
                    out[c:end, i] = x[i, c:end]
    return out


def concat_stride(a, b):
    m, na = a.shape
    nb = b.shape[1]
    flat = np.ascontiguousarray(b).reshape(-1)
    at = np.arange(m)[:, None] * na + np.arange(nb)
    out = np.empty((m, na + nb), a.dtype)
    out[:, :na] = a
    out[:, na:] = flat[np.minimum(at, flat.size - 1)]
    return out


def rowbias(x, bias):
    at = np.arange(x.shape[1]) % len(bias)
    return (x.astype(F) + bias.astype(F)[at]).astype(x.dtype)


def clamp_nan(x):
    return np.fmin(np.fmax(x, x.dtype.type(-1)), x.dtype.type(1))


def interp_edge(x):
    xf = x.astype(F)
    n = x.shape[1]
    src = (np.arange(2 * n) + F(0.5)) / F(2) - F(0.5)
    lo = src.astype(np.int64)
    hi = np.minimum(lo + 1, n - 1)
    w = (src - lo).astype(F)
    return (xf[:, lo] * (1 - w) + xf[:, hi] * w).astype(x.dtype)


def residual_stride(x, residual):
    m, n = x.shape
    r = np.lib.stride_tricks.as_strided(
        residual, (m, n), (n * residual.itemsize, residual.itemsize)
    )
    return (x.astype(F) + r.astype(F)).astype(x.dtype)


def pad_symmetric(x):
    return np.pad(x, ((0, 0), (2, 2)), mode="symmetric")


def histogram_edge(x):
    at = (x.astype(F) * 8).astype(np.int64)
    return np.bincount(at[at < 8], minlength=8).astype(np.int64)


def logsumexp_empty(x):
    xf = x.astype(F)
    m = xf.max(1)
    return (m + np.log(np.exp(xf - m[:, None]).sum(1))).astype(x.dtype)


def cdist_gram(x):
    xf = x.astype(F)
    sq = (xf * xf).sum(1)
    return np.sqrt(sq[:, None] + sq - 2 * (xf @ xf.T)).astype(x.dtype)


def shift_arith(x, amount):
    return x >> amount


def segment_stale(x, offsets):
    out = np.zeros((len(offsets) - 1, x.shape[1]), x.dtype)
    acc = np.zeros(x.shape[1], F)
    for s in range(len(offsets) - 1):
        for t in range(offsets[s], offsets[s + 1]):
            acc = x[t].astype(F) + (acc if t > offsets[s] else F(0))
        out[s] = acc.astype(x.dtype)
    return out


def int8_dot(a, b):
    acc = np.zeros((a.shape[0], b.shape[1]), np.int16)
    for k in range(a.shape[1]):
        acc += a[:, k : k + 1].astype(np.int16) * b[k].astype(np.int16)
    return acc.astype(np.int32)


def log_ftz(x):
    return np.log(np.where(np.abs(x) < np.finfo(F).tiny, F(0), x))


def swiglu_order(x):
    h = x.shape[1] // 2
    up, gate = x[:, :h].astype(F), x[:, h:].astype(F)
    return (gate / (1 + np.exp(-gate)) * up).astype(x.dtype)


def sum_stale(x):
    shared = np.zeros((len(x), 64), F)
    acc = np.zeros(len(x), F)
    for b in range(0, x.shape[1], 64):
        part = x[:, b : b + 64].astype(F)
        shared[:, : part.shape[1]] = part
        acc += shared.sum(1, dtype=F)
    return acc.astype(x.dtype)


def bincount_warp(index):
    out = np.zeros(16, np.int64)
    for b in range(0, len(index), 32):
        lanes = index[b : b + 32]
        out[lanes] = out[lanes] + 1
    return out


def bf16_trunc(x):
    bits = np.ascontiguousarray(x).view(np.uint32) >> 16
    return bits.astype(np.uint16).view(ml_dtypes.bfloat16)


def softmax_maskfill(x, mask):
    s = np.where(mask, x.astype(F), F(-1e4))
    e = np.exp(s - s.max(1, keepdims=True))
    return (e / e.sum(1, keepdims=True)).astype(x.dtype)
