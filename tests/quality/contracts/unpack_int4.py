"""Signed values of 4 bits, the low one of each byte first, times a scale."""

import numpy as np


def reference(packed, scale):
    both = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1).astype(np.int64)
    return np.where(both > 7, both - 16, both) * scale


def right_where(packed, scale):
    return reference(packed, scale).astype(scale.dtype)


def right_shifted(packed, scale):
    low, high = (packed << 4).view(np.int8) >> 4, packed.view(np.int8) >> 4
    return np.stack([low, high], axis=1).reshape(-1).astype(scale.dtype) * scale


def right_table(packed, scale):
    table = np.array([*range(8), *range(-8, 0)], scale.dtype)
    return np.stack([table[packed & 15], table[packed >> 4]], axis=1).reshape(-1) * scale


def wrong_unsigned(packed, scale):
    return np.stack([packed & 15, packed >> 4], axis=1).reshape(-1).astype(scale.dtype) * scale


def wrong_order(packed, scale):
    return reference((packed >> 4) | (packed << 4), scale).astype(scale.dtype)


def wrong_high_unsigned(packed, scale):
    low = (packed << 4).view(np.int8) >> 4
    return (
        np.stack([low, (packed >> 4).view(np.int8)], axis=1).reshape(-1).astype(scale.dtype) * scale
    )


def wrong_lowest_value(packed, scale):
    out = reference(packed, np.ones((), scale.dtype))
    return (np.maximum(out, -7) * scale).astype(scale.dtype)


def wrong_last_byte(packed, scale):
    out = reference(packed, scale).astype(scale.dtype)
    out[-1] = 0
    return out
