"""An extension as people publish them: autograd, reductions, guards, streams, accessors, cuBLAS.

It is one, because PyTorch's headers take most of a build.
"""

import sys

import torch
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAException.h>
#include <torch/extension.h>
#include <cublas_v2.h>
#include <cuda_fp16.h>

#define CHECK_CUDA(x) TORCH_CHECK(x.is_cuda(), #x " must be a CUDA tensor")
#define CHECK_INPUT(x) CHECK_CUDA(x); TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")

__constant__ float weights[16];

template <typename T, int N>
using Accessor = torch::PackedTensorAccessor32<T, N, torch::RestrictPtrTraits>;

template <typename scalar_t>
__global__ void bias_relu(
    const Accessor<scalar_t, 2> x, const Accessor<scalar_t, 1> b, Accessor<scalar_t, 2> y) {
  int i = blockIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
  if (j < x.size(1)) {
    float v = static_cast<float>(x[i][j]) + static_cast<float>(b[j]);
    y[i][j] = static_cast<scalar_t>(v > 0 ? v : 0.f);
  }
}

at::Tensor bias_relu_forward(const at::Tensor& x, const at::Tensor& bias) {
  CHECK_INPUT(x);
  const at::cuda::OptionalCUDAGuard guard(device_of(x));
  auto y = at::empty_like(x);
  const int threads = 128;
  const dim3 blocks((x.size(1) + threads - 1) / threads, x.size(0));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "bias_relu", ([&] {
    bias_relu<scalar_t><<<blocks, threads, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(),
        bias.packed_accessor32<scalar_t, 1, torch::RestrictPtrTraits>(),
        y.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>());
  }));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}

__global__ void convolve(const float* __restrict__ x, float* __restrict__ y, int n, int k) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i > n - k) return;
  float v = 0.f;
  for (int j = 0; j < k; ++j) v += x[i + j] * weights[j];
  y[i] = v;
}

torch::Tensor conv1d(torch::Tensor x, torch::Tensor w) {
  CHECK_INPUT(x); CHECK_INPUT(w);
  int n = x.numel(), k = w.numel();
  auto options = torch::TensorOptions().dtype(torch::kFloat32).device(x.device());
  auto y = torch::zeros({n - k + 1}, options);
  cudaMemcpyToSymbol(weights, w.data_ptr<float>(), k * sizeof(float), 0, cudaMemcpyDeviceToDevice);
  cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
  convolve<<<(n + 255) / 256, 256, 0, stream>>>(x.data_ptr<float>(), y.data_ptr<float>(), n, k);
  cudaError_t err = cudaGetLastError();
  if (err != cudaSuccess) throw std::runtime_error(cudaGetErrorString(err));
  return y;
}

torch::Tensor matmul(torch::Tensor a, torch::Tensor b) {
  auto c = torch::empty({a.size(0), b.size(1)}, a.options());
  float one = 1.f, zero = 0.f;
  cublasHandle_t handle = at::cuda::getCurrentCUDABlasHandle();
  cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, b.size(1), a.size(0), a.size(1), &one,
              b.data_ptr<float>(), b.size(1), a.data_ptr<float>(), a.size(1), &zero,
              c.data_ptr<float>(), b.size(1));
  return c.add_(0.5f).sub(0.5f);
}

__global__ void row_max(const float* x, float* value, int64_t* index, int columns) {
  float best = -INFINITY;
  int at = 0;
  for (int j = threadIdx.x; j < columns; j += 32)
    if (x[blockIdx.x * columns + j] > best) { best = x[blockIdx.x * columns + j]; at = j; }
  for (int o = 16; o > 0; o >>= 1) {
    float other = __shfl_down_sync(0xffffffffu, best, o);
    int where = __shfl_down_sync(0xffffffffu, at, o);
    if (other > best || (other == best && where < at)) { best = other; at = where; }
  }
  if (threadIdx.x == 0) { value[blockIdx.x] = best; index[blockIdx.x] = at; }
}

std::vector<torch::Tensor> argmax(torch::Tensor x) {
  auto value = torch::empty({x.size(0)}, x.options());
  auto index = torch::empty({x.size(0)}, x.options().dtype(torch::kInt64));
  row_max<<<x.size(0), 32>>>(
      x.data_ptr<float>(), value.data_ptr<float>(), index.data_ptr<int64_t>(), x.size(1));
  cudaDeviceSynchronize();
  return {value, index};
}

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
at::Tensor bias_relu_forward(const at::Tensor& x, const at::Tensor& bias);
torch::Tensor conv1d(torch::Tensor x, torch::Tensor w);
torch::Tensor matmul(torch::Tensor a, torch::Tensor b);
std::vector<torch::Tensor> argmax(torch::Tensor x);
"""
names = ["swish", "row_sum", "bias_relu_forward", "conv1d", "matmul", "argmax"]
ext = load_inline(
    name="styles", cpp_sources=CPP, cuda_sources=CUDA, functions=names, verbose=False,
    extra_cuda_cflags=["-O3", "--use_fast_math"], extra_ldflags=["-lcublas"], with_cuda=True,
)  # fmt: skip


class BiasRelu(torch.autograd.Function):
    """The extension's function with a gradient."""

    @staticmethod
    def forward(ctx, x, bias):
        y = ext.bias_relu_forward(x, bias)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        grad = grad * (y > 0)
        return grad, grad.sum(0)


bug = sys.argv[1] if len(sys.argv) > 1 else ""

x = torch.randn(33, 50, device="cuda")
assert x.is_cuda and torch.cuda.is_available()
y = ext.swish(x, bug == "grid")
if bug == "grid":
    print(float(y.sum()))  # line: grid
else:
    torch.testing.assert_close(y, x * torch.sigmoid(x), rtol=1e-5, atol=1e-5)
double = ext.swish(x.double(), False)
assert double.dtype == torch.float64
torch.testing.assert_close(ext.row_sum(x, bug == "race"), x.sum(1))

linear = torch.nn.Linear(50, 4).cuda()
loss = linear(y).square().mean()
loss.backward()
torch.optim.SGD(linear.parameters(), 0.1).step()
with torch.autocast("cuda", dtype=torch.bfloat16):
    assert linear(y).dtype == torch.bfloat16
torch.cuda.synchronize()
if bug:
    print("PASSED")
    sys.exit()

torch.manual_seed(0)
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    x = torch.randn(7, 150, device="cuda", dtype=dtype, requires_grad=True)
    b = torch.randn(150, device="cuda", dtype=dtype, requires_grad=True)
    y = BiasRelu.apply(x, b)
    torch.testing.assert_close(y, torch.relu(x + b))
    y.float().sum().backward()
    assert x.grad is not None and x.grad.is_cuda and b.grad.shape == (150,)
x, w = torch.randn(300, device="cuda"), torch.randn(5, device="cuda")
want = torch.nn.functional.conv1d(x.view(1, 1, -1), w.view(1, 1, -1)).view(-1)
torch.testing.assert_close(ext.conv1d(x, w), want, rtol=1e-4, atol=1e-4)
a, c = torch.randn(20, 30, device="cuda"), torch.randn(30, 10, device="cuda")
torch.testing.assert_close(ext.matmul(a, c), a @ c, rtol=1e-4, atol=1e-4)
value, index = ext.argmax(a)
torch.testing.assert_close([value, index], list(a.max(1)))
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    again = ext.matmul(a, c)
stream.synchronize()
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
end.record()
torch.cuda.synchronize()
assert start.elapsed_time(end) >= 0 and a.cpu().numpy().shape == (20, 30)
print("PASSED")
