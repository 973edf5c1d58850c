"""Running sums of segments, which a kernel computes in blocks with a carry."""

import itertools

import numpy as np

BLOCK = 32


def right_by_segment(x, starts):
    parts = [np.cumsum(x[a:b], dtype=np.float32) for a, b in itertools.pairwise(starts)]
    return np.concatenate(parts).astype(x.dtype)


def right_doubling(x, starts):
    """Each element adds the one so far before it that its segment has; so far doubles."""
    places = np.arange(x.size)
    first = starts[np.searchsorted(starts, places, side="right") - 1]
    sums, far = x.astype("f4"), 1
    while far < x.size:
        sums = np.where(places - far >= first, sums + np.roll(sums, far), sums)
        far *= 2
    return sums.astype(x.dtype)


def _blocks(x, starts, *, carries=np.float32, first=0, flags=None):
    """Add in blocks: the carry is the last running sum of the block before."""
    begins = np.zeros(x.size + 1, bool) if flags is None else flags
    if flags is None:
        begins[starts[:-1]] = True
    out = np.empty_like(x)
    carry = carries(0)
    for start in range(0, x.size, BLOCK):
        for i in range(start, min(start + BLOCK, x.size)):
            if begins[i] and i - start >= first:
                carry = carries(0)
            carry = carries(carry + carries(x[i]))
            out[i] = carry
    return out


def right_blocks(x, starts):
    return _blocks(x, starts)


def bug_segment_that_begins_a_block(x, starts):
    return _blocks(x, starts, first=1)


def bug_carry_in_half(x, starts):
    return _blocks(x, starts, carries=np.float16)


def bug_exclusive(x, starts):
    out = np.zeros_like(x)
    for a, b in itertools.pairwise(starts):
        out[a + 1 : b] = np.cumsum(x[a : max(b - 1, a)], dtype=np.float32)
    return out


def bug_empty_segments_are_not_counted(x, starts):
    flags = np.zeros(x.size + 1, np.int64)
    flags[starts[:-1]] = 1
    segment = np.cumsum(flags[: x.size]) - 1
    whole = np.concatenate([[0], np.cumsum(x, dtype=np.float64)])
    return (whole[1:] - whole[starts[segment]]).astype(x.dtype)


def bug_last_block_partial(x, starts):
    out = right_by_segment(x, starts)
    out[x.size // BLOCK * BLOCK :] = x[x.size // BLOCK * BLOCK :]
    return out


def bug_last_segment_goes_on(x, starts):
    flags = np.zeros(x.size + 1, bool)
    flags[starts[:-2]] = True
    return _blocks(x, starts, flags=flags)


def bug_each_block_anew(x, starts):
    flags = np.zeros(x.size + 1, bool)
    flags[starts[:-1]] = True
    flags[::BLOCK] = True
    return _blocks(x, starts, flags=flags)
