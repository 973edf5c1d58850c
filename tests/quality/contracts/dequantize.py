"""Values of 8 bits times the scale of their row."""

import numpy as np


def reference(q, scale):
    return q.astype(scale.dtype) * scale[:, None]


def right_product(q, scale):
    return reference(q, scale)


def right_loop(q, scale):
    pairs = zip(q, scale, strict=True)
    return np.stack([row.astype(scale.dtype) * factor for row, factor in pairs])


def right_table(q, scale):
    table = np.arange(-128, 128).astype(scale.dtype)
    return table[q.astype(np.int64) + 128] * scale[:, None]


def wrong_unsigned(q, scale):
    return q.view(np.uint8).astype(scale.dtype) * scale[:, None]


def wrong_lowest_value(q, scale):
    return reference(np.maximum(q, -127), scale)


def wrong_first_scale(q, scale):
    return reference(q, np.full_like(scale, scale[0]))


def wrong_absolute_in_bytes(q, scale):
    return np.abs(q).astype(scale.dtype) * np.sign(q).astype(scale.dtype) * scale[:, None]


def wrong_highest_value(q, scale):
    return reference(np.minimum(q, 126), scale)
