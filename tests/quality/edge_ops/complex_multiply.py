"""Rows of complex numbers times the conjugate of one row."""

import numpy as np

LANES = 16


def right_vectors(a, b):
    return a * b.conj()


def right_parts(a, b):
    out = np.empty(a.shape, np.complex64)
    out.real = a.real * b.real + a.imag * b.imag
    out.imag = a.imag * b.real - a.real * b.imag
    return out


def right_polar(a, b):
    wide = a.astype("c16")
    size, turn = np.abs(wide) * np.abs(b.astype("c16")), np.angle(wide) - np.angle(b.astype("c16"))
    return (size * np.exp(1j * turn)).astype(np.complex64)


def bug_other_one_conjugated(a, b):
    return a.conj() * b


def bug_none_conjugated(a, b):
    return a * b


def bug_last_lanes_not_conjugated(a, b):
    out = a * b.conj()
    whole = b.size // LANES * LANES
    out[:, whole:] = a[:, whole:] * b[whole:]
    return out


def bug_three_products(a, b):
    first = b.real * (a.real + a.imag)
    second, third = a.real * (b.real - b.imag), a.imag * (b.real + b.imag)
    return ((first - third) + 1j * (first - second)).astype(np.complex64)


def bug_imaginary_part_in_half(a, b):
    out = a * b.conj()
    out.imag = out.imag.astype(np.float16)
    return out


def bug_wide(a, b):
    return a.astype("c16") * b.conj()


def bug_real_part_of_the_last(a, b):
    out = a * b.conj()
    out[:, -1].imag = 0
    return out
