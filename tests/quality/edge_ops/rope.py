"""Rotary embedding with tables of cosines and sines."""

import numpy as np

PAIRS = 8


def right_halves(x, place, cosine, sine):
    c, s = (np.concatenate([t, t], axis=1)[place][:, None].astype("f4") for t in (cosine, sine))
    wide = x.astype("f4")
    half = x.shape[2] // 2
    turned = np.concatenate([-wide[..., half:], wide[..., :half]], axis=2)
    return (wide * c + turned * s).astype(x.dtype)


def right_complex(x, place, cosine, sine):
    half = x.shape[2] // 2
    pairs = x[..., :half].astype("f8") + 1j * x[..., half:].astype("f8")
    turned = pairs * (cosine[place].astype("f8") + 1j * sine[place].astype("f8"))[:, None]
    return np.concatenate([turned.real, turned.imag], axis=2).astype(x.dtype)


def _tiled(x, place, cosine, sine, *, whole=False):
    out = x.copy()
    half = x.shape[2] // 2
    stop = max(half // PAIRS * PAIRS, PAIRS) if whole else half
    for t, p in enumerate(place.tolist()):
        for start in range(0, min(stop, half), PAIRS):
            a = slice(start, min(start + PAIRS, half))
            b = slice(a.start + half, a.stop + half)
            c, s = cosine[p, a].astype("f4"), sine[p, a].astype("f4")
            left, right = x[t, :, a].astype("f4"), x[t, :, b].astype("f4")
            out[t, :, a], out[t, :, b] = left * c - right * s, right * c + left * s
    return out


def right_tiled(x, place, cosine, sine):
    return _tiled(x, place, cosine, sine)


def bug_interleaved(x, place, cosine, sine):
    out = np.empty_like(x)
    c, s = cosine[place][:, None].astype("f4"), sine[place][:, None].astype("f4")
    even, odd = x[..., 0::2].astype("f4"), x[..., 1::2].astype("f4")
    out[..., 0::2], out[..., 1::2] = even * c - odd * s, odd * c + even * s
    return out


def bug_places_in_order(x, place, cosine, sine):
    return _tiled(x, np.arange(len(x)) % len(cosine), cosine, sine)


def bug_last_pairs_not_turned(x, place, cosine, sine):
    return _tiled(x, place, cosine, sine, whole=True)


def bug_sign(x, place, cosine, sine):
    return _tiled(x, place, cosine, -sine)


def bug_in_place_order(x, place, cosine, sine):
    out = x.astype("f4")
    half = x.shape[2] // 2
    c, s = cosine[place][:, None].astype("f4"), sine[place][:, None].astype("f4")
    out[..., :half] = out[..., :half] * c - out[..., half:] * s
    out[..., half:] = out[..., half:] * c + out[..., :half] * s
    return out.astype(x.dtype)


def bug_place_of_one_byte(x, place, cosine, sine):
    return _tiled(x, place & 255, cosine, sine)


def bug_last_head_not_turned(x, place, cosine, sine):
    out = _tiled(x, place, cosine, sine)
    out[:, max(x.shape[1] - 1, 1) :] = x[:, max(x.shape[1] - 1, 1) :]
    return out


def bug_place_zero_is_not_turned(x, place, cosine, sine):
    out = _tiled(x, place, cosine, sine)
    out[place == 0] = x[place == 0]
    return out


def bug_places_read_without_their_stride(x, place, cosine, sine):
    close = np.lib.stride_tricks.as_strided(place, place.shape, (place.itemsize,))
    return _tiled(x, close % len(cosine), cosine, sine)
