"""References: plain numpy, in the dtype of the inputs."""

import numpy as np


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def prelu(x, slope):
    return np.where(x >= 0, x, x * slope[None, :, None])


def hardswish(x):
    return x * np.clip(x + 3, 0, 6) / 6


def swiglu(x):
    gate, up = np.split(x, 2, axis=-1)
    return gate / (1 + np.exp(-gate)) * up


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def log_softmax_channels(x):
    z = x - x.max(axis=1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=1, keepdims=True))


def masked_softmax(scores, mask):
    z = np.where(mask, scores, -np.inf)
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def layer_norm(x, weight, bias, eps):
    mean = x.mean(axis=-1, keepdims=True)
    var = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(var + eps) * weight + bias


def rms_norm(x, weight):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6) * weight


def group_norm(x, weight, bias, groups):
    b, c, n = x.shape
    g = x.reshape(b, groups, -1)
    mean = g.mean(axis=-1, keepdims=True)
    var = ((g - mean) ** 2).mean(axis=-1, keepdims=True)
    y = ((g - mean) / np.sqrt(var + 1e-5)).reshape(b, c, n)
    return y * weight[:, None] + bias[:, None]


def _softmax(s):
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def causal_attention(q, k, v):
    s = q @ k.transpose(0, 2, 1) / float(np.sqrt(q.shape[-1]))
    i = np.arange(q.shape[1])
    s = np.where(i[None, :] <= i[:, None], s, -np.inf)
    return _softmax(s) @ v


def gqa_attention(q, k, v):
    g = q.shape[0] // k.shape[0]
    k, v = np.repeat(k, g, axis=0), np.repeat(v, g, axis=0)
    return _softmax(q @ k.transpose(0, 2, 1) / float(np.sqrt(q.shape[-1]))) @ v


def window_attention(q, k, v, window):
    s = q @ k.T / float(np.sqrt(q.shape[-1]))
    i = np.arange(q.shape[0])
    back = i[:, None] - i[None, :]
    return _softmax(np.where((back >= 0) & (back < window), s, -np.inf)) @ v


def linear(x, w, b):
    return x @ w.T + b


def batched_matmul(a, b):
    return a @ b


def matmul_tn(a, b):
    return a.T @ b


def row_sum(x):
    return x.sum(axis=-1)


def row_var(x):
    return ((x - x.mean(axis=-1, keepdims=True)) ** 2).mean(axis=-1)


def col_max(x):
    return x.max(axis=0)


def cumsum(x):
    return np.cumsum(x, axis=-1)


def linear_scan(a, x):
    out = np.empty_like(x)
    h = np.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        h = a[:, t] * h + x[:, t]
        out[:, t] = h
    return out


def ragged_mean(x, offsets):
    out = np.zeros((offsets.size - 1, x.shape[1]), x.dtype)
    for r in range(offsets.size - 1):
        if offsets[r + 1] > offsets[r]:
            out[r] = x[offsets[r] : offsets[r + 1]].mean(axis=0)
    return out


def scatter_add(base, index, x):
    out = base.copy()
    np.add.at(out, index, x)
    return out


def embedding(table, index):
    return np.where(index[:, None] < 0, table.dtype.type(0), table[np.maximum(index, 0)])


def conv1d_same(x, w):
    k = w.shape[2]
    p = np.pad(x, ((0, 0), (0, 0), (k // 2, k // 2)))
    out = np.zeros((x.shape[0], w.shape[0], x.shape[2]), x.dtype)
    for j in range(k):
        out += np.einsum("bcl,oc->bol", p[:, :, j : j + x.shape[2]], w[:, :, j])
    return out


def conv2d_valid(x, w):
    h, wd = x.shape[2] - 2, x.shape[3] - 2
    out = np.zeros((x.shape[0], w.shape[0], h, wd), x.dtype)
    for i in range(3):
        for j in range(3):
            out += np.einsum("bchw,oc->bohw", x[:, :, i : i + h, j : j + wd], w[:, :, i, j])
    return out


def max_pool2d_ceil(x):
    b, c, h, w = x.shape
    out = np.empty((b, c, (h + 1) // 2, (w + 1) // 2), x.dtype)
    for i in range(out.shape[2]):
        for j in range(out.shape[3]):
            out[:, :, i, j] = x[:, :, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max(axis=(2, 3))
    return out


def avg_pool3(x):
    n = x.shape[1]
    return np.stack([x[:, max(i - 1, 0) : i + 2].mean(axis=1) for i in range(n)], axis=1)


def fake_quant_rows(x):
    scale = np.maximum(np.abs(x).max(axis=1, keepdims=True), x.dtype.type(1e-6)) / 127
    return np.clip(np.rint(x / scale), -127, 127) * scale


def dequant_int4(packed, scale):
    both = np.stack([packed & 15, packed >> 4], axis=2).reshape(packed.shape[0], -1)
    q = both.astype(scale.dtype) - 8
    return q * np.repeat(scale, 16, axis=1)


def _lse(x):
    m = x.max(axis=1)
    return m + np.log(np.exp(x - m[:, None]).sum(axis=1))


def cross_entropy(logits, target):
    kept = target >= 0
    loss = _lse(logits) - logits[np.arange(target.size), np.where(kept, target, 0)]
    return np.asarray(np.where(kept, loss, 0).sum() / max(int(kept.sum()), 1), logits.dtype)


def smoothed_loss(logits, target):
    logp = logits - _lse(logits)[:, None]
    return -(0.9 * logp[np.arange(target.size), target] + 0.1 * logp.mean(axis=1))


def rope(x):
    s, d = x.shape[0], x.shape[2] // 2
    freq = 10000.0 ** (-np.arange(d) / d)
    ang = np.arange(s)[:, None] * freq
    cos, sin = np.cos(ang).astype(x.dtype)[:, None], np.sin(ang).astype(x.dtype)[:, None]
    a, b = x[..., :d], x[..., d:]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def histogram(x):
    at = np.minimum(np.floor(x * 16), 15).astype(np.int64)
    return np.bincount(at, minlength=16).astype(x.dtype)


def topk_values(x, k):
    return -np.sort(-x, axis=1)[:, :k]


def upsample2_linear(x):
    n = x.shape[1]
    src = np.clip((np.arange(2 * n) + 0.5) / 2 - 0.5, 0, n - 1)
    lo = np.floor(src).astype(np.int64)
    hi = np.minimum(lo + 1, n - 1)
    f = (src - lo).astype(x.dtype)
    return x[:, lo] * (1 - f) + x[:, hi] * f


def moe_top1(x, gates, w):
    p = _softmax(gates)
    e = gates.argmax(axis=1)
    return np.einsum("td,tdf->tf", x, w[e]) * p[np.arange(e.size), e][:, None]


def cdist(x, y):
    return np.sqrt(((x[:, None] - y[None]) ** 2).sum(axis=-1))


def reflect_pad3(x):
    return np.pad(x, ((0, 0), (3, 3)), mode="reflect")


def huber(pred, target):
    d = np.abs(pred - target)
    return np.where(d <= 1, 0.5 * d * d, d - 0.5)


def masked_mean_pool(x, lengths):
    keep = (np.arange(x.shape[1]) < lengths[:, None]).astype(x.dtype)
    return (x * keep[..., None]).sum(axis=1) / np.maximum(lengths, 1).astype(x.dtype)[:, None]


def adam_step(p, g, m, v, step):
    m1 = 0.9 * m + 0.1 * g
    v1 = 0.99 * v + 0.01 * g * g
    mh, vh = m1 / (1 - 0.9**step), v1 / (1 - 0.99**step)
    return p - 0.1 * mh / (np.sqrt(vh) + 1e-3)


def transpose(x):
    return x.T.copy()


def cosine_rows(x, y):
    n = np.sqrt((x * x).sum(axis=1)) * np.sqrt((y * y).sum(axis=1))
    return (x * y).sum(axis=1) / np.maximum(n, x.dtype.type(1e-6))


def kl_rows(logits, q):
    p = _softmax(logits)
    return (p * (np.log(p) - np.log(q))).sum(axis=1)
