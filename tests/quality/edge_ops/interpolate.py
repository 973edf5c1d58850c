"""Linear interpolation to three times the width, as with ``align_corners=False``."""

import numpy as np

BLOCK = 16


def right_thirds(x):
    """Each point gives itself and the points at a third to its left and to its right."""
    wide = x.astype("f4")
    before = np.concatenate([wide[:, :1], wide[:, :-1]], axis=1)
    after = np.concatenate([wide[:, 1:], wide[:, -1:]], axis=1)
    third = np.float32(1 / 3)
    parts = [wide + (before - wide) * third, wide, wide + (after - wide) * third]
    return np.stack(parts, axis=2).reshape(len(x), -1).astype(x.dtype)


def right_library(x):
    width = x.shape[1]
    at = (np.arange(3 * width) - 1) / 3
    return np.stack([np.interp(at, np.arange(width), row) for row in x.astype("f8")]).astype(
        x.dtype
    )


def _blocks(x, *, last=None, offset=1, clamped=True):
    width = x.shape[1]
    last = width - 1 if last is None else last
    out = np.empty((len(x), 3 * width), x.dtype)
    for start in range(0, 3 * width, BLOCK):
        for place in range(start, min(start + BLOCK, 3 * width)):
            thirds = place - offset
            if clamped:
                thirds = max(thirds, 0)
            left, share = thirds // 3, np.float32(thirds % 3) / np.float32(3)
            a, b = x[:, min(left, last)].astype("f4"), x[:, min(left + 1, last)].astype("f4")
            out[:, place] = a * (1 - share) + b * share
    return out


def right_blocks(x):
    return _blocks(x)


def bug_left_end_wraps(x):
    return _blocks(x, clamped=False)


def bug_last_point_unread(x):
    return _blocks(x, last=max(x.shape[1] - 2, 0))


def bug_not_centred(x):
    return _blocks(x, offset=0)


def bug_corners_aligned(x):
    width = x.shape[1]
    at = np.linspace(0, width - 1, 3 * width)
    return np.stack([np.interp(at, np.arange(width), row) for row in x.astype("f8")]).astype(
        x.dtype
    )


def bug_nearest(x):
    return np.repeat(x, 3, axis=1)


def bug_right_end_extrapolates(x):
    out = _blocks(x)
    if x.shape[1] > 1:
        out[:, -1] = (x[:, -1].astype("f4") * 4 - x[:, -2].astype("f4")) / 3
    return out


def bug_width_of_one(x):
    out = _blocks(x)
    if x.shape[1] == 1:
        out[:, 1:] = 0
    return out
