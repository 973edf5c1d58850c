"""x' A x of a symmetric matrix."""

import numpy as np


def reference(a, x):
    return (x[:, None] * a * x[None, :]).sum()


def right_product(a, x):
    return np.asarray(x.astype(np.float64) @ a.astype(np.float64) @ x, x.dtype)


def right_halves(a, x):
    wide = a.astype(np.float64)
    products = np.outer(x, x).astype(np.float64)
    return np.asarray(2 * np.triu(wide * products, 1).sum() + (wide * products).trace(), x.dtype)


def right_loop(a, x):
    total = 0.0
    for i in range(x.size):
        for j in range(x.size):
            total += float(x[i]) * float(a[i, j]) * float(x[j])
    return np.asarray(total, x.dtype)


def wrong_lower_triangle(a, x):
    return np.asarray(x.astype(np.float64) @ np.tril(a) @ x, x.dtype)


def wrong_diagonal(a, x):
    return np.asarray((x * x * np.diag(a)).sum(), x.dtype)


def wrong_absolute(a, x):
    return np.asarray(np.abs(x).astype(np.float64) @ a @ np.abs(x), x.dtype)


def wrong_last_row(a, x):
    return right_product(a[:-1, :-1], x[:-1])


def wrong_diagonal_twice(a, x):
    return np.asarray(2 * np.triu(np.outer(x, x).astype(np.float64) * a).sum(), x.dtype)
