"""The second set of bugs that a stranger would plant, one function each."""

import base
import numpy as np

F = np.float32


def log_softmax_missing_max(x):
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def log_softmax_tail_in_sum(x):
    z = x - x.max(-1, keepdims=True)
    pad = -x.shape[1] % 16
    return z - np.log(np.exp(z).sum(-1, keepdims=True) + F(pad))


def groupnorm_layer_statistics(x, w):
    b, c, n = x.shape
    g = x.reshape(b, c * n)
    d = g - g.mean(-1, keepdims=True)
    y = d / np.sqrt((d * d).mean(-1, keepdims=True) + F(1e-5))
    return y.reshape(b, c, n) * w[:, None]


def groupnorm_no_weight(x, w):
    return base.groupnorm(x, np.ones_like(w))


def silu_clamped_low(x):
    z = np.maximum(x, F(-6))
    return z / (1 + np.exp(-z))


def softplus_threshold(x):
    return np.where(x > 4, x, base.softplus(x)).astype(x.dtype)


def elu_alpha(x):
    return np.where(x > 0, x, F(0.5) * np.expm1(np.minimum(x, 0))).astype(x.dtype)


def hardtanh_zero_low(x):
    return np.clip(x, 0, 1)


def embedding_last_row(table, index):
    return table[np.minimum(index, max(len(table) - 2, 0))]


def embedding_padding_index(table, index):
    y = table[index].copy()
    y[index == 0] = 0
    return y


def bmm_nt_transposed(a, b):
    return (
        np.swapaxes(a @ np.swapaxes(b, -1, -2), -1, -2).reshape(a.shape[0], a.shape[1], -1).copy()
    )


def bmm_nt_k_twice(a, b):
    return a @ np.swapaxes(b, -1, -2) + a[..., -1:] * np.swapaxes(b[..., -1:], -1, -2)


def outer_grid_rows(a, b):
    y = a[:, None] * b[None, :]
    y[64:] = 0
    return y


def row_mean_rounded_count(x):
    return x.sum(-1) / F(-(-x.shape[1] // 8) * 8)


def row_var_sample(x):
    d = x - x.mean(-1, keepdims=True)
    return (d * d).sum(-1) / F(max(x.shape[1] - 1, 1))


def col_sum_first_block(x):
    return x[:32].sum(0)


def diff_reversed(x):
    return -base.diff(x)


def diff_block_edge(x):
    y = base.diff(x)
    y[:, 32::32] = x[:, 32::32]
    return y


def pool2_absolute(x):
    a, b = x[:, 0::2], x[:, 1::2]
    return np.where(np.abs(a) >= np.abs(b), a, b)


def upsample_tiled(x):
    return np.concatenate([x, x], -1)


def masked_fill_inclusive(x, lengths):
    return base.masked_fill(x, lengths + 1)


def dequantize_unsigned(q, scale):
    return q.view(np.uint8).astype(F) * scale[:, None]


def dequantize_scale_of_column(q, scale):
    return q.astype(F) * scale[np.arange(q.shape[1]) % len(scale)][None, :]


def bias_gelu_bias_after(x, b):
    return base.bias_gelu(x, np.zeros_like(b)) + b


def mse_not_squared(x, y):
    return np.abs(x - y).mean(-1)


def rotate_other_way(x):
    return np.rot90(x, -1).copy()


def lerp_swapped(x, y, t):
    return y + (x - y) * t[:, None]


def lerp_half(x, y, t):
    return (x + (y - x) * t[:, None]).astype(np.float16).astype(F)
