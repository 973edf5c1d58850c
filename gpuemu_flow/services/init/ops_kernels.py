"""Sources of the kernels that a new workspace gets, in Triton and CUDA."""

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

TRITON_RMSNORM = '''\
"""Root mean square normalisation of rows in Triton, one program per row."""

import torch
import triton
import triton.language as tl


@triton.jit
def rmsnorm_kernel(x, weight, y, columns, eps, BLOCK: tl.constexpr):
    """One program per row, which has to fit into one block."""
    cols = tl.arange(0, BLOCK)
    inside = cols < columns
    row = tl.program_id(0) * columns
    values = tl.load(x + row + cols, mask=inside, other=0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(values * values, axis=0) / columns + eps)
    result = values * scale * tl.load(weight + cols, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row + cols, result.to(y.dtype.element_ty), mask=inside)


def run(x, weight, eps):
    """`x` [M, N] over the root of its rows' mean squares, times `weight` [N]."""
    x, weight = x.contiguous(), weight.contiguous()
    y = torch.empty_like(x)
    rows, columns = x.shape
    block = triton.next_power_of_2(columns)
    rmsnorm_kernel[(rows,)](x, weight, y, columns, eps, BLOCK=block)
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
