"""Dot products of grouped queries with the keys of their group."""

import numpy as np


def reference(q, k):
    return (q * np.repeat(k, q.shape[0] // k.shape[0], axis=0)).sum(axis=-1)


def right_repeated(q, k):
    with np.errstate(all="ignore"):
        return reference(q, k)


def right_reshaped(q, k):
    groups = q.reshape(k.shape[0], -1, *q.shape[1:])
    with np.errstate(all="ignore"):
        return (groups * k[:, None]).sum(axis=-1).reshape(q.shape[:2])


def right_loop(q, k):
    out = np.empty(q.shape[:2], q.dtype)
    group = q.shape[0] // k.shape[0]
    with np.errstate(all="ignore"):
        for head in range(q.shape[0]):
            out[head] = (q[head] * k[head // group]).sum(axis=-1)
    return out


def wrong_tiled(q, k):
    return (q * np.tile(k, (q.shape[0] // k.shape[0], 1, 1))).sum(axis=-1)


def wrong_first_head(q, k):
    return (q * k[:1]).sum(axis=-1)


def wrong_half_of_the_dim(q, k):
    half = q.shape[-1] // 2
    return right_loop(q[..., :half], k[..., :half])


def wrong_last_head(q, k):
    out = reference(q, k)
    out[-1] = (q[-1] * k[0]).sum(axis=-1)
    return out


def wrong_last_column(q, k):
    return right_loop(q[..., :-1], k[..., :-1])
