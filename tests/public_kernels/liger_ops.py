"""Host functions that call the kernels of ``liger-kernel`` as its users do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
from liger_kernel.ops.dyt import LigerDyTFunction
from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction
from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction
from liger_kernel.ops.geglu import LigerGELUMulFunction
from liger_kernel.ops.group_norm import LigerGroupNormFunction
from liger_kernel.ops.jsd import LigerJSDFunction
from liger_kernel.ops.kl_div import LigerKLDivLossFunction
from liger_kernel.ops.layer_norm import LigerLayerNormFunction
from liger_kernel.ops.multi_token_attention import LigerMultiTokenAttentionFunction
from liger_kernel.ops.poly_norm import LigerPolyNormFunction
from liger_kernel.ops.relu_squared import LigerReLUSquaredFunction
from liger_kernel.ops.rms_norm import LigerRMSNormFunction
from liger_kernel.ops.rope import LigerRopeFunction
from liger_kernel.ops.softmax import LigerSoftmaxFunction
from liger_kernel.ops.sparsemax import LigerSparsemaxFunction
from liger_kernel.ops.swiglu import LigerSiLUMulFunction
from liger_kernel.ops.tvd import LigerTVDLossFunction

Tensor = torch.Tensor


def backward(function: Callable[..., Any], cotangent: Tensor, *inputs: Tensor) -> tuple[Any, ...]:
    """Gradients of a function at its inputs."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    return torch.autograd.grad(function(*leaves), leaves, cotangent)


def rms_norm(x: Tensor, weight: Tensor) -> Any:
    return LigerRMSNormFunction.apply(x, weight, 1e-6, 0.0, "llama", False)


def rms_norm_gemma(x: Tensor, weight: Tensor) -> Any:
    return LigerRMSNormFunction.apply(x, weight, 1e-6, 1.0, "gemma", False)


def rms_norm_backward(dy: Tensor, x: Tensor, weight: Tensor) -> Any:
    return backward(rms_norm, dy, x, weight)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    return LigerLayerNormFunction.apply(x, weight, bias, 1e-5)


def layer_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    return backward(layer_norm, dy, x, weight, bias)


def softmax(x: Tensor) -> Any:
    return LigerSoftmaxFunction.apply(x)


def softmax_backward(dy: Tensor, x: Tensor) -> Any:
    return backward(softmax, dy, x)


def swiglu(a: Tensor, b: Tensor) -> Any:
    return LigerSiLUMulFunction.apply(a, b)


def swiglu_backward(dy: Tensor, a: Tensor, b: Tensor) -> Any:
    return backward(swiglu, dy, a, b)


def geglu(a: Tensor, b: Tensor) -> Any:
    return LigerGELUMulFunction.apply(a, b)


def geglu_backward(dy: Tensor, a: Tensor, b: Tensor) -> Any:
    return backward(geglu, dy, a, b)


def dyt(x: Tensor, alpha: Tensor, gamma: Tensor, beta: Tensor) -> Any:
    return LigerDyTFunction.apply(x, alpha, gamma, beta)


def dyt_backward(dy: Tensor, x: Tensor, alpha: Tensor, gamma: Tensor, beta: Tensor) -> Any:
    return backward(dyt, dy, x, alpha, gamma, beta)


def relu_squared(x: Tensor) -> Any:
    return LigerReLUSquaredFunction.apply(x)


def relu_squared_backward(dy: Tensor, x: Tensor) -> Any:
    return backward(relu_squared, dy, x)


def poly_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    return LigerPolyNormFunction.apply(x, weight, bias, 1e-6, False)


def poly_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    return backward(poly_norm, dy, x, weight, bias)


def sparsemax(x: Tensor) -> Any:
    return LigerSparsemaxFunction.apply(x, -1)


def sparsemax_backward(dy: Tensor, x: Tensor) -> Any:
    return backward(sparsemax, dy, x)


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> Any:
    return LigerFusedAddRMSNormFunction.apply(x, residual, weight, 1e-6, 0.0, "llama", False)


def group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    return LigerGroupNormFunction.apply(x, weight, bias, 6, 2, 1e-6)


def group_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    return backward(group_norm, dy, x, weight, bias)


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
    return LigerRopeFunction.apply(q.clone(), k.clone(), cos, sin)


def cross_entropy(x: Tensor, target: Tensor) -> Any:
    return LigerCrossEntropyFunction.apply(x.clone(), target, None)[0]


def cross_entropy_smoothed(x: Tensor, target: Tensor) -> Any:
    return LigerCrossEntropyFunction.apply(x.clone(), target, None, -100, 0.0, 0.1, "sum", 30.0)[0]


def cross_entropy_backward(x: Tensor, target: Tensor) -> Any:
    leaf = x.detach().clone().requires_grad_()
    loss = LigerCrossEntropyFunction.apply(leaf * 1, target, None)[0]
    return torch.autograd.grad(loss, leaf)


def fused_linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor) -> Any:
    return LigerFusedLinearCrossEntropyFunction.apply(x, weight, target)[0]


def kl_div(logp: Tensor, q: Tensor) -> Any:
    return LigerKLDivLossFunction.apply(logp.log_softmax(-1), q.softmax(-1), "batchmean")


def jsd(logp: Tensor, logq: Tensor) -> Any:
    return LigerJSDFunction.apply(logp.log_softmax(-1), logq.log_softmax(-1))


def tvd(p: Tensor, q: Tensor) -> Any:
    return LigerTVDLossFunction.apply(p.softmax(-1), q.softmax(-1))


def multi_token_attention(scores: Tensor, weight: Tensor, bias: Tensor) -> Any:
    return LigerMultiTokenAttentionFunction.apply(scores, weight, bias, 1, 1, 1, 1)
