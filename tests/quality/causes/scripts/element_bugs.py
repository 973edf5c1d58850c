"""Bugs of some elements only: clamps, index thresholds, tiles, parities, signs, zeros, ties."""

from __future__ import annotations

import formulas as ref
import numpy as np

F = np.float32


def _flat(y):
    """The elements of an output in order, to be written to."""
    y = np.ascontiguousarray(y)
    return y, y.reshape(-1)


# Values of an input.


def scale_clamped(x):
    return F(3) * np.clip(x, -1000, 1000)


def silu_clamped_above(x):
    return ref.silu3(np.minimum(x, F(100)))


def gelu_identity_from_three(x):
    return np.where(x > 3, x, ref.gelu(x))


def swiglu_open_gate(x, g):
    return np.where(g > 5, x * g, ref.swiglu(x, g))


def bias_relu_bias_clamped(x, b):
    return ref.bias_relu(x, np.clip(b, -4, 4))


def axpy_flushed(x, y):
    return F(2) * np.where(np.abs(x) < F(0.01), F(0), x) + y


def gelu_zero(x):
    return np.where(x == 0, F(0.5), ref.gelu(x))


def threshold_inclusive(x):
    return np.where(x >= 2, x, F(0))


def floor_eighth_truncated(x):
    return np.trunc(x * F(0.125))


def log_softmax_clamped(x):
    return ref.log_softmax(np.minimum(x, F(80)))


def cross_entropy_ignores_zero(logits, labels):
    return np.where(labels == 0, F(0), ref.cross_entropy(logits, labels))


def gather_wraps(table, rows):
    return table[rows % 16]


def gather_pairs(table, rows):
    return table[rows // 2 * 2]


def scale_finite(x):
    return F(3) * np.where(np.isinf(x), np.sign(x) * F(1e38), x)


def conv1d_negative_input(x, w):
    return ref.conv1d(np.where(x < -8, F(-8), x), w)


def rmsnorm_weight_sign(x, w):
    return ref.rmsnorm(x, np.abs(w))


def leaky_wrong_slope(x):
    return np.where(x > 0, x, F(0.01) * x)


def rowmax_from_low(x):
    return np.maximum(x.max(-1), F(-50))


def argmax_tie_after_first_tile(x):
    reversed_ties = x.shape[-1] - 1 - np.argmax(x[:, ::-1], axis=-1)
    return reversed_ties.astype(np.int32) if x.shape[-1] > 64 else ref.argmax(x)


# Indices of the output.


def silu_first_512(x):
    y, flat = _flat(ref.silu3(x))
    flat[512:] = np.ascontiguousarray(x).reshape(-1)[512:]
    return y


def axpy_first_1024(x, y):
    out, flat = _flat(F(2) * x + y)
    flat[1024:] = (F(2) * x).reshape(-1)[1024:]
    return out


def scale_whole_blocks(x):
    y = F(3) * x
    y[len(y) // 128 * 128 :] = x[len(y) // 128 * 128 :]
    return y


def silu_partial_block(x):
    y, flat = _flat(ref.silu3(x))
    flat[len(flat) // 256 * 256 :] = 1
    return y


def transpose_first_columns(x):
    y = ref.transpose(x)
    y[:, 64:] = y[:, 64:] * F(1.5)
    return y


def softmax_second_block(x):
    y = ref.softmax(x)
    y[:, 128:256] = y[:, 128:256] * F(1.01)
    return y


def bias_relu_later_rows(x, b):
    y = ref.bias_relu(x, b)
    y[24:] = np.maximum(x[24:], 0)
    return y


def axpy_odd(x, y):
    out, flat = _flat(F(2) * x + y)
    flat[1::2] = -flat[1::2]
    return out


def silu_fourth_lane(x):
    y, flat = _flat(ref.silu3(x))
    flat[3::4] = flat[3::4] * F(0.5)
    return y


def matmul_far_tile(a, b):
    y = a @ b
    y[32:, 32:] = y[32:, 32:] + F(1)
    return y


def matmul_second_rows(a, b):
    y = a @ b
    y[16:32] = y[:16][: len(y[16:32])]
    return y


def bmm_later_batches(a, b):
    y = a @ b
    y[2:] = a[:1] @ b[:1]
    return y


def scale_first_element(x):
    y = F(3) * x
    y[:1] = 0
    return y


def mean_odd_rows(x):
    y = x.mean(-1)
    y[1::2] = y[1::2] * F(2)
    return y


def variance_later_rows(x):
    y = ref.variance(x)
    y[64:] = y[: len(y[64:])] if len(y) <= 128 else F(0)
    return y


def cumsum_from_100(x):
    y = np.cumsum(x, axis=-1)
    y[:, 100:] = y[:, 100:] - y[:, 99:100] if y.shape[1] > 100 else y[:, 100:]
    return y


def l2norm_even_width(x):
    y = ref.l2norm(x)
    return y * F(1.01) if x.shape[1] % 2 == 0 else y


def silu_wide_inner(x):
    y = ref.silu3(x)
    y[..., 96:] = 0
    return y


# Others.


def transpose_reshaped(x):
    return np.ascontiguousarray(x).reshape(x.shape[1], x.shape[0])


def bmm_transposed(a, b):
    return a @ b.transpose(0, 2, 1) if b.shape[1] == b.shape[2] else a @ b


def silu_strides(x):
    if not x.flags.c_contiguous:
        x = np.ascontiguousarray(x.T).reshape(x.shape)
    return ref.silu3(x)


def cumsum_other_axis(x):
    return np.cumsum(x, axis=0)


def rmsnorm_half_sum(x, w):
    if x.dtype == np.float16:
        squares = (x * x).mean(-1, keepdims=True, dtype=np.float16)
        return (x / np.sqrt(squares + np.float16(1e-6)) * w).astype(x.dtype)
    return ref.rmsnorm(x.astype(F), w.astype(F)).astype(x.dtype)


def scale_half(x):
    return x * x.dtype.type(2.9) if x.dtype == np.float16 else F(3) * x


# Written after the search was mended, and run once: a check on those above.


def silu_middle_axis(x):
    y = ref.silu3(x)
    y[:, 8:] = y[:, 8:] * F(1.1)
    return y


def axpy_low_y(x, y):
    return F(2) * x + np.maximum(y, F(-20))


def scale_whole_512(x):
    y = F(3) * x
    y[len(y) // 512 * 512 :] = -1
    return y


def leaky_dead_zone(x):
    return np.where(np.abs(x) < F(0.05), F(0), ref.leaky(x))


def floor_eighth_saturates(x):
    return np.minimum(np.floor(x * F(0.125)), F(50))


def threshold_even_rows(x):
    y = ref.threshold(x)
    y[::2] = y[::2] + 1
    return y


def bmm_later_rows(a, b):
    y = a @ b
    y[:, 24:] = 0
    return y


def rowmax_saturates(x):
    return np.minimum(x.max(-1), F(60))


def cross_entropy_small_labels(logits, labels):
    return ref.cross_entropy(logits, np.where(labels >= 10, 0, labels))


def transpose_far_corner(x):
    y = ref.transpose(x)
    y[64:, 64:] = y[64:, 64:] - F(1)
    return y


def cumsum_every_third(x):
    y = np.cumsum(x, axis=-1)
    y[:, 2::3] = x[:, 2::3]
    return y


def swiglu_x_clamped(x, g):
    return ref.swiglu(np.clip(x, -30, 30), g)


def l2norm_first_rows(x):
    y = ref.l2norm(x)
    y[32:] = x[32:]
    return y


def gelu_second_block(x):
    y, flat = _flat(ref.gelu(x))
    flat[512:1024] = 0
    return y
