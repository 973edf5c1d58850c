"""Triton kernels that take tensor descriptors or tuples, and their host functions."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def boxes_kernel(x, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    source = tl.make_tensor_descriptor(x, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    target = tl.make_tensor_descriptor(out, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    row, col = tl.program_id(0) * BM, tl.program_id(1) * BN
    target.store([row, col], source.load([row, col]) * 2 + 1)


def boxes(x):
    """Double and add one, box by box, through tensor descriptors."""
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.shape[0], 16), triton.cdiv(x.shape[1], 32))
    boxes_kernel[grid](x, out, *x.shape, BM=16, BN=32)
    return out


@triton.jit
def described_kernel(
    a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr
):
    left = tl.make_tensor_descriptor(a, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    right = tl.make_tensor_descriptor(b, shape=[K, N], strides=[N, 1], block_shape=[BK, BN])
    out = tl.make_tensor_descriptor(c, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    row, col = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, K, BK, warp_specialize=SPLIT):
        total += tl.dot(left.load([row, k]), right.load([k, col]))
    out.store([row, col], total.to(c.dtype.element_ty))


def described(a, b):
    """Multiply through tensor descriptors; on sm_90 by products of warp groups."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n, dtype=a.dtype)
    grid = (triton.cdiv(m, 128), triton.cdiv(n, 64))
    described_kernel[grid](a, b, c, m, n, k, BM=128, BN=64, BK=64, SPLIT=False, num_warps=4)
    return c


def specialised(a, b):
    """Multiply with warps that only load and warps that only multiply."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n, dtype=a.dtype)
    grid = (triton.cdiv(m, 128), triton.cdiv(n, 64))
    described_kernel[grid](a, b, c, m, n, k, BM=128, BN=64, BK=64, SPLIT=True, num_warps=4)
    return c


@triton.jit
def added_kernel(x, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    source = tl.make_tensor_descriptor(x, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    target = tl.make_tensor_descriptor(out, shape=[BM, N], strides=[N, 1], block_shape=[BM, BN])
    row, col = tl.program_id(0) * BM, tl.program_id(1) * BN
    target.atomic_add([0, col], source.load([row, col]))


def added(x):
    """Add boxes of eight rows to each other in global memory."""
    out = torch.zeros(8, x.shape[1])
    grid = (triton.cdiv(x.shape[0], 8), triton.cdiv(x.shape[1], 32))
    added_kernel[grid](x, out, *x.shape, BM=8, BN=32)
    return out


@triton.jit
def handed_kernel(first, second, out, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row, col = tl.program_id(0) * BM, tl.program_id(1) * BN
    product = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        product = tl.dot(first.load([row, k]), second.load([k, col]), product)
    out.store([row, col], product.to(out.dtype))


def handed(a, b):
    """Multiply through tensor descriptors that the host function makes."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n, dtype=a.dtype)
    handed_kernel[triton.cdiv(m, 64), triton.cdiv(n, 64)](
        TensorDescriptor.from_tensor(a, [64, 32]),
        TensorDescriptor.from_tensor(b, [32, 64]),
        TensorDescriptor.from_tensor(c, [64, 64]),
        k,
        BM=64,
        BN=64,
        BK=32,
    )
    return c


@triton.jit
def paired_kernel(pair, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(pair[0] + at, mask=at < n)
    y = tl.load(pair[1][0] + at, mask=at < n)
    tl.store(out + at, x + y * pair[1][1], mask=at < n)


def paired(x, y):
    """Add twice a tensor, from a tuple in a tuple."""
    out = torch.empty_like(x)
    paired_kernel[(triton.cdiv(x.numel(), 128),)]((x, (y, 2)), out, x.numel(), BLOCK=128)
    return out
