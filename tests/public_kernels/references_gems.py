"""References of the kernels of flag-gems, in numpy and torch; written here, not copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch.nn.functional as F  # noqa: N812
from references import on_torch

Array = np.ndarray[Any, Any]


def total(x: Array) -> Array:
    return np.asarray(x.sum(-1))


def mean(x: Array) -> Array:
    return np.asarray(x.mean(-1))


def amax(x: Array) -> Array:
    return np.asarray(x.max(-1))


def cumsum(x: Array) -> Array:
    return x.cumsum(1)


def rms_norm(x: Array, weight: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight)


def vector_norm(x: Array) -> Array:
    return np.asarray(np.sqrt((x * x).sum(-1)))


def mm(a: Array, b: Array) -> Array:
    return np.asarray(a @ b)


bmm = mv = mm


def triu(x: Array) -> Array:
    return np.triu(x)


def embedding(weight: Array, index: Array) -> Array:
    return np.asarray(weight[index])


def index_select(x: Array, index: Array) -> Array:
    return np.asarray(x[index])


def gather(x: Array, index: Array) -> Array:
    return np.take_along_axis(x, index, 1)


def mse_loss(x: Array, y: Array) -> Array:
    return np.asarray(((x - y) ** 2).mean())


softmax = on_torch(lambda x: x.softmax(-1))
log_softmax = on_torch(lambda x: x.log_softmax(-1))
layer_norm = on_torch(lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b, 1e-5))
