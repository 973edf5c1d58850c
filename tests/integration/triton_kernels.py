"""Triton kernels as people write them for a GPU, their references, and bugs to plant in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SOFTMAX = """
import torch
import triton
import triton.language as tl
from triton.runtime import driver

DEVICE = driver.active.get_active_torch_device()
PROPERTIES = driver.active.utils.get_device_properties(DEVICE.index)
NUM_SM = PROPERTIES["multiprocessor_count"]
NUM_REGS = PROPERTIES["max_num_regs"]


@triton.jit
def softmax_kernel(out_ptr, in_ptr, in_stride, out_stride, n_rows, n_cols, BLOCK: tl.constexpr,
                   num_stages: tl.constexpr):
    start = tl.program_id(0)
    step = tl.num_programs(0)
    for row in tl.range(start, n_rows, step, num_stages=num_stages):
        cols = tl.arange(0, BLOCK)
        mask = cols < n_cols
        x = tl.load(in_ptr + row * in_stride + cols, mask=mask, other=-float("inf"))
        x = x.to(tl.float32) - tl.max(x.to(tl.float32), axis=0)
        e = tl.exp(x)
        y = e / tl.sum(e, axis=0)
        tl.store(out_ptr + row * out_stride + cols, y, mask=mask)


def run(x):
    assert x.is_cuda and x.device.type == "cuda"
    rows = x.reshape(-1, x.shape[-1])
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    n_rows, n_cols = rows.shape
    y = torch.empty((n_rows, n_cols), device=DEVICE, dtype=x.dtype)
    if y.numel() == 0:
        return y.reshape(x.shape)
    BLOCK = triton.next_power_of_2(n_cols)
    kernel = softmax_kernel.warmup(y, rows, rows.stride(0), y.stride(0), n_rows, n_cols,
                                   BLOCK=BLOCK, num_stages=2, num_warps=8, grid=(1,))
    kernel._init_handles()
    occupancy = max(1, NUM_REGS // (kernel.n_regs * 32 * 8 * max(1, kernel.metadata.shared)))
    programs = min(NUM_SM * occupancy, n_rows)
    kernel[(programs, 1, 1)](y, rows, rows.stride(0), y.stride(0), n_rows, n_cols, BLOCK, 2)
    return y.reshape(x.shape)
"""

LAYERNORM = """
import torch
import triton
import triton.language as tl


@triton.jit
def moments(x, mask, n):
    mean = tl.sum(x, axis=0) / n
    centred = tl.where(mask, x - mean, 0.0)
    return mean, tl.sum(centred * centred, axis=0) / n


@triton.jit
def layernorm_kernel(X, Y, W, B, Mean, Rstd, stride, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    x = tl.load(X + row * stride + cols, mask=mask, other=0.0).to(tl.float32)
    mean, var = moments(x, mask, N)
    rstd = 1 / tl.sqrt(var + eps)
    w = tl.load(W + cols, mask=mask)
    b = tl.load(B + cols, mask=mask)
    tl.store(Y + row * stride + cols, (x - mean) * rstd * w + b, mask=mask)
    tl.store(Mean + row, mean)
    tl.store(Rstd + row, rstd)


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        x = x.contiguous()
        y = torch.empty_like(x)
        rows = x.numel() // x.shape[-1]
        mean = torch.empty((rows,), dtype=torch.float32, device="cuda")
        rstd = torch.empty((rows,), dtype=torch.float32, device="cuda")
        with torch.cuda.device(x.device):
            layernorm_kernel[(rows,)](x, y, weight, bias, mean, rstd, x.shape[-1], x.shape[-1],
                                      eps, BLOCK=triton.next_power_of_2(x.shape[-1]), num_warps=4)
        ctx.save_for_backward(x, weight, mean, rstd)
        return y, mean, rstd


def run(x, weight, bias, eps=1e-5):
    return LayerNorm.apply(x, weight, bias, eps)
"""

MATMUL = """
import torch
import triton
import triton.language as tl


def configs():
    return [triton.Config({"BM": 16, "BN": 16, "BK": 16, "GROUP": 2}, num_warps=4, num_stages=2),
            triton.Config({"BM": 32, "BN": 16, "BK": 32, "GROUP": 4}, num_warps=8)]


@triton.autotune(configs=configs(), key=["M", "N", "K"])
@triton.heuristics({"EVEN_K": lambda args: args["K"] % args["BK"] == 0})
@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, M, N, K, sam, sak, sbk, sbn, scm, scn,
                  BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
                  EVEN_K: tl.constexpr):
    pid = tl.program_id(axis=0)
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    in_group = GROUP * tiles_n
    first = (pid // in_group) * GROUP
    size = min(tiles_m - first, GROUP)
    pid_m = first + (pid % in_group) % size
    pid_n = (pid % in_group) // size
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        left = (rm[:, None] < M)
        right = (rn[None, :] < N)
        if not EVEN_K:
            left = left & (rk[None, :] + k * BK < K)
            right = right & (rk[:, None] + k * BK < K)
        a = tl.load(a_ptr + rm[:, None] * sam + (rk[None, :] + k * BK) * sak, mask=left, other=0.0)
        b = tl.load(b_ptr + (rk[:, None] + k * BK) * sbk + rn[None, :] * sbn, mask=right, other=0.0)
        acc = tl.dot(a, b, acc)
    inside = (rm[:, None] < M) & (rn[None, :] < N)
    tl.store(c_ptr + rm[:, None] * scm + rn[None, :] * scn, acc.to(c_ptr.dtype.element_ty),
             mask=inside)


def run(a, b):
    assert a.shape[1] == b.shape[0]
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    grid = lambda META: (triton.cdiv(M, META["BM"]) * triton.cdiv(N, META["BN"]),)
    matmul_kernel[grid](a, b, c, M, N, K, a.stride(0), a.stride(1), b.stride(0), b.stride(1),
                        c.stride(0), c.stride(1))
    return c
"""

ATTENTION = """
import math

import torch
import triton
import triton.language as tl


@triton.jit
def attention_kernel(Q, K, V, Out, L, scale, sh, sm, S, D: tl.constexpr, BM: tl.constexpr,
                     BN: tl.constexpr, CAUSAL: tl.constexpr):
    block = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    rows = block * BM + tl.arange(0, BM)
    dims = tl.arange(0, D)
    q = tl.load(Q + head * sh + rows[:, None] * sm + dims[None, :], mask=rows[:, None] < S,
                other=0.0)
    m = tl.full((BM,), float("-inf"), tl.float32)
    l = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    stop = tl.minimum(S, (block + 1) * BM) if CAUSAL else S
    for start in range(0, stop, BN):
        cols = start + tl.arange(0, BN)
        k = tl.load(K + head * sh + cols[:, None] * sm + dims[None, :], mask=cols[:, None] < S,
                    other=0.0)
        v = tl.load(V + head * sh + cols[:, None] * sm + dims[None, :], mask=cols[:, None] < S,
                    other=0.0)
        s = tl.dot(q, tl.trans(k)) * scale
        keep = cols[None, :] < S
        if CAUSAL:
            keep = keep & (cols[None, :] <= rows[:, None])
        s = tl.where(keep, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, axis=1))
        p = tl.exp(s - m_new[:, None])
        alpha = tl.exp(m - m_new)
        l = l * alpha + tl.sum(p, axis=1)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)
        m = m_new
    acc = acc / l[:, None]
    tl.store(Out + head * sh + rows[:, None] * sm + dims[None, :], acc.to(Out.dtype.element_ty),
             mask=rows[:, None] < S)
    tl.store(L + head * S + rows, m + tl.log(l), mask=rows < S)


def run(q, k, v, causal=True):
    q, k, v = q.cuda().contiguous(), k.cuda().contiguous(), v.cuda().contiguous()
    H, S, D = q.shape
    out = torch.empty_like(q)
    lse = q.new_empty((H, S), dtype=torch.float32)
    attention_kernel[(triton.cdiv(S, 16), H)](q, k, v, out, lse, 1 / math.sqrt(D), q.stride(0),
                                              q.stride(1), S, D, BM=16, BN=16, CAUSAL=causal)
    torch.cuda.synchronize()
    return out, lse
"""


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def layernorm(x: Array, weight: Array, bias: Array) -> tuple[Array, Array, Array]:
    mean = x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return (x - mean) * rstd * weight + bias, mean.ravel(), rstd.ravel()


def matmul(a: Array, b: Array) -> Array:
    return np.asarray(a @ b)


def attention(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    s = np.where(np.tri(s.shape[-2], s.shape[-1], dtype=bool), s, -np.inf)
    top = s.max(-1, keepdims=True)
    e = np.exp(s - top)
    total = e.sum(-1, keepdims=True)
    return e / total @ v, (top + np.log(total))[..., 0]


@dataclass(frozen=True)
class Kernel:
    """A host function's source, its reference and input shapes."""

    source: str
    reference: Callable[..., Any]
    shapes: dict[str, tuple[int, ...]]

    def inputs(self, dtype: str = "float32", seed: int = 0) -> dict[str, Array]:
        """Normal values."""
        rng = np.random.default_rng(seed)
        return {n: rng.standard_normal(s).astype(dtype) for n, s in self.shapes.items()}

    def write(self, folder: Path, name: str, bug: tuple[str, str] | None = None) -> str:
        """As a file, with or without a bug; ``path:function``."""
        text = self.source
        if bug is not None:
            assert text.count(bug[0]) >= 1, bug
            text = text.replace(bug[0], bug[1])
        path = folder / f"{name}.py"
        path.write_text(text, encoding="utf-8")
        return f"{path}:run"


KERNELS = {
    "softmax": Kernel(SOFTMAX, softmax, {"x": (5, 13)}),
    "layernorm": Kernel(LAYERNORM, layernorm, {"x": (4, 19), "weight": (19,), "bias": (19,)}),
    "matmul": Kernel(MATMUL, matmul, {"a": (37, 21), "b": (21, 18)}),
    "attention": Kernel(
        ATTENTION, attention, {"q": (2, 35, 16), "k": (2, 35, 16), "v": (2, 35, 16)}
    ),
}

BUGS: dict[str, tuple[str, tuple[str, str], str]] = {
    "softmax: wrong fill of the tail": (
        "softmax", ('other=-float("inf")', "other=0.0"), "ToleranceExceeded"),
    "softmax: store over the row's end": (
        "softmax", ("+ cols, y, mask=mask)", "+ cols, y, mask=cols < n_cols + 1)"),
        "OutOfBoundsWrite"),
    "softmax: load without mask": (
        "softmax", ("+ cols, mask=mask, other", "+ cols, mask=cols < BLOCK, other"),
        "OutOfBoundsRead"),
    "softmax: rows left out": ("softmax", ("start, n_rows, step", "start, n_rows - 1, step"),
                               "OutputNotWritten"),
    "softmax: stride forgotten": (
        "softmax", ("in_ptr + row * in_stride", "in_ptr + row * BLOCK"), "OutOfBoundsRead"),
    "layernorm: tail counted in the variance": (
        "layernorm", ("tl.where(mask, x - mean, 0.0)", "x - mean"), "ToleranceExceeded"),
    "layernorm: eps outside of the root": (
        "layernorm", ("tl.sqrt(var + eps)", "(tl.sqrt(var) + 0.1)"), "ToleranceExceeded"),
    "layernorm: a statistic not stored": (
        "layernorm", ("    tl.store(Mean + row, mean)\n", ""), "OutputNotWritten"),
    "layernorm: one row too many": (
        "layernorm", ("layernorm_kernel[(rows,)]", "layernorm_kernel[(rows + 1,)]"),
        "OutOfBoundsRead"),
    "matmul: the tail of K dropped": (
        "matmul", ("range(0, tl.cdiv(K, BK))", "range(0, K // BK)"), "ToleranceExceeded"),
    "matmul: a tile column left out": (
        "matmul", ('* triton.cdiv(N, META["BN"])', '* (N // META["BN"])'), "OutputNotWritten"),
    "matmul: store without the row's mask": (
        "matmul", ("inside = (rm[:, None] < M) & (rn", "inside = (rm[:, None] < M + 8) & (rn"),
        "OutOfBoundsWrite"),
    "matmul: strides swapped": (
        "matmul", ("b.stride(0), b.stride(1),\n", "b.stride(1), b.stride(0),\n"),
        "ToleranceExceeded"),
    "attention: no rescaling of the sum": (
        "attention", ("l = l * alpha +", "l = l +"), "ToleranceExceeded"),
    "attention: mask off by one": (
        "attention", ("cols[None, :] <= rows", "cols[None, :] < rows"), "NaNDetected"),
    "attention: last block left out": (
        "attention", ("(triton.cdiv(S, 16), H)", "(S // 16, H)"), "OutputNotWritten"),
    "attention: lse stored past the end": (
        "attention", ("m + tl.log(l), mask=rows < S)", "m + tl.log(l))"), "OutOfBoundsWrite"),
}  # fmt: skip
