"""Solutions of a batch of positive definite systems."""

import numpy as np


def _factor(a, *, updates=None):
    lower = np.zeros_like(a)
    for j in range(len(a)):
        before = lower[:, :j] if updates is None else lower[:, : min(j, updates)]
        row = before[j]
        lower[j, j] = np.sqrt(a[j, j] - row @ row)
        lower[j + 1 :, j] = (a[j + 1 :, j] - before[j + 1 :] @ row) / lower[j, j]
    return lower


def _forward(lower, b):
    y = np.zeros_like(b)
    for i in range(len(b)):
        y[i] = (b[i] - lower[i, :i] @ y[:i]) / lower[i, i]
    return y


def _backward(upper, y, last=0):
    x = np.zeros_like(y)
    for i in reversed(range(last, len(y))):
        x[i] = (y[i] - upper[i, i + 1 :] @ x[i + 1 :]) / upper[i, i]
    return x


def right_library(a, b):
    wide = np.linalg.solve(a.astype(np.float64), b.astype(np.float64)[..., None])
    return wide[..., 0].astype(b.dtype)


def right_columns(a, b):
    out = np.empty_like(b)
    for n in range(len(a)):
        lower = _factor(a[n])
        out[n] = _backward(lower.T, _forward(lower, b[n]))
    return out


def right_without_roots(a, b):
    """L D L' of all matrices at once."""
    size = a.shape[1]
    lower, diagonal, x = np.zeros_like(a), np.zeros_like(b), b.copy()
    for j in range(size):
        row = lower[:, j, :j]
        diagonal[:, j] = a[:, j, j] - (row * row * diagonal[:, :j]).sum(axis=1)
        below = (lower[:, j + 1 :, :j] * (row * diagonal[:, :j])[:, None]).sum(axis=2)
        lower[:, j + 1 :, j] = (a[:, j + 1 :, j] - below) / diagonal[:, j, None]
    for i in range(size):
        x[:, i] -= (lower[:, i, :i] * x[:, :i]).sum(axis=1)
    x /= diagonal
    for i in reversed(range(size)):
        x[:, i] -= (lower[:, i + 1 :, i] * x[:, i + 1 :]).sum(axis=1)
    return x


def bug_first_matrix_for_all(a, b):
    return right_columns(np.broadcast_to(a[:1], a.shape), b)


def bug_no_transpose(a, b):
    factors = [_factor(matrix) for matrix in a]
    pairs = zip(factors, b, strict=True)
    return np.stack([_backward(f, _forward(f, row)) for f, row in pairs])


def bug_last_column_not_updated(a, b):
    out = np.empty_like(b)
    for n, matrix in enumerate(a):
        lower = _factor(matrix)
        lower[-1, -1] = np.sqrt(matrix[-1, -1])
        out[n] = _backward(lower.T, _forward(lower, b[n]))
    return out


def bug_updates_of_one_block(a, b):
    factors = [_factor(matrix, updates=8) for matrix in a]
    pairs = zip(factors, b, strict=True)
    return np.stack([_backward(f.T, _forward(f, row)) for f, row in pairs])


def bug_first_row_left(a, b):
    factors = [_factor(matrix) for matrix in a]
    pairs = zip(factors, b, strict=True)
    return np.stack([_backward(f.T, _forward(f, row), last=1) for f, row in pairs])


def bug_forward_only(a, b):
    return np.stack([_forward(_factor(m), row) for m, row in zip(a, b, strict=True)])


def bug_matrix_of_one_element(a, b):
    return right_columns(a, b) if b.shape[1] > 1 else b / np.sqrt(a[:, 0])
