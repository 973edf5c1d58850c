"""An extension as people publish them, and three ways to call it: right, and with a mistake."""

import torch
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void row_sum_kernel(const float* x, float* y, int columns, int mode) {
  __shared__ float part[64];
  float v = 0;
  for (int j = threadIdx.x; j < columns; j += 64) v += x[blockIdx.x * columns + j];
  part[threadIdx.x] = v;
  for (int o = 32; o; o /= 2) {
    if (mode != 1) __syncthreads();
    if (threadIdx.x < o) part[threadIdx.x] += part[threadIdx.x + o];  // line: ext_race
  }
  if (threadIdx.x == 0) y[blockIdx.x] = part[0];
}

torch::Tensor row_sum(torch::Tensor x, int64_t mode) {
  TORCH_CHECK(x.is_cuda() && x.is_contiguous(), "x must be contiguous, on the GPU");
  TORCH_CHECK(mode < 3, "no mode ", mode);
  auto y = torch::empty({x.size(0)}, x.options());
  int rows = x.size(0) - (mode == 2);
  if (rows) row_sum_kernel<<<rows, 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1), mode);
  return y;
}
"""
module = load_inline(
    "row_sum_ext", "torch::Tensor row_sum(torch::Tensor x, int64_t mode);", CUDA,
    functions=["row_sum"],
)  # fmt: skip


class RowSum(torch.autograd.Function):
    """The forward pass by the kernel, the backward pass by PyTorch."""

    @staticmethod
    def forward(ctx, x):
        ctx.columns = x.shape[1]
        return module.row_sum(x.contiguous(), 0)

    @staticmethod
    def backward(ctx, grad):
        return grad[:, None].expand(-1, ctx.columns)


def right(x):
    return RowSum.apply(x)


def race(x):
    return module.row_sum(x.contiguous(), 1)


def unwritten(x):
    return module.row_sum(x.contiguous(), 2)


def refused(x):
    return module.row_sum(x.contiguous(), 3)
