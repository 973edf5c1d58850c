"""Sources of the ops and references that a new workspace gets, in each framework."""

REFERENCE_SOFTMAX = '''\
"""Softmax, as a textbook has it: what scripts/softmax.py is held against, in float64."""

import numpy as np


def softmax(x):
    """Softmax of `x` over its last axis."""
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)
'''

REFERENCE_MATMUL = '''\
"""Matrix product, by numpy."""


def matmul(a, b):
    """`a` [M, K] times `b` [K, N]."""
    return a @ b
'''

NUMPY_SOFTMAX = '''\
"""Softmax over the last axis, as a kernel does it: float32 inside, the input's dtype outside."""

import numpy as np


def softmax(x):
    """Softmax of `x` over its last axis."""
    wide = x.astype(np.float32)
    weights = np.exp(wide - wide.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(x.dtype)
'''

NUMPY_MATMUL = '''\
"""Matrix product in tiles, accumulated in float32."""

import numpy as np

TILE = 32


def matmul(a, b):
    """`a` [M, K] times `b` [K, N]."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for start in range(0, a.shape[1], TILE):
        left = a[:, start : start + TILE].astype(np.float32)
        total += left @ b[start : start + TILE].astype(np.float32)
    return total.astype(a.dtype)
'''

TORCH_SOFTMAX = '''\
"""Softmax over the last axis in PyTorch: float32 inside, the input's dtype outside."""

import torch


def softmax(x):
    """Softmax of the tensor `x` over its last axis."""
    wide = x.float()
    weights = (wide - wide.amax(dim=-1, keepdim=True)).exp()
    return (weights / weights.sum(dim=-1, keepdim=True)).to(x.dtype)
'''

TORCH_MATMUL = '''\
"""Matrix product in PyTorch, in tiles, accumulated in float32."""

import torch

TILE = 32


def matmul(a, b):
    """`a` [M, K] times `b` [K, N]."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for start in range(0, a.shape[1], TILE):
        total += a[:, start : start + TILE].float() @ b[start : start + TILE].float()
    return total.to(a.dtype)
'''

JAX_SOFTMAX = '''\
"""Softmax over the last axis in JAX: float32 inside, the input's dtype outside."""

import jax
import jax.numpy as jnp


@jax.jit
def softmax(x):
    """Softmax of the array `x` over its last axis."""
    wide = jnp.asarray(x, jnp.float32)
    weights = jnp.exp(wide - wide.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(x.dtype)
'''

JAX_MATMUL = '''\
"""Matrix product in JAX, accumulated in float32."""

import jax
import jax.numpy as jnp


@jax.jit
def matmul(a, b):
    """`a` [M, K] times `b` [K, N]."""
    left, right = jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32)
    return jnp.matmul(left, right, precision=jax.lax.Precision.HIGHEST).astype(a.dtype)
'''

TENSORFLOW_SOFTMAX = '''\
"""Softmax over the last axis in TensorFlow: float32 inside, the input's dtype outside."""

import tensorflow as tf


def softmax(x):
    """Softmax of the array `x` over its last axis."""
    wide = tf.cast(tf.convert_to_tensor(x), tf.float32)
    weights = tf.exp(wide - tf.reduce_max(wide, axis=-1, keepdims=True))
    return tf.cast(weights / tf.reduce_sum(weights, axis=-1, keepdims=True), x.dtype).numpy()
'''

TENSORFLOW_MATMUL = '''\
"""Matrix product in TensorFlow, accumulated in float32."""

import tensorflow as tf


def matmul(a, b):
    """`a` [M, K] times `b` [K, N]."""
    left, right = tf.cast(a, tf.float32), tf.cast(b, tf.float32)
    return tf.cast(tf.matmul(left, right), a.dtype).numpy()
'''

TRITON_SOFTMAX = '''\
"""Softmax of rows in Triton; on a machine without a GPU it runs in Triton's interpreter."""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x, y, columns, BLOCK: tl.constexpr):
    """One program per row, which has to fit into one block."""
    cols = tl.arange(0, BLOCK)
    inside = cols < columns
    row = tl.program_id(0) * columns
    values = tl.load(x + row + cols, mask=inside, other=float("-inf")).to(tl.float32)
    weights = tl.exp(values - tl.max(values, axis=0))
    result = weights / tl.sum(weights, axis=0)
    tl.store(y + row + cols, result.to(y.dtype.element_ty), mask=inside)


def run(x):
    """Softmax of the tensor `x` [M, N] over its rows."""
    x = x.contiguous()
    y = torch.empty_like(x)
    rows, columns = x.shape
    softmax_kernel[(rows,)](x, y, columns, BLOCK=triton.next_power_of_2(columns))
    return y
'''

TRITON_MATMUL = '''\
"""Matrix product in Triton: one program per tile of the result."""

import torch
import triton
import triton.language as tl

TILE = 32


@triton.jit
def matmul_kernel(a, b, c, M, N, K, TILE: tl.constexpr):
    """One tile of `c` = `a` `b`; all three lie in C order."""
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    cols = tl.program_id(1) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, K, TILE):
        k = start + tl.arange(0, TILE)
        in_a = (rows[:, None] < M) & (k[None, :] < K)
        in_b = (k[:, None] < K) & (cols[None, :] < N)
        left = tl.load(a + rows[:, None] * K + k[None, :], mask=in_a, other=0.0)
        right = tl.load(b + k[:, None] * N + cols[None, :], mask=in_b, other=0.0)
        total += tl.dot(left.to(tl.float32), right.to(tl.float32), input_precision="ieee")
    inside = (rows[:, None] < M) & (cols[None, :] < N)
    tl.store(c + rows[:, None] * N + cols[None, :], total.to(c.dtype.element_ty), mask=inside)


def run(a, b):
    """`a` [M, K] times `b` [K, N]."""
    a, b = a.contiguous(), b.contiguous()
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    matmul_kernel[(triton.cdiv(m, TILE), triton.cdiv(n, TILE))](a, b, c, m, n, k, TILE=TILE)
    return c
'''

CUDA_SOFTMAX = """\
// Softmax of the rows of a float32 matrix: one block of 128 threads per row.
// Its PTX is run on the CPU, thread by thread; see [[ops]] of gpuemu.toml for the launch.

constexpr int kThreads = 128;

extern "C" __global__ void __launch_bounds__(kThreads)
softmax(const float* __restrict__ x, float* __restrict__ y, int columns) {
  __shared__ float partial[kThreads];
  const float* row = x + static_cast<size_t>(blockIdx.x) * columns;
  float* out = y + static_cast<size_t>(blockIdx.x) * columns;
  const int thread = threadIdx.x;

  float largest = -INFINITY;
  for (int i = thread; i < columns; i += kThreads) largest = fmaxf(largest, row[i]);
  partial[thread] = largest;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (thread < half) partial[thread] = fmaxf(partial[thread], partial[thread + half]);
    __syncthreads();
  }
  largest = partial[0];
  __syncthreads();

  float sum = 0.0f;
  for (int i = thread; i < columns; i += kThreads) sum += expf(row[i] - largest);
  partial[thread] = sum;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (thread < half) partial[thread] += partial[thread + half];
    __syncthreads();
  }
  const float total = partial[0];
  for (int i = thread; i < columns; i += kThreads) out[i] = expf(row[i] - largest) / total;
}

// The host function: its parameters are inputs (x), outputs (y) and sizes of the schema (m, n).
extern "C" void softmax_rows(const float* x, float* y, int m, int n) {
  const size_t bytes = sizeof(float) * m * n;
  float *device_x, *device_y;
  cudaMalloc(&device_x, bytes);
  cudaMalloc(&device_y, bytes);
  cudaMemcpy(device_x, x, bytes, cudaMemcpyHostToDevice);
  softmax<<<m, kThreads>>>(device_x, device_y, n);
  cudaMemcpy(y, device_y, bytes, cudaMemcpyDeviceToHost);
  cudaFree(device_x);
  cudaFree(device_y);
}
"""
