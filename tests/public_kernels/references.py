"""References of the public kernels, in plain torch; written here, not copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

Tensor = torch.Tensor


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value.detach().numpy() if isinstance(value, Tensor) else value


def on_torch(function: Callable[..., Any]) -> Callable[..., Any]:
    """A reference that computes with torch, as one that takes arrays in order and gives arrays."""

    def reference(*arrays: Any) -> Any:
        return _plain(function(*(torch.from_numpy(np.array(x, order="C")) for x in arrays)))

    return reference


def gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """The reference of a backward pass: of the cotangent and the inputs."""

    def reference(dy: Tensor, *inputs: Tensor) -> Any:
        leaves = [x.requires_grad_() for x in inputs]
        return torch.autograd.grad(function(*leaves), leaves, dy)

    return on_torch(reference)


def _rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _rms_norm_gemma(x: Tensor, weight: Tensor) -> Tensor:
    return _rms_norm(x, 1 + weight)


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


def _softmax(x: Tensor) -> Tensor:
    return x.softmax(-1)


def _swiglu(a: Tensor, b: Tensor) -> Tensor:
    return F.silu(a) * b


def _geglu(a: Tensor, b: Tensor) -> Tensor:
    return F.gelu(a, approximate="tanh") * b


def _dyt(x: Tensor, alpha: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return gamma * torch.tanh(alpha * x) + beta


def _relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square()


def _poly_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    one = torch.ones((), dtype=x.dtype)
    powers = [_rms_norm(x**power, one) for power in (3, 2, 1)]
    return weight[0] * powers[0] + weight[1] * powers[1] + weight[2] * powers[2] + bias


def _sparsemax(x: Tensor) -> Tensor:
    ordered = x.sort(-1, descending=True).values
    ranks = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    total = ordered.cumsum(-1) - 1
    support = (ranks * ordered > total).sum(-1, keepdim=True)
    kept = total.gather(-1, support - 1)
    # Where a value lies on the threshold itself, a division's rounding must not decide.
    return torch.where(x * support > kept, x - kept / support, 0.0)


def _group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.group_norm(x, 2, weight, bias, 1e-6)


def _rotated(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def _rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    # The kernel reads the first half of the tables alone: in practice both halves are equal.
    cos, sin = (torch.cat([t[..., : t.shape[-1] // 2]] * 2, -1) for t in (cos, sin))
    return q * cos + _rotated(q) * sin, k * cos + _rotated(k) * sin


def _cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target.long())


def _cross_entropy_smoothed(x: Tensor, target: Tensor) -> Tensor:
    capped = 30 * torch.tanh(x / 30)
    return F.cross_entropy(capped, target.long(), label_smoothing=0.1, reduction="sum")


def _cross_entropy_backward(x: Tensor, target: Tensor) -> Any:
    x.requires_grad_()
    return torch.autograd.grad(_cross_entropy(x, target), x)


def _fused_linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x @ weight.T, target.long())


def _kl_div(logp: Tensor, q: Tensor) -> Tensor:
    return F.kl_div(logp.log_softmax(-1), q.softmax(-1), reduction="batchmean")


def _jsd(logp: Tensor, logq: Tensor) -> Tensor:
    p, q = logp.softmax(-1), logq.softmax(-1)
    middle = ((p + q) / 2).log()
    first = p * (logp.log_softmax(-1) - middle)
    second = q * (logq.log_softmax(-1) - middle)
    return (first + second).sum() / 2 / p.shape[0]


def _tvd(p: Tensor, q: Tensor) -> Tensor:
    return (p.softmax(-1) - q.softmax(-1)).abs().sum() / 2 / p.shape[0]


def _fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return _rms_norm(total, weight), total


def _multi_token_attention(scores: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    length = scores.shape[-1]
    keep = torch.ones(length, length, dtype=torch.bool).tril()
    probs = scores.masked_fill(~keep, -1e9).softmax(-1)
    return F.conv2d(probs, weight, bias, padding=1).masked_fill(~keep, 0.0)


rms_norm, rms_norm_backward = on_torch(_rms_norm), gradient(_rms_norm)
rms_norm_gemma = on_torch(_rms_norm_gemma)
layer_norm, layer_norm_backward = on_torch(_layer_norm), gradient(_layer_norm)
softmax, softmax_backward = on_torch(_softmax), gradient(_softmax)
swiglu, swiglu_backward = on_torch(_swiglu), gradient(_swiglu)
geglu, geglu_backward = on_torch(_geglu), gradient(_geglu)
dyt, dyt_backward = on_torch(_dyt), gradient(_dyt)
relu_squared, relu_squared_backward = on_torch(_relu_squared), gradient(_relu_squared)
poly_norm, poly_norm_backward = on_torch(_poly_norm), gradient(_poly_norm)
sparsemax, sparsemax_backward = on_torch(_sparsemax), gradient(_sparsemax)
fused_add_rms_norm = on_torch(_fused_add_rms_norm)
group_norm, group_norm_backward = on_torch(_group_norm), gradient(_group_norm)
rope = on_torch(_rope)
cross_entropy = on_torch(_cross_entropy)
cross_entropy_smoothed = on_torch(_cross_entropy_smoothed)
cross_entropy_backward = on_torch(_cross_entropy_backward)
fused_linear_cross_entropy = on_torch(_fused_linear_cross_entropy)
kl_div, jsd, tvd = on_torch(_kl_div), on_torch(_jsd), on_torch(_tvd)
multi_token_attention = on_torch(_multi_token_attention)
