"""More extensions in the styles that people publish; see `published.py`."""

# ruff: noqa: E501
import torch
from judged import judge, signatures
from torch.nn import functional
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/Atomic.cuh>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cub/block/block_reduce.cuh>
#include <cublas_v2.h>
#include <cuda_fp16.h>
using torch::Tensor;
namespace cg = cooperative_groups;
#define CHECK_INPUT(x) TORCH_CHECK(x.is_cuda() && x.is_contiguous(), #x " must be a contiguous CUDA tensor")

// ---- dispatch over dtypes, a functor as a template argument, a grid-stride loop
template <typename T> struct Square { __device__ T operator()(T v) const { return v * v; } };
template <typename T, typename F>
__global__ void map_kernel(const T* __restrict__ x, T* __restrict__ y, int64_t n, F f, int bug) {
  for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; bug == 1 ? i <= n : i < n; i += (int64_t)blockDim.x * gridDim.x)
    y[i] = bug == 3 ? x[i] : f(__ldg(x + i));  // line: dispatch bounds
}
Tensor dispatch(Tensor x, int64_t bug) {
  CHECK_INPUT(x);
  const at::cuda::OptionalCUDAGuard guard(device_of(x));
  auto y = torch::empty_like(x);
  int64_t n = x.numel();
  AT_DISPATCH_ALL_TYPES(x.scalar_type(), "square", [&] {
    map_kernel<<<2, 64, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), bug == 2 ? n - 1 : n, Square<scalar_t>(), bug);
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}

// ---- half2 arithmetic
__global__ void axpy_half2(const __half2* x, __half2* y, __half2 a, int n, int bug) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n && bug != 1) return;
  y[i] = __hfma2(bug == 3 ? __hneg2(a) : a, x[i], y[i]);  // line: axpy_half bounds
}
Tensor axpy_half(Tensor x, Tensor y, double a, int64_t bug) {
  auto out = y.clone();
  int n = x.numel() / 2;
  axpy_half2<<<bug == 2 ? n / 32 : (n + 31) / 32, 32>>>(reinterpret_cast<const __half2*>(x.data_ptr<at::Half>()), reinterpret_cast<__half2*>(out.data_ptr<at::Half>()), __float2half2_rn(a), n, bug);
  return out;
}

// ---- a scan of three launches
__global__ void scan_blocks(const float* x, float* y, float* sums, int n, int bug) {
  __shared__ float warp[4];
  int i = blockIdx.x * 128 + threadIdx.x, lane = threadIdx.x & 31, w = threadIdx.x >> 5;
  float v = i < n ? x[i] : 0.f;
  #pragma unroll
  for (int o = 1; o < 32; o <<= 1) {
    float t = __shfl_up_sync(0xffffffff, v, o);
    if (lane >= o) v += t;
  }
  if (lane == 31) warp[w] = v;
  if (bug != 1) __syncthreads();
  for (int k = 0; k < w; k++) v += warp[k];  // line: long_scan race
  if (i < n) y[i] = v;
  if (threadIdx.x == 127 && !(bug == 2 && blockIdx.x == 1)) sums[blockIdx.x] = v;
}
__global__ void scan_sums(float* sums, int n) {
  float s = 0;
  for (int i = 0; i < n; i++) { float t = sums[i]; sums[i] = s; s += t; }  // line: long_scan unwritten
}
__global__ void add_sums(float* y, const float* sums, int n, int bug) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[i] += sums[bug == 3 && blockIdx.x ? blockIdx.x - 1 : blockIdx.x];
}
Tensor long_scan(Tensor x, int64_t bug) {
  auto y = torch::empty_like(x);
  int n = x.numel(), blocks = (n + 127) / 128;
  auto sums = torch::empty({blocks}, x.options());
  auto stream = at::cuda::getCurrentCUDAStream();
  scan_blocks<<<blocks, 128, 0, stream>>>(x.data_ptr<float>(), y.data_ptr<float>(), sums.data_ptr<float>(), n, bug);
  scan_sums<<<1, 1, 0, stream>>>(sums.data_ptr<float>(), blocks);
  add_sums<<<blocks, 128, 0, stream>>>(y.data_ptr<float>(), sums.data_ptr<float>(), n, bug);
  return y;
}

// ---- streams of the pool, an event between them
__global__ void scale_kernel(const float* x, float* y, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i];
}
__global__ void sum_kernel(const float* a, const float* b, float* y, int n, int bug) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a[i] + b[bug == 2 ? i + 1 : i];  // line: streams bounds, streams unwritten
}
Tensor streams(Tensor x, int64_t bug) {
  auto a = torch::empty_like(x), b = torch::empty_like(x), y = torch::empty_like(x);
  int n = x.numel(), blocks = (n + 63) / 64;
  auto side = c10::cuda::getStreamFromPool(), own = c10::cuda::getCurrentCUDAStream();
  at::cuda::CUDAEvent event;
  {
    c10::cuda::CUDAStreamGuard guard(side);
    if (bug != 1) scale_kernel<<<blocks, 64, 0, side>>>(x.data_ptr<float>(), b.data_ptr<float>(), bug == 3 ? 2.f : 3.f, n);
    event.record(side);
  }
  scale_kernel<<<blocks, 64, 0, own>>>(x.data_ptr<float>(), a.data_ptr<float>(), 2.f, n);
  event.block(own);
  sum_kernel<<<blocks, 64, 0, own.stream()>>>(a.data_ptr<float>(), b.data_ptr<float>(), y.data_ptr<float>(), n, bug);
  return y;
}

// ---- cuBLAS of many matrices, with a kernel behind it
__global__ void row_softmax(float* s, int n, float scale, int bug) {
  float* row = s + (int64_t)blockIdx.x * n;
  float m = -INFINITY, z = 0.f;
  for (int i = threadIdx.x; i < n; i += 32) m = fmaxf(m, row[i] * scale);  // line: batched unwritten
  for (int o = 16; o > 0; o /= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, o));
  for (int i = threadIdx.x; i < n; i += 32) z += (row[i] = expf(row[i] * scale - m));
  for (int o = 16; o > 0; o /= 2) z += __shfl_xor_sync(0xffffffffu, z, o);
  for (int i = threadIdx.x; bug == 1 ? i <= n : i < n; i += 32) row[i] /= z;  // line: batched race
}
Tensor batched(Tensor q, Tensor k, Tensor v, int64_t bug) {
  int b = q.size(0), n = q.size(1), d = q.size(2);
  auto s = torch::empty({b, n, n}, q.options()), o = torch::empty_like(q);
  float one = 1.f, zero = 0.f;
  auto handle = at::cuda::getCurrentCUDABlasHandle();
  TORCH_CUDABLAS_CHECK(cublasSgemmStridedBatched(handle, CUBLAS_OP_T, CUBLAS_OP_N, n, n, d, &one, k.data_ptr<float>(), d, n * d, q.data_ptr<float>(), d, n * d, &zero, s.data_ptr<float>(), n, n * n, bug == 2 ? b - 1 : b));
  row_softmax<<<b * n, 32>>>(s.data_ptr<float>(), n, bug == 3 ? 1.f : rsqrtf(d), bug);
  TORCH_CUDABLAS_CHECK(cublasSgemmStridedBatched(handle, CUBLAS_OP_N, CUBLAS_OP_N, d, n, n, &one, v.data_ptr<float>(), d, n * d, s.data_ptr<float>(), n, n * n, &zero, o.data_ptr<float>(), d, n * d, b));
  return o;
}

// ---- attention in tiles with an online softmax; its backward pass
template <int D>
__global__ void flash_kernel(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, float* __restrict__ o, float* __restrict__ lse, int n, float scale, int bug) {
  extern __shared__ float smem[];
  float *ks = smem, *vs = smem + 16 * D;
  int row = blockIdx.x * 16 + threadIdx.x;
  float m = -INFINITY, l = 0.f, acc[D] = {}, qr[D];
  for (int e = 0; e < D; e++) qr[e] = row < n ? q[row * D + e] : 0.f;
  for (int t = 0; t < n; t += 16) {
    if (t + threadIdx.x < n || bug == 2)
      for (int e = 0; e < D; e++) {
        ks[threadIdx.x * D + e] = k[(t + threadIdx.x) * D + e];  // line: flash bounds
        vs[threadIdx.x * D + e] = v[(t + threadIdx.x) * D + e];
      }
    if (bug != 1) __syncthreads();
    for (int j = 0; j < min(16, n - t); j++) {
      float s = 0.f;
      for (int e = 0; e < D; e++) s += qr[e] * ks[j * D + e];  // line: flash race
      s *= scale;
      float next = fmaxf(m, s), c = bug == 3 ? 1.f : __expf(m - next), p = __expf(s - next);
      l = l * c + p;
      for (int e = 0; e < D; e++) acc[e] = acc[e] * c + p * vs[j * D + e];
      m = next;
    }
    __syncthreads();
  }
  if (row >= n) return;
  for (int e = 0; e < D; e++) o[row * D + e] = acc[e] / l;
  lse[row] = m + logf(l);
}
std::tuple<Tensor, Tensor> flash(Tensor q, Tensor k, Tensor v, int64_t bug) {
  int n = q.size(0);
  TORCH_CHECK(q.size(1) == 16, "head size ", q.size(1), " is not supported");
  auto o = torch::empty_like(q), lse = torch::empty({n}, q.options());
  int bytes = 64 * 1024;
  AT_CUDA_CHECK(cudaFuncSetAttribute(flash_kernel<16>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  flash_kernel<16><<<(n + 15) / 16, 16, bytes>>>(q.data_ptr<float>(), k.data_ptr<float>(), v.data_ptr<float>(), o.data_ptr<float>(), lse.data_ptr<float>(), n, 1.f / std::sqrt((float)q.size(1)), bug);
  AT_CUDA_CHECK(cudaGetLastError());
  return std::make_tuple(o, lse);
}
__global__ void flash_backward_kernel(const float* q, const float* k, const float* v, const float* o, const float* lse, const float* go, float* dq, float* dk, float* dv, int n, int d, float scale, int bug) {
  int i = blockIdx.x, j = threadIdx.x;
  __shared__ float delta;
  if (j == 0) {
    delta = 0;
    for (int e = 0; e < d; e++) delta += go[i * d + e] * o[i * d + e];
  }
  if (bug != 1) __syncthreads();
  if (j >= n) return;
  float s = 0, dp = 0;
  for (int e = 0; e < d; e++) { s += q[i * d + e] * k[j * d + e]; dp += go[i * d + e] * v[j * d + e]; }
  float p = expf(s * scale - lse[i]), ds = p * (dp - (bug == 3 ? 0.f : delta)) * scale;  // line: flash_backward race
  for (int e = 0; e < d; e++) {
    atomicAdd(dq + i * d + e, ds * k[j * d + e]);  // line: flash_backward unwritten
    atomicAdd(dk + j * d + e, ds * q[i * d + e]);
    atomicAdd(dv + j * d + e, p * go[i * d + e]);
  }
}
std::vector<Tensor> flash_backward(Tensor go, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, int64_t bug) {
  go = go.contiguous();
  auto dq = bug == 2 ? torch::empty_like(q) : torch::zeros_like(q), dk = torch::zeros_like(k), dv = torch::zeros_like(v);
  flash_backward_kernel<<<q.size(0), 32>>>(q.data_ptr<float>(), k.data_ptr<float>(), v.data_ptr<float>(), o.data_ptr<float>(), lse.data_ptr<float>(), go.data_ptr<float>(), dq.data_ptr<float>(), dk.data_ptr<float>(), dv.data_ptr<float>(), q.size(0), q.size(1), 0.25f, bug);
  return {dq, dk, dv};
}

// ---- a depthwise convolution with a tile and its halo
__global__ void depthwise_kernel(const float* x, const float* w, float* y, int h, int width, int bug) {
  __shared__ float tile[10][10];
  int c = blockIdx.z, r = blockIdx.y * 8, s = blockIdx.x * 8;
  for (int i = threadIdx.y * 8 + threadIdx.x; i < 100; i += 64) {
    int a = r + i / 10 - 1, b = s + i % 10 - 1;
    bool in = a >= 0 && (a < h || bug == 2) && b >= 0 && b < width;
    tile[i / 10][i % 10] = in ? x[(c * h + a) * width + b] : 0.f;  // line: depthwise bounds
  }
  if (bug != 1) __syncthreads();
  int a = r + threadIdx.y, b = s + threadIdx.x;
  if (a >= h || b >= width) return;
  float v = 0.f;
  #pragma unroll
  for (int i = 0; i < 3; i++)
    #pragma unroll
    for (int j = 0; j < 3; j++) v += tile[threadIdx.y + i][threadIdx.x + j] * w[c * 9 + (bug == 3 ? j * 3 + i : i * 3 + j)];  // line: depthwise race
  y[(c * h + a) * width + b] = v;
}
Tensor depthwise(Tensor x, Tensor w, int64_t bug) {
  auto y = torch::empty_like(x);
  dim3 grid((x.size(2) + 7) / 8, (x.size(1) + 7) / 8, x.size(0));
  depthwise_kernel<<<grid, dim3(8, 8)>>>(x.data_ptr<float>(), w.data_ptr<float>(), y.data_ptr<float>(), x.size(1), x.size(2), bug);
  return y;
}

// ---- a bitonic sort in shared memory
__global__ void sort_kernel(const float* x, float* y, int n, int bug) {
  extern __shared__ float keys[];
  int t = threadIdx.x;
  keys[t] = t < n || bug == 2 ? x[blockIdx.x * n + t] : INFINITY;  // line: sort bounds
  __syncthreads();
  for (int k = 2; k <= blockDim.x; k <<= 1)
    for (int j = k >> 1; j > 0; j >>= 1) {
      int other = t ^ j;
      if (other > t) {
        bool up = (t & k) == 0;
        if ((keys[t] > keys[other]) == (bug == 3 ? !up : up)) { float v = keys[t]; keys[t] = keys[other]; keys[other] = v; }  // line: sort race
      }
      if (bug != 1) __syncthreads();
    }
  if (t < n) y[blockIdx.x * n + t] = keys[t];
}
Tensor sort(Tensor x, int64_t bug) {
  auto y = torch::empty_like(x);
  sort_kernel<<<x.size(0), 64, 64 * sizeof(float)>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1), bug);
  return y;
}

// ---- cooperative groups and CUB: the variance of groups of channels
template <int BLOCK>
__global__ void group_norm_kernel(torch::PackedTensorAccessor64<float, 3, torch::RestrictPtrTraits> x, float* y, int groups, float eps, int bug) {
  using Reduce = cub::BlockReduce<float, BLOCK>;
  __shared__ typename Reduce::TempStorage temp;
  __shared__ float mean, rstd;
  int b = blockIdx.y, per = x.size(1) / groups, n = per * x.size(2);
  float s = 0.f, q = 0.f;
  for (int i = threadIdx.x; i < n; i += BLOCK) {
    float v = x[b][blockIdx.x * per + i / x.size(2)][i % x.size(2)];
    s += v;
    q += v * v;
  }
  s = Reduce(temp).Sum(s);
  if (bug != 1) __syncthreads();
  q = Reduce(temp).Sum(q);
  if (threadIdx.x == 0) { mean = s / n; rstd = rsqrtf(q / n - mean * mean + (bug == 3 ? 0.1f : eps)); }
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += BLOCK) {
    int64_t at = ((int64_t)b * x.size(1) + blockIdx.x * per + i / x.size(2)) * x.size(2) + i % x.size(2);
    y[bug == 2 ? at + 1 : at] = (x[b][blockIdx.x * per + i / x.size(2)][i % x.size(2)] - mean) * rstd;  // line: group_norm bounds
  }
}
Tensor group_norm(Tensor x, int64_t groups, int64_t bug) {
  auto y = torch::empty_like(x);
  group_norm_kernel<64><<<dim3(groups, x.size(0)), 64>>>(x.packed_accessor64<float, 3, torch::RestrictPtrTraits>(), y.data_ptr<float>(), groups, 1e-5f, bug);
  return y;
}
__global__ void norms_kernel(const float* x, float* y, int h, int bug) {
  auto block = cg::this_thread_block();
  auto warp = cg::tiled_partition<32>(block);
  __shared__ float part[4];
  float v = 0.f;
  for (int i = block.thread_rank(); i < h; i += block.size()) v += x[blockIdx.x * h + i] * x[blockIdx.x * h + i];
  v = cg::reduce(warp, v, cg::plus<float>());
  if (warp.thread_rank() == 0 && !(bug == 2 && warp.meta_group_rank() == 3)) part[warp.meta_group_rank()] = v;
  if (bug != 1) block.sync();
  if (block.thread_rank() == 0) y[blockIdx.x] = sqrtf(part[0] + part[1] + part[2] + (bug == 3 ? 0.f : part[3]));  // line: norms race, norms unwritten
}
Tensor norms(Tensor x, int64_t bug) {
  auto y = torch::empty({x.size(0)}, x.options());
  norms_kernel<<<x.size(0), 128>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1), bug);
  return y;
}

// ---- eight-bit products, an optional bias
__global__ void int8_kernel(const char4* a, const char4* b, const float* bias, float* y, int n, int k, float scale, int bug) {
  int row = blockIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
  if (col >= n && bug != 1) return;
  int v = 0;
  for (int i = 0; i < k; i++) {
    int p = *reinterpret_cast<const int*>(a + row * k + i), q = *reinterpret_cast<const int*>(b + col * k + i);  // line: int8 bounds
    v = __dp4a(p, q, v);
  }
  y[row * n + col] = v * scale + (bias && bug != 3 ? bias[col] : 0.f);
}
Tensor int8(Tensor a, Tensor b, std::optional<Tensor> bias, double scale, int64_t bug) {
  int m = a.size(0), n = b.size(0), k = a.size(1) / 4;
  auto y = torch::empty({m, n}, a.options().dtype(torch::kFloat32));
  const float* extra = bias.has_value() ? bias->data_ptr<float>() : nullptr;
  int8_kernel<<<dim3((n + 31) / 32, bug == 2 ? m - 1 : m), 32>>>((const char4*)a.data_ptr<int8_t>(), (const char4*)b.data_ptr<int8_t>(), extra, y.data_ptr<float>(), n, k, scale, bug);
  return y;
}

// ---- atomics of any type
template <typename scalar_t, typename index_t>
__global__ void scatter_kernel(const scalar_t* x, const index_t* to, scalar_t* y, int rows, int h, int bug) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows * h) return;
  index_t row = to[i / h] + (bug == 2 ? 1 : 0);
  if (bug == 1) y[row * h + i % h] += x[i];  // line: scatter race
  else gpuAtomicAdd(&y[row * h + i % h], bug == 3 ? x[i] + x[i] : x[i]);  // line: scatter bounds
}
Tensor scatter(Tensor x, Tensor to, int64_t rows, int64_t bug) {
  auto y = torch::zeros({rows, x.size(1)}, x.options());
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "scatter", [&] {
    AT_DISPATCH_INDEX_TYPES(to.scalar_type(), "scatter_index", [&] {
      scatter_kernel<scalar_t, index_t><<<(x.numel() + 63) / 64, 64>>>(x.data_ptr<scalar_t>(), to.data_ptr<index_t>(), y.data_ptr<scalar_t>(), x.size(0), x.size(1), bug);
    });
  });
  return y;
}
"""
NAMES = (
    "dispatch", "axpy_half", "long_scan", "streams", "batched", "flash", "flash_backward", "depthwise",
    "sort", "group_norm", "norms", "int8", "scatter",
)  # fmt: skip
ext = load_inline(
    "published_more", signatures(CUDA), CUDA, functions=list(NAMES), extra_cuda_cflags=["-O3"]
)
torch.manual_seed(0)


def draw(*size):
    return torch.randn(*size, device="cuda")


class Flash(torch.autograd.Function):
    """Attention whose backward pass is an extension's, too."""

    bug = 0

    @staticmethod
    def forward(ctx, q, k, v):
        o, lse = ext.flash(q, k, v, 0)
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    def backward(ctx, go):
        return tuple(ext.flash_backward(go, *ctx.saved_tensors, Flash.bug))


def attention(q, k, v):
    return (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1) @ v


def gradients(function):
    given = [t.clone().requires_grad_() for t in (Q, K, V)]
    (function(*given) * WEIGHTS).sum().backward()
    return torch.cat([one.grad for one in given])


def by_extension(bug):
    Flash.bug = bug
    return gradients(Flash.apply)


X, IMAGE, FILTERS = draw(300), draw(3, 19, 21), draw(3, 1, 3, 3)
Q, K, V, WEIGHTS = (draw(21, 16) for _ in range(4))
HX, HY = draw(200).half(), draw(200).half()
BATCH = [draw(3, 17, 8) for _ in range(3)]
ROWS, WIDE, GROUPED = draw(6, 50), draw(3, 150), draw(2, 6, 40)
WHOLE = torch.randint(-90, 90, (75,), device="cuda")
LEFT, RIGHT = (torch.randint(-9, 9, (n, 24), dtype=torch.int8, device="cuda") for n in (5, 37))
BIAS, TO = draw(37), torch.tensor([3, 0, 3, 1, 3, 2], device="cuda")
CASES = {
    "dispatch": (lambda b: torch.cat([ext.dispatch(t, b).double() for t in (X, WHOLE)]),
                 lambda: torch.cat([X.square().double(), WHOLE.square().double()]),
                 ("bounds", "grid", "constant")),
    "axpy_half": (lambda b: ext.axpy_half(HX, HY, 0.5, b), lambda: 0.5 * HX + HY,
              ("bounds", "grid", "constant")),
    "long_scan": (lambda b: ext.long_scan(X, b), lambda: X.cumsum(0),
                  ("race", "unwritten", "constant")),
    "streams": (lambda b: ext.streams(X, b), lambda: 5 * X, ("unwritten", "bounds", "constant")),
    "batched": (lambda b: ext.batched(*BATCH, b), lambda: attention(*BATCH),
                ("race", "unwritten", "constant")),
    "flash": (lambda b: ext.flash(Q, K, V, b)[0], lambda: attention(Q, K, V),
              ("race", "bounds", "constant")),
    "flash_backward": (by_extension, lambda: gradients(attention),
                       ("race", "unwritten", "constant")),
    "depthwise": (lambda b: ext.depthwise(IMAGE, FILTERS, b),
                  lambda: functional.conv2d(IMAGE[None], FILTERS, padding=1, groups=3)[0],
                  ("race", "bounds", "constant")),
    "sort": (lambda b: ext.sort(ROWS, b), lambda: ROWS.sort(1).values,
             ("race", "bounds", "constant")),
    "group_norm": (lambda b: ext.group_norm(GROUPED, 3, b),
                   lambda: functional.group_norm(GROUPED, 3), ("race", "bounds", "constant")),
    "norms": (lambda b: ext.norms(WIDE, b), lambda: WIDE.norm(dim=1),
              ("race", "unwritten", "constant")),
    "int8": (lambda b: ext.int8(LEFT, RIGHT, BIAS, 0.1, b),
             lambda: LEFT.float() @ RIGHT.float().t() * 0.1 + BIAS,
             ("bounds", "grid", "constant")),
    "scatter": (lambda b: ext.scatter(ROWS, TO, 4, b),
                lambda: torch.zeros(4, 50, device="cuda").index_add(0, TO, ROWS),
                ("race", "bounds", "constant")),
}  # fmt: skip


judge(CASES)
