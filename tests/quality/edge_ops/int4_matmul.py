"""A matmul with weights of 4 bits, two in a byte, 16 of which share a scale."""

import numpy as np

GROUP = 16


def _weights(packed, *, zero=8):
    both = np.empty((len(packed), 2 * packed.shape[1]), np.float32)
    both[:, 0::2], both[:, 1::2] = packed & 15, packed >> 4
    return both - zero


def right_unpacked(x, packed, scale):
    weights = _weights(packed) * np.repeat(scale.astype("f4"), GROUP, axis=1)
    return (x.astype("f4") @ weights.T).astype(x.dtype)


def _by_group(x, packed, scale, *, sums=np.float32, groups=None, weights=None, shift=0):
    """The scale of a group multiplies its sum."""
    table = _weights(packed) if weights is None else weights
    out = np.zeros((len(x), len(packed)), sums)
    for group in range(groups or scale.shape[1]):
        part = slice(group * GROUP, (group + 1) * GROUP)
        own = scale[:, max(group - shift, 0)].astype(np.float32)
        out = (out + (x[:, part].astype("f4") @ table[:, part].T * own).astype(sums)).astype(sums)
    return out.astype(x.dtype)


def right_by_group(x, packed, scale):
    return _by_group(x, packed, scale)


def right_bytes(x, packed, scale):
    out = np.empty((len(x), len(packed)), np.float64)
    even, odd = x[:, 0::2].astype("f8"), x[:, 1::2].astype("f8")
    for n, row in enumerate(packed):
        factors = np.repeat(scale[n].astype("f8"), GROUP // 2)
        low, high = (row & 15).astype("f8") - 8, (row // 16).astype("f8") - 8
        out[:, n] = (even * (low * factors) + odd * (high * factors)).sum(axis=1)
    return out.astype(x.dtype)


def bug_high_half_first(x, packed, scale):
    return _by_group(x, (packed << 4) | (packed >> 4), scale)


def bug_scale_of_the_group_before(x, packed, scale):
    return _by_group(x, packed, scale, shift=1)


def bug_last_group_unread(x, packed, scale):
    return _by_group(x, packed, scale, groups=max(scale.shape[1] - 1, 1))


def bug_zero_is_seven(x, packed, scale):
    return _by_group(x, packed, scale, weights=_weights(packed, zero=7))


def bug_two_complement(x, packed, scale):
    both = _weights(packed, zero=0)
    return _by_group(x, packed, scale, weights=np.where(both > 7, both - 16, both))


def bug_lowest_value_lost(x, packed, scale):
    return _by_group(x, packed, scale, weights=np.maximum(_weights(packed), -7))


def bug_sums_in_half(x, packed, scale):
    weights = (_weights(packed) * np.repeat(scale.astype("f4"), GROUP, axis=1)).astype("f2")
    out = np.zeros((len(x), len(packed)), np.float16)
    for column in range(x.shape[1]):
        out += np.outer(x[:, column].astype("f2"), weights[:, column])
    return out.astype(x.dtype)
