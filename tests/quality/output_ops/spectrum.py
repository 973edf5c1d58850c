"""A Fourier transform: complex numbers, judged by the absolute value of the difference."""

import numpy as np


def _complex(x):
    return np.complex64 if x.dtype == np.float32 else np.complex128


def right_fast(x):
    return np.fft.fft(x, axis=1).astype(_complex(x))


def right_slow(x):
    k = np.arange(x.shape[1])
    w = np.exp(-2j * np.pi * np.outer(k, k) / len(k)).astype(_complex(x))
    return x.astype(_complex(x)) @ w


def right_parts(x):
    k = np.arange(x.shape[1])
    angle = 2 * np.pi * np.outer(k, k) / len(k)
    re, im = x @ np.cos(angle).astype(x.dtype), x @ np.sin(angle).astype(x.dtype)
    return (re - 1j * im).astype(_complex(x))


def bug_conjugate(x):
    return np.conj(right_fast(x))


def bug_magnitudes(x):
    return np.abs(right_fast(x)).astype(_complex(x))


def bug_real(x):
    return right_fast(x).real.copy()


def bug_last_bin(x):
    y = right_fast(x)
    y[:, -1] = 0
    return y


def bug_scaled(x):
    return (right_fast(x) * 1.001).astype(_complex(x))
