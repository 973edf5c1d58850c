"""A grouped convolution with a stride of two."""

import numpy as np


def right_columns(x, w):
    """As a matmul with the windows."""
    groups, outs, channels, _ = w.shape
    width = (x.shape[2] - 1) // 2 + 1
    full = np.pad(x.astype("f4"), ((0, 0), (0, 0), (1, 2)))
    out = np.empty((len(x), groups * outs, width), x.dtype)
    for g in range(groups):
        own = full[:, g * channels : (g + 1) * channels]
        columns = np.stack([own[:, :, t : t + 2 * width : 2] for t in range(3)], axis=2)
        columns = columns.reshape(len(x), channels * 3, width)
        out[:, g * outs : (g + 1) * outs] = w[g].reshape(outs, -1).astype("f4") @ columns
    return out


def right_full_then_half(x, w):
    groups, outs, channels, _ = w.shape
    out = np.zeros((len(x), groups * outs, x.shape[2]), np.float64)
    for b in range(len(x)):
        for g in range(groups):
            for o in range(outs):
                for c in range(channels):
                    row = x[b, g * channels + c].astype("f8")
                    whole = np.convolve(row, w[g, o, c, ::-1].astype("f8"))
                    out[b, g * outs + o] += whole[1 : 1 + row.size]
    return out[:, :, ::2].astype(x.dtype)


def _direct(x, w, *, sums=np.float32, pad=1, stop=None, shared=False):
    """Each output by itself; taps outside are left out."""
    groups, outs, channels, _ = w.shape
    length = x.shape[2] if stop is None else stop
    width = (x.shape[2] - 1) // 2 + 1
    out = np.zeros((len(x), groups * outs, width), sums)
    for g in range(groups):
        first = 0 if shared else g * channels
        own = x[:, first : first + channels].astype(sums)
        part = out[:, g * outs : (g + 1) * outs]
        for place in range(width):
            for t in range(3):
                at = 2 * place + t - pad
                if 0 <= at < length:
                    products = own[:, None, :, at] * w[g, :, :, t].astype(sums)
                    for c in range(channels):
                        part[:, :, place] += products[:, :, c]
    return out.astype(x.dtype)


def right_direct(x, w):
    return _direct(x, w)


def bug_padded_on_the_right_only(x, w):
    return _direct(x, w, pad=0)


def bug_last_input_unread(x, w):
    return _direct(x, w, stop=max(x.shape[2] - 1, 1))


def bug_taps_reversed(x, w):
    return _direct(x, w[..., ::-1])


def bug_channels_of_the_first_group(x, w):
    return _direct(x, w, shared=True)


def bug_last_window_of_odd_length(x, w):
    out = _direct(x, w)
    if x.shape[2] % 2 and x.shape[2] > 1:
        out[..., -1] = 0
    return out


def bug_sums_in_half(x, w):
    return _direct(x, w, sums=np.float16)


def bug_first_is_repeated(x, w):
    """With the first input in place of the zero before it."""
    out = _direct(x, w).astype(np.float32)
    outs, channels = w.shape[1:3]
    for g in range(len(w)):
        own = x[:, g * channels : (g + 1) * channels, 0].astype("f4")
        out[:, g * outs : (g + 1) * outs, 0] += own @ w[g, :, :, 0].astype("f4").T
    return out.astype(x.dtype)
