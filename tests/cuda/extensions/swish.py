"""An extension as people publish them: load_inline, autograd, a shared-memory reduction."""

import sys

import torch
from torch.utils.cpp_extension import load_inline

CUDA = """
#include <torch/extension.h>
#include <cuda_runtime.h>

template <typename T>
__global__ void swish_kernel(const T* x, T* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] / (T(1) + exp(-x[i]));
}

__global__ void row_sum_kernel(const float* x, float* y, int columns, bool bug) {
  extern __shared__ float part[];
  float v = 0;
  for (int j = threadIdx.x; j < columns; j += blockDim.x) v += x[blockIdx.x * columns + j];
  part[threadIdx.x] = v;
  __syncthreads();
  for (int o = blockDim.x / 2; o; o /= 2) {
    if (threadIdx.x < o) part[threadIdx.x] += part[threadIdx.x + o];  // line: race
    if (!bug) __syncthreads();
  }
  if (threadIdx.x == 0) y[blockIdx.x] = part[0];
}

torch::Tensor swish(torch::Tensor x, bool bug) {
  TORCH_CHECK(x.is_cuda(), "x must be on the GPU");
  auto y = torch::empty_like(x);
  int n = x.numel();
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "swish", [&] {
    swish_kernel<scalar_t><<<(n + 255) / 256 - (bug ? 1 : 0), 256>>>(
        x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), n);
  });
  return y;
}

torch::Tensor row_sum(torch::Tensor x, bool bug) {
  auto y = torch::zeros({x.size(0)}, x.options());
  row_sum_kernel<<<x.size(0), 128, 128 * sizeof(float)>>>(
      x.data_ptr<float>(), y.data_ptr<float>(), x.size(1), bug);
  return y;
}
"""
CPP = """
torch::Tensor swish(torch::Tensor x, bool bug);
torch::Tensor row_sum(torch::Tensor x, bool bug);
"""
module = load_inline(
    "swish_ext", cpp_sources=CPP, cuda_sources=CUDA, functions=["swish", "row_sum"]
)
bug = sys.argv[1] if len(sys.argv) > 1 else ""

x = torch.randn(33, 50, device="cuda")
assert x.is_cuda and torch.cuda.is_available()
y = module.swish(x, bug == "grid")
if bug == "grid":
    print(float(y.sum()))  # line: grid
else:
    torch.testing.assert_close(y, x * torch.sigmoid(x))
double = module.swish(x.double(), False)
assert double.dtype == torch.float64
torch.testing.assert_close(module.row_sum(x, bug == "race"), x.sum(1))

linear = torch.nn.Linear(50, 4).cuda()
loss = linear(y).square().mean()
loss.backward()
torch.optim.SGD(linear.parameters(), 0.1).step()
with torch.autocast("cuda", dtype=torch.bfloat16):
    assert linear(y).dtype == torch.bfloat16
torch.cuda.synchronize()
print("PASSED")
