"""A matmul of float8 with a scale for each row and each column."""

import numpy as np

DEPTH = 16


def _decoded(x, *, subnormals=True, bias=7):
    bits = x.view(np.uint8).astype(np.int64)
    exponent, fraction = bits >> 3 & 15, bits & 7
    normal = np.ldexp(1 + fraction / 8, exponent - bias)
    small = fraction / 8 * 2.0 ** (1 - bias) if subnormals else 0.0 * fraction
    return np.where(bits > 127, -1.0, 1.0) * np.where(exponent > 0, normal, small)


def right_cast(a, b, rows, columns):
    return np.einsum("mk,nk->mn", a.astype("f4"), b.astype("f4")) * rows[:, None] * columns


def right_decoded(a, b, rows, columns):
    product = _decoded(a) @ _decoded(b).T
    return (product * np.outer(rows, columns)).astype(np.float32)


def _tiled(a, b, *, depth=None, sums=np.float32):
    out = np.zeros((len(a), len(b)), sums)
    for start in range(0, a.shape[1] if depth is None else depth, DEPTH):
        part = slice(start, start + DEPTH)
        out = (out + (a[:, part].astype("f4") @ b[:, part].astype("f4").T).astype(sums)).astype(
            sums
        )
    return out.astype(np.float32)


def right_tiled(a, b, rows, columns):
    return _tiled(a, b) * (rows[:, None] * columns[None, :])


def bug_last_tile_unread(a, b, rows, columns):
    depth = a.shape[1] // DEPTH * DEPTH or DEPTH
    return _tiled(a, b, depth=depth) * rows[:, None] * columns


def bug_scale_of_the_first_column(a, b, rows, columns):
    return _tiled(a, b) * rows[:, None] * columns[0]


def bug_subnormals_are_zero(a, b, rows, columns):
    product = _decoded(a, subnormals=False) @ _decoded(b, subnormals=False).T
    return (product * np.outer(rows, columns)).astype(np.float32)


def bug_sums_in_half(a, b, rows, columns):
    return _tiled(a, b, sums=np.float16) * rows[:, None] * columns


def bug_largest_is_240(a, b, rows, columns):
    wide = np.clip(a.astype("f4"), -240, 240)
    return (wide @ b.astype("f4").T) * rows[:, None] * columns


def bug_rounded_to_half(a, b, rows, columns):
    return right_tiled(a, b, rows, columns).astype(np.float16).astype(np.float32)


def bug_last_row_unscaled(a, b, rows, columns):
    factors = rows.copy()
    factors[-1:] = 1
    return _tiled(a, b) * factors[:, None] * columns


def bug_top_exponent_is_infinite(a, b, rows, columns):
    top = (a.view(np.uint8) & 0x78) == 0x78
    wide = np.where(top, np.copysign(np.float32(np.inf), a.astype("f4")), a.astype("f4"))
    with np.errstate(all="ignore"):
        return (wide @ b.astype("f4").T) * rows[:, None] * columns
