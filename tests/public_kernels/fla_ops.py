"""Host functions that call the kernels of ``fla-core``, the ops of ``flash-linear-attention``."""

from __future__ import annotations

from typing import Any

import torch
from fla.modules import activations
from fla.modules.fused_cross_entropy import FusedCrossEntropyLoss
from fla.modules.norm import layernorm
from fla.modules.norm.fused_norm_gate import rms_norm_gated as fused_rms_norm_gated
from fla.modules.norm.l2norm import l2norm as fused_l2norm
from fla.modules.rotary.ops import rotary_embedding
from fla.modules.token_shift import token_shift as fused_token_shift
from fla.ops.attn.parallel import parallel_attn
from fla.ops.delta_rule import fused_recurrent_delta_rule
from fla.ops.forgetting_attn.parallel import parallel_forgetting_attn
from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule
from fla.ops.gla import chunk_gla, fused_recurrent_gla
from fla.ops.hgrn import chunk_hgrn, fused_recurrent_hgrn
from fla.ops.linear_attn import chunk_linear_attn, fused_recurrent_linear_attn
from fla.ops.retention import chunk_retention, fused_recurrent_retention
from fla.ops.rwkv6 import fused_recurrent_rwkv6
from fla.ops.simple_gla import chunk_simple_gla, fused_recurrent_simple_gla
from fla.ops.utils.cumsum import chunk_global_cumsum, chunk_local_cumsum
from fla.ops.utils.pooling import mean_pooling as fused_mean_pooling
from fla.ops.utils.solve_tril import solve_tril as fused_solve_tril
from liger_ops import backward

Tensor = torch.Tensor


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    return layernorm.layer_norm(x, weight, bias, eps=1e-5)


def rms_norm(x: Tensor, weight: Tensor) -> Any:
    return layernorm.rms_norm(x, weight, None, eps=1e-6)


def rms_norm_gated(x: Tensor, gate: Tensor, weight: Tensor) -> Any:
    return fused_rms_norm_gated(x, gate, weight, None, eps=1e-6)


def l2norm(x: Tensor) -> Any:
    return fused_l2norm(x)


def swish(x: Tensor) -> Any:
    return activations.swish(x)


def swish_backward(dy: Tensor, x: Tensor) -> Any:
    return backward(swish, dy, x)


def sigmoid(x: Tensor) -> Any:
    return activations.sigmoid(x)


def logsigmoid(x: Tensor) -> Any:
    return activations.logsigmoid(x)


def swiglu(x: Tensor, y: Tensor) -> Any:
    return activations.swiglu(x, y)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Any:
    return rotary_embedding(x, cos, sin)


def token_shift(x: Tensor) -> Any:
    return fused_token_shift(x)


def cross_entropy(x: Tensor, target: Tensor) -> Any:
    return FusedCrossEntropyLoss()(x, target)


def mean_pooling(x: Tensor) -> Any:
    return fused_mean_pooling(x, 16)


def global_cumsum(x: Tensor) -> Any:
    return chunk_global_cumsum(x)


def local_cumsum(x: Tensor) -> Any:
    return chunk_local_cumsum(x, 16)


def solve_tril(a: Tensor) -> Any:
    blocks = a.transpose(1, 2).unflatten(2, (-1, a.shape[-1])).tril(-1)
    return fused_solve_tril(blocks.flatten(2, 3).transpose(1, 2).contiguous())


def linear_attn(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return fused_recurrent_linear_attn(q, k, v, normalize=False)[0]


def linear_attn_chunk(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return chunk_linear_attn(q, k, v, normalize=False)[0]


def retention(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return fused_recurrent_retention(q, k, v)[0]


def retention_chunk(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return chunk_retention(q, k, v)[0]


def gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Any:
    return fused_recurrent_gla(q, k, v, g)[0]


def gla_chunk(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Any:
    return chunk_gla(q, k, v, g)[0]


def simple_gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Any:
    return fused_recurrent_simple_gla(q, k, v, g)[0]


def simple_gla_chunk(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Any:
    return chunk_simple_gla(q, k, v, g)[0]


def hgrn(x: Tensor, g: Tensor) -> Any:
    return fused_recurrent_hgrn(x, g)[0]


def hgrn_chunk(x: Tensor, g: Tensor) -> Any:
    return chunk_hgrn(x, g)[0]


def delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Any:
    return fused_recurrent_delta_rule(q, k, v, beta, use_qk_l2norm_in_kernel=True)[0]


def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Any:
    return fused_recurrent_gated_delta_rule(q, k, v, g, beta=beta, use_qk_l2norm_in_kernel=True)[0]


def rwkv6(r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor) -> Any:
    return fused_recurrent_rwkv6(r, k, v, w, u)[0]


def attention(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return parallel_attn(q, k, v)


def forgetting_attention(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Any:
    return parallel_forgetting_attn(q, k, v, g)
