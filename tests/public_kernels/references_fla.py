"""References of the kernels of flash-linear-attention, step by step; written here, not copied.

Tensors of attention are laid out as batch, time, head, dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import references
import torch
import torch.nn.functional as F  # noqa: N812
from references import gradient, on_torch

Array = np.ndarray[Any, Any]

layer_norm, rms_norm, swiglu = references.layer_norm, references.rms_norm, references.swiglu
swish, swish_backward = on_torch(F.silu), gradient(F.silu)
sigmoid, logsigmoid = on_torch(torch.sigmoid), on_torch(F.logsigmoid)


def _wide(x: Array) -> Array:
    """At least as float32, in which the library gives its sums, whatever their dtype."""
    return x.astype(np.promote_types(x.dtype, np.float32))


def cross_entropy(x: Array, target: Array) -> Any:
    return references.cross_entropy(_wide(x), target)


def rms_norm_gated(x: Array, gate: Array, weight: Array) -> Array:
    normal = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight
    return np.asarray(normal * gate / (1 + np.exp(-gate)))


def l2norm(x: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6))


def rotary(x: Array, cos: Array, sin: Array) -> Array:
    first, second = np.split(x, 2, -1)
    cos, sin = cos[None, :, None], sin[None, :, None]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def token_shift(x: Array) -> Array:
    before = np.zeros_like(x)
    before[:, 1:] = x[:, :-1]
    return before - x


def mean_pooling(x: Array) -> Array:
    chunks = [x[:, i : i + 16].mean(1) for i in range(0, x.shape[1], 16)]
    return np.stack(chunks, 1)


def global_cumsum(x: Array) -> Array:
    return _wide(x).cumsum(1)


def local_cumsum(x: Array) -> Array:
    wide = _wide(x)
    return np.concatenate([wide[:, i : i + 16].cumsum(1) for i in range(0, x.shape[1], 16)], 1)


def solve_tril(a: Array) -> Array:
    """Inverse of 1 + A for the strict lower triangle of each chunk's square."""
    size = a.shape[-1]
    blocks = np.tril(a.transpose(0, 2, 1, 3).reshape(*a.shape[:1], a.shape[2], -1, size, size), -1)
    inverse = np.linalg.inv(blocks + np.eye(size, dtype=a.dtype))
    return inverse.reshape(a.shape[0], a.shape[2], -1, size).transpose(0, 2, 1, 3)


def _recurrent(
    q: Array, k: Array, v: Array, step: Callable[[Array, int, Array, Array], Array]
) -> Array:
    state = np.zeros((*q.shape[:1], q.shape[2], q.shape[3], v.shape[3]), q.dtype)
    out = np.empty((*q.shape[:3], v.shape[3]), q.dtype)
    for t in range(q.shape[1]):
        state = step(state, t, k[:, t, :, :, None], v[:, t, :, None, :])
        out[:, t] = (q[:, t, :, :, None] * state).sum(-2)
    return out


def linear_attn(q: Array, k: Array, v: Array) -> Array:
    return _recurrent(q / math.sqrt(q.shape[-1]), k, v, lambda s, t, a, b: s + a * b)


def retention(q: Array, k: Array, v: Array) -> Array:
    heads = np.arange(q.shape[2], dtype=q.dtype)
    decay = (1 - 2.0 ** (-5 - heads))[None, :, None, None]
    return _recurrent(q / math.sqrt(q.shape[-1]), k, v, lambda s, t, a, b: s * decay + a * b)


def gla(q: Array, k: Array, v: Array, g: Array) -> Array:
    decay = np.exp(g)[..., None]
    return _recurrent(q / math.sqrt(q.shape[-1]), k, v, lambda s, t, a, b: s * decay[:, t] + a * b)


def simple_gla(q: Array, k: Array, v: Array, g: Array) -> Array:
    return gla(q, k, v, np.broadcast_to(g[..., None], k.shape))


def hgrn(x: Array, g: Array) -> Array:
    state, out = np.zeros_like(x[:, 0]), np.empty_like(x)
    for t in range(x.shape[1]):
        state = np.exp(g[:, t]) * state + x[:, t]
        out[:, t] = state
    return out


def delta_rule(q: Array, k: Array, v: Array, beta: Array) -> Array:
    return gated_delta_rule(q, k, v, np.zeros_like(beta), beta)


def gated_delta_rule(q: Array, k: Array, v: Array, g: Array, beta: Array) -> Array:
    q, k = l2norm(q) / math.sqrt(q.shape[-1]), l2norm(k)

    def step(state: Array, t: int, key: Array, value: Array) -> Array:
        state = state * np.exp(g[:, t])[..., None, None]
        seen = (key * state).sum(-2, keepdims=True)
        return state + key * (value - seen) * beta[:, t][..., None, None]

    return _recurrent(q, k, v, step)


def rwkv6(r: Array, k: Array, v: Array, w: Array, u: Array) -> Array:
    state = np.zeros((r.shape[0], r.shape[2], r.shape[3], v.shape[3]), r.dtype)
    out = np.empty((*r.shape[:3], v.shape[3]), r.dtype)
    for t in range(r.shape[1]):
        product = k[:, t, :, :, None] * v[:, t, :, None, :]
        seen = state + u[None, :, :, None] * product
        out[:, t] = (r[:, t, :, :, None] / math.sqrt(r.shape[-1]) * seen).sum(-2)
        state = state * np.exp(w[:, t])[..., None] + product
    return out


def _attention(q: Array, k: Array, v: Array, bias: Array | float) -> Array:
    scores = np.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[-1]) + bias
    length = q.shape[1]
    scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bhij,bjhd->bihd", weights, v)


def attention(q: Array, k: Array, v: Array) -> Array:
    return _attention(q, k, v, 0.0)


def forgetting_attention(q: Array, k: Array, v: Array, g: Array) -> Array:
    total = g.cumsum(1).transpose(0, 2, 1)
    return _attention(q, k, v, total[..., :, None] - total[..., None, :])


def _all_at_once(q: Array, k: Array, v: Array, decay: Array) -> Array:
    """The same as `_recurrent`, by products of matrices as the chunked kernels have them."""
    total = np.broadcast_to(decay, q.shape).cumsum(1)
    kept = np.exp(np.minimum(total[:, :, None] - total[:, None], 0.0))
    scores = np.einsum("bijhd,bjhd->bhij", q[:, :, None] / math.sqrt(q.shape[-1]) * kept, k)
    scores = np.where(np.tri(q.shape[1], dtype=bool), scores, 0.0)
    return np.einsum("bhij,bjhd->bihd", scores, v)


def linear_attn_chunk(q: Array, k: Array, v: Array) -> Array:
    return _all_at_once(q, k, v, np.zeros_like(q))


def retention_chunk(q: Array, k: Array, v: Array) -> Array:
    heads = np.arange(q.shape[2], dtype=q.dtype)
    return _all_at_once(q, k, v, np.log(1 - 2.0 ** (-5 - heads))[:, None])


def gla_chunk(q: Array, k: Array, v: Array, g: Array) -> Array:
    return _all_at_once(q, k, v, g)


simple_gla_chunk, hgrn_chunk = simple_gla, hgrn
