"""A packed batch laid out in padded rows."""

import numpy as np


def reference(x, lengths, starts):
    return _padded(x, lengths, starts, _width(lengths))


def _width(lengths):
    return int(lengths.max(initial=0))


def _padded(x, lengths, starts, width):
    out = np.zeros((lengths.size, width), x.dtype)
    for row, (start, length) in enumerate(zip(starts[:-1], lengths, strict=True)):
        out[row, :length] = x[start : start + length]
    return out


def right_loop(x, lengths, starts):
    return reference(x, lengths, starts)


def right_masked(x, lengths, starts):
    out = np.zeros((lengths.size, _width(lengths)), x.dtype)
    out[np.arange(out.shape[1]) < lengths[:, None]] = x
    return out


def right_indexed(x, lengths, starts):
    places = starts[:-1, None] + np.arange(_width(lengths))
    kept = np.arange(_width(lengths)) < lengths[:, None]
    full = np.append(x, x.dtype.type(0))
    return np.where(kept, full[np.minimum(places, x.size)], x.dtype.type(0))


def wrong_equal_rows(x, lengths, starts):
    even = np.arange(lengths.size) * (x.size // lengths.size)
    return _padded(x, np.minimum(lengths, x.size - even), even, _width(lengths))


def wrong_last_element(x, lengths, starts):
    out = reference(x, lengths, starts)
    if out.size:
        out[-1, max(lengths[-1] - 1, 0)] = 0
    return out


def wrong_full_row(x, lengths, starts):
    out = reference(x, lengths, starts)
    out[lengths == _width(lengths), -1:] = 0
    return out


def wrong_padding_shows(x, lengths, starts):
    places = np.minimum(starts[:-1, None] + np.arange(_width(lengths)), max(x.size - 1, 0))
    return x[places] if x.size else reference(x, lengths, starts)


def wrong_lengths_of_the_first(x, lengths, starts):
    return _padded(x, np.minimum(lengths, lengths[0]), starts, _width(lengths))
