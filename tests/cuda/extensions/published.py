"""Extensions in the styles that people publish, each right once and wrong three times.

Prints a line of JSON for each: its name, the mistake, whether the values are right, what was found.
A finding at a kernel is expected at the line marked ``// line: NAME MISTAKE``.
"""

# ruff: noqa: E501, PLW0108
import torch
from judged import judge, signatures
from torch.nn import functional
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <cublas_v2.h>
#include <cuda_fp16.h>
#include <mma.h>
using torch::Tensor;

// ---- elementwise, four at a time
__global__ void gelu_kernel(const float4* x, float4* y, int n, int bug) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n && bug != 1) return;
  float4 v = x[i];  // line: gelu bounds
  float a = bug == 3 ? 0.79f : 0.7978845608f;
  auto f = [a](float t) { return 0.5f * t * (1 + tanhf(a * (t + 0.044715f * t * t * t))); };
  y[i] = make_float4(f(v.x), f(v.y), f(v.z), f(v.w));
}
Tensor gelu(Tensor x, int64_t bug) {
  auto y = torch::empty_like(x);
  int n = x.numel() / 4;
  gelu_kernel<<<(n + 31) / 32 - (bug == 2), 32>>>((const float4*)x.data_ptr<float>(), (float4*)y.data_ptr<float>(), n, bug);
  return y;
}

// ---- reductions by shuffle
__device__ float warp_sum(float v) {
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}
__device__ float warp_max(float v) {
  for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
  return v;
}
__global__ void softmax_kernel(const float* x, float* y, int h, int bug) {
  __shared__ float part[32];
  const float* row = x + blockIdx.x * h;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  float m = bug == 3 ? 0 : -INFINITY;
  for (int i = threadIdx.x; bug == 2 ? i <= h : i < h; i += blockDim.x) m = fmaxf(m, row[i]);  // line: softmax bounds
  m = warp_max(m);
  if (lane == 0) part[warp] = m;
  __syncthreads();
  for (int w = 0; w < warps; w++) m = fmaxf(m, part[w]);
  if (bug != 1) __syncthreads();
  float s = 0;
  for (int i = threadIdx.x; i < h; i += blockDim.x) s += expf(row[i] - m);
  s = warp_sum(s);
  if (lane == 0) part[warp] = s;  // line: softmax race
  __syncthreads();
  s = 0;
  for (int w = 0; w < warps; w++) s += part[w];
  if (bug == 3) s += 0.05f * s;
  for (int i = threadIdx.x; i < h; i += blockDim.x) y[blockIdx.x * h + i] = expf(row[i] - m) / s;
}
Tensor softmax(Tensor x, int64_t bug) {
  auto y = torch::empty_like(x);
  softmax_kernel<<<x.size(0), 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1), bug);
  return y;
}

__global__ void total_kernel(const float* x, float* out, int n, int bug) {
  float v = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += x[i];
  v = warp_sum(v);
  if (threadIdx.x % 32) return;
  if (bug == 1) *out += v;  // line: total race
  else atomicAdd(out, v);  // line: total unwritten
}
Tensor total(Tensor x, int64_t bug) {
  auto out = bug == 2 ? torch::empty({1}, x.options()) : torch::zeros({1}, x.options());
  int n = x.numel();
  total_kernel<<<4, 64>>>(x.data_ptr<float>(), out.data_ptr<float>(), bug == 3 ? n / 64 * 64 : n, bug);
  return out;
}

// ---- matrices
constexpr int T = 16;
__global__ void matmul_kernel(const float* a, const float* b, float* c, int m, int n, int k, int bug) {
  __shared__ float as[T][T], bs[T][T];
  int row = blockIdx.y * T + threadIdx.y, col = blockIdx.x * T + threadIdx.x;
  float v = 0;
  for (int t = 0; t < (bug == 3 ? k / T : (k + T - 1) / T); t++) {
    int i = t * T + threadIdx.x, j = t * T + threadIdx.y;
    as[threadIdx.y][threadIdx.x] = row < m && i < k ? a[row * k + i] : 0;  // line: matmul race
    bs[threadIdx.y][threadIdx.x] = j < k && (col < n || bug == 2) ? b[j * n + col] : 0;  // line: matmul bounds
    __syncthreads();
    for (int e = 0; e < T; e++) v += as[threadIdx.y][e] * bs[e][threadIdx.x];
    if (bug != 1) __syncthreads();
  }
  if (row < m && col < n) c[row * n + col] = v;
}
Tensor matmul(Tensor a, Tensor b, int64_t bug) {
  int m = a.size(0), k = a.size(1), n = b.size(1);
  auto c = torch::empty({m, n}, a.options());
  matmul_kernel<<<dim3((n + T - 1) / T, (m + T - 1) / T), dim3(T, T)>>>(a.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>(), m, n, k, bug);
  return c;
}

__global__ void tensor_kernel(const half* a, const half* b, float* c, int n, int k, int bug) {
  using namespace nvcuda::wmma;
  __shared__ half tile[256];
  fragment<matrix_a, 16, 16, 16, half, row_major> fa;
  fragment<matrix_b, 16, 16, 16, half, row_major> fb;
  fragment<accumulator, 16, 16, 16, float> fc;
  fill_fragment(fc, bug == 3 ? 0.1f : 0.f);
  for (int t = 0; t < k; t += 16) {
    for (int i = threadIdx.x; i < 256; i += 64) tile[i] = a[(blockIdx.y * 16 + i / 16) * k + t + i % 16 + (bug == 2)];  // line: tensor_cores bounds
    if (bug != 1) __syncthreads();
    load_matrix_sync(fa, tile, 16);  // line: tensor_cores race
    load_matrix_sync(fb, b + t * n + (blockIdx.x * 2 + threadIdx.x / 32) * 16, n);
    mma_sync(fc, fa, fb, fc);
    __syncthreads();
  }
  store_matrix_sync(c + blockIdx.y * 16 * n + (blockIdx.x * 2 + threadIdx.x / 32) * 16, fc, n, mem_row_major);
}
Tensor tensor_cores(Tensor a, Tensor b, int64_t bug) {
  int m = a.size(0), k = a.size(1), n = b.size(1);
  auto c = torch::empty({m, n}, a.options().dtype(torch::kFloat));
  tensor_kernel<<<dim3(n / 32, m / 16), 64>>>((const half*)a.data_ptr<at::Half>(), (const half*)b.data_ptr<at::Half>(), c.data_ptr<float>(), n, k, bug);
  return c;
}

__global__ void bias_kernel(float* c, const float* bias, int m, int n, int bug) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < m * n) c[i] = c[i] + bias[bug == 1 ? i : i % n] * (bug == 3 ? 2 : 1);  // line: linear bounds, linear unwritten
}
Tensor linear(Tensor x, Tensor w, Tensor bias, int64_t bug) {
  int m = x.size(0), k = x.size(1), n = w.size(0);
  auto c = torch::empty({m, n}, x.options());
  float one = 1, zero = 0;
  cublasSgemm(at::cuda::getCurrentCUDABlasHandle(), CUBLAS_OP_T, CUBLAS_OP_N, n, bug == 2 ? m - 1 : m, k, &one, w.data_ptr<float>(), k, x.data_ptr<float>(), k, &zero, c.data_ptr<float>(), n);
  bias_kernel<<<(m * n + 63) / 64, 64>>>(c.data_ptr<float>(), bias.data_ptr<float>(), m, n, bug);
  return c;
}

__global__ void transpose_kernel(const float* x, float* y, int m, int n, int bug) {
  __shared__ float tile[T][T + 1];
  int i = blockIdx.y * T + threadIdx.y, j = blockIdx.x * T + threadIdx.x;
  if (i < m && j < n) tile[threadIdx.y][threadIdx.x] = x[i * n + j];
  if (bug != 1) __syncthreads();
  i = blockIdx.x * T + threadIdx.y, j = blockIdx.y * T + threadIdx.x;
  if ((i < n || bug == 2) && j < m) y[i * m + j] = tile[threadIdx.x][threadIdx.y];  // line: transpose race, transpose bounds
}
Tensor transpose(Tensor x, int64_t bug) {
  int m = x.size(0), n = x.size(1);
  auto y = torch::empty({n, m}, x.options());
  transpose_kernel<<<dim3(bug == 3 ? n / T : (n + T - 1) / T, (m + T - 1) / T), dim3(T, T)>>>(x.data_ptr<float>(), y.data_ptr<float>(), m, n, bug);
  return y;
}

// ---- norms
__global__ void norm_kernel(const float* x, const float* g, float* y, float* mean, float* rstd, int h, int bug) {
  __shared__ float part[2];
  int row = blockIdx.x;
  float s = 0, q = 0;
  for (int i = threadIdx.x; i < h; i += 32) s += x[row * h + i];
  s = warp_sum(s) / h;
  for (int i = threadIdx.x; i < h; i += 32) q += (x[row * h + i] - s) * (x[row * h + i] - s);
  q = warp_sum(q) / (bug == 3 ? h - 1 : h);
  if (threadIdx.x == 0) { part[0] = s; part[1] = rsqrtf(q + 1e-5f); }
  if (bug != 1) __syncthreads();
  float m = part[0], r = part[1];  // line: layernorm race
  for (int i = threadIdx.x; i < h; i += 32) y[row * h + i] = (x[row * h + i] - m) * r * g[bug == 2 ? i + row : i];  // line: layernorm bounds
  if (threadIdx.x == 0) { mean[row] = m; rstd[row] = r; }
}
std::vector<Tensor> layernorm(Tensor x, Tensor g, int64_t bug) {
  auto y = torch::empty_like(x), mean = torch::empty({x.size(0)}, x.options()), rstd = torch::empty_like(mean);
  norm_kernel<<<x.size(0), 32>>>(x.data_ptr<float>(), g.data_ptr<float>(), y.data_ptr<float>(), mean.data_ptr<float>(), rstd.data_ptr<float>(), x.size(1), bug);
  return {y, mean, rstd};
}
__global__ void norm_backward_kernel(const float* dy, const float* x, const float* g, const float* mean, const float* rstd, float* dx, float* dg, int h, int bug) {
  int row = blockIdx.x;
  float a = 0, b = 0;
  for (int i = threadIdx.x; i < h; i += 32) {
    float n = (x[row * h + i] - mean[row]) * rstd[row], d = dy[row * h + i] * g[i];
    a += d;
    b += d * n;
    if (bug == 1) dg[i] += dy[row * h + i] * n;  // line: layernorm_backward race
    else atomicAdd(dg + i, dy[row * h + i] * n);  // line: layernorm_backward unwritten
  }
  a = warp_sum(a) / h; b = warp_sum(b) / h;
  for (int i = threadIdx.x; i < h; i += 32) {
    float n = (x[row * h + i] - mean[row]) * rstd[row];
    dx[row * h + i] = (dy[row * h + i] * g[i] - (bug == 3 ? 0 : a) - n * b) * rstd[row];
  }
}
std::vector<Tensor> layernorm_backward(Tensor dy, Tensor x, Tensor g, Tensor mean, Tensor rstd, int64_t bug) {
  auto c = dy.contiguous(), dx = torch::empty_like(x), dg = bug == 2 ? torch::empty_like(g) : torch::zeros_like(g);
  norm_backward_kernel<<<x.size(0), 32>>>(c.data_ptr<float>(), x.data_ptr<float>(), g.data_ptr<float>(), mean.data_ptr<float>(), rstd.data_ptr<float>(), dx.data_ptr<float>(), dg.data_ptr<float>(), x.size(1), bug);
  return {dx, dg};
}
template <typename scalar_t>
__global__ void rms_kernel(const scalar_t* x, scalar_t* y, int rows, int h, int bug) {
  int row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= rows && bug != 1) return;
  float q = 0;
  for (int i = threadIdx.x; i < h; i += 32) { float v = x[row * h + i]; q += v * v; }  // line: rmsnorm bounds
  q = rsqrtf(warp_sum(q) / h + (bug == 3 ? 1e-1f : 1e-6f));
  for (int i = threadIdx.x; i < h; i += 32) y[row * h + i] = scalar_t(float(x[row * h + i]) * q);
}
Tensor rmsnorm(Tensor x, int64_t bug) {
  auto y = torch::empty_like(x);
  int rows = x.size(0);
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "rmsnorm", [&] {
    rms_kernel<scalar_t><<<(rows + 3) / 4 - (bug == 2), dim3(32, 4)>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), rows, x.size(1), bug);
  });
  return y;
}

// ---- attention, convolution, pooling
__global__ void attention_kernel(const float* q, const float* k, const float* v, float* o, int n, int d, float scale, int bug) {
  extern __shared__ float s[];
  int row = blockIdx.x;
  for (int j = threadIdx.x; bug == 2 ? j <= n : j < n; j += blockDim.x) {
    float a = 0;
    for (int e = 0; e < d; e++) a += q[row * d + e] * k[j * d + e];  // line: attention bounds
    s[j] = a * scale;
  }
  if (bug != 1) __syncthreads();
  float m = -INFINITY, z = 0;
  for (int j = 0; j < n; j++) m = fmaxf(m, s[j]);  // line: attention race
  for (int j = 0; j < n; j++) z += expf(s[j] - m);
  for (int e = threadIdx.x; e < d; e += blockDim.x) {
    float a = 0;
    for (int j = 0; j < n; j++) a += expf(s[j] - m) / z * v[j * d + e];
    o[row * d + e] = a;
  }
}
Tensor attention(Tensor q, Tensor k, Tensor v, int64_t bug) {
  int n = q.size(0), d = q.size(1);
  auto o = torch::empty_like(q);
  attention_kernel<<<n, 64, (n + 1) * sizeof(float)>>>(q.data_ptr<float>(), k.data_ptr<float>(), v.data_ptr<float>(), o.data_ptr<float>(), n, d, bug == 3 ? 1.f / d : 1.f / sqrtf(d), bug);
  return o;
}
__global__ void conv_kernel(const float* x, const float* w, float* y, int c, int h, int width, int bug) {
  int j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y, f = blockIdx.z;
  if (j >= width) return;
  float v = 0;
  for (int ch = 0; ch < c; ch++)
    for (int a = 0; a < 3; a++)
      for (int b = 0; b < 3; b++) {
        int r = i + a - 1, s = j + b - 1;
        bool in = r >= 0 && r < h && s >= 0 && s < width;
        if (bug == 1) in = r < h && s < width;
        if (in) v += x[(ch * h + r) * width + s] * w[((f * c + ch) * 3 + (bug == 3 ? b : a)) * 3 + (bug == 3 ? a : b)];  // line: conv bounds
      }
  y[(f * h + i) * width + j] = v;
}
Tensor conv(Tensor x, Tensor w, int64_t bug) {
  int c = x.size(0), h = x.size(1), width = x.size(2), f = w.size(0);
  auto y = torch::empty({f, h, width}, x.options());
  conv_kernel<<<dim3((width + 31) / 32, h, bug == 2 ? f - 1 : f), 32>>>(x.data_ptr<float>(), w.data_ptr<float>(), y.data_ptr<float>(), c, h, width, bug);
  return y;
}
__global__ void pool_kernel(const float* x, float* y, int h, int w, int n, int bug) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int ow = w / 2, r = i / ow * 2, c = i % ow * 2;
  float v = bug == 3 ? 0 : -INFINITY;
  for (int a = 0; a < (bug == 1 ? 3 : 2); a++)
    for (int b = 0; b < 2; b++) v = fmaxf(v, x[(r + a) * w + c + b]);  // line: max_pool bounds
  y[i] = v;
}
Tensor max_pool(Tensor x, int64_t bug) {
  int h = x.size(0), w = x.size(1), n = h / 2 * (w / 2);
  auto y = torch::empty({h / 2, w / 2}, x.options());
  pool_kernel<<<bug == 2 ? n / 32 : (n + 31) / 32, 32>>>(x.data_ptr<float>(), y.data_ptr<float>(), h, w, n, bug);
  return y;
}

// ---- scans, argmax, histograms, gathers, losses
__global__ void scan_kernel(const float* x, float* y, int n, int bug) {
  __shared__ float s[256];
  int i = threadIdx.x;
  s[i] = i < n || bug == 2 ? x[blockIdx.x * n + i] : 0;  // line: scan bounds
  __syncthreads();
  for (int o = bug == 3 ? 2 : 1; o < n; o *= 2) {
    float v = i >= o ? s[i - o] : 0;
    if (bug != 1) __syncthreads();
    s[i] += v;  // line: scan race
    __syncthreads();
  }
  if (i < n) y[blockIdx.x * n + i] = s[i];
}
Tensor scan(Tensor x, int64_t bug) {
  auto y = torch::empty_like(x);
  scan_kernel<<<x.size(0), 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1), bug);
  return y;
}
__global__ void argmax_kernel(const float* x, int64_t* y, int h, int bug) {
  __shared__ float best[64];
  __shared__ int at[64];
  int t = threadIdx.x;
  best[t] = -INFINITY; at[t] = 0;
  for (int i = t; bug == 2 ? i <= h : i < h; i += 64)
    if (x[blockIdx.x * h + i] > best[t]) { best[t] = x[blockIdx.x * h + i]; at[t] = i; }  // line: argmax bounds
  __syncthreads();
  for (int o = bug == 3 ? 16 : 32; o; o /= 2) {
    if (t < o && (best[t + o] > best[t] || (best[t + o] == best[t] && at[t + o] < at[t]))) { best[t] = best[t + o]; at[t] = at[t + o]; }  // line: argmax race
    if (bug != 1) __syncthreads();
  }
  if (t == 0) y[blockIdx.x] = at[0];
}
Tensor argmax(Tensor x, int64_t bug) {
  auto y = torch::empty({x.size(0)}, x.options().dtype(torch::kLong));
  argmax_kernel<<<x.size(0), 64>>>(x.data_ptr<float>(), y.data_ptr<int64_t>(), x.size(1), bug);
  return y;
}
__global__ void count_kernel(const int64_t* x, int* bins, int n, int bug) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  if (bug == 1) bins[x[i]]++;  // line: histogram race
  else atomicAdd(bins + x[i], 1);  // line: histogram unwritten
}
__global__ void share_kernel(const int* bins, float* y, int k, float n) {
  if (threadIdx.x < k) y[threadIdx.x] = bins[threadIdx.x] / n;
}
Tensor histogram(Tensor x, int64_t k, int64_t bug) {
  const c10::cuda::CUDAGuard guard(x.device());
  auto stream = at::cuda::getCurrentCUDAStream();
  int n = x.numel();
  auto bins = torch::empty({k}, x.options().dtype(torch::kInt)), y = torch::empty({k}, x.options().dtype(torch::kFloat));
  if (bug != 2) cudaMemsetAsync(bins.data_ptr<int>(), 0, k * sizeof(int), stream);
  count_kernel<<<(n + 63) / 64, 64, 0, stream>>>(x.data_ptr<int64_t>(), bins.data_ptr<int>(), n, bug);
  share_kernel<<<1, 32, 0, stream>>>(bins.data_ptr<int>(), y.data_ptr<float>(), bug == 3 ? k - 1 : k, n);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
__global__ void embed_kernel(const int64_t* ids, const float* table, float* y, int d, int bug) {
  int64_t id = ids[blockIdx.x] + (bug == 1);
  for (int i = threadIdx.x; i < (bug == 2 ? d - 1 : d); i += blockDim.x) y[blockIdx.x * d + i] = table[id * d + i] * (bug == 3 ? 1.01f : 1.f);  // line: embedding bounds
}
Tensor embedding(Tensor ids, Tensor table, int64_t bug) {
  auto y = torch::empty({ids.size(0), table.size(1)}, table.options());
  embed_kernel<<<ids.size(0), 32>>>(ids.data_ptr<int64_t>(), table.data_ptr<float>(), y.data_ptr<float>(), table.size(1), bug);
  return y;
}
__global__ void entropy_kernel(const float* x, const int64_t* t, float* loss, int rows, int h, int bug) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows && bug != 2) return;
  float m = -INFINITY, z = 0;
  for (int i = 0; i < h; i++) m = fmaxf(m, x[row * h + i]);  // line: cross_entropy bounds
  for (int i = 0; i < h; i++) z += expf(x[row * h + i] - m);
  float l = (logf(z) + m - x[row * h + t[row]]) / (bug == 3 ? rows + 1 : rows);
  if (bug == 1) *loss += l;  // line: cross_entropy race
  else atomicAdd(loss, l);
}
Tensor cross_entropy(Tensor x, Tensor t, int64_t bug) {
  auto loss = torch::zeros({}, x.options());
  int rows = x.size(0);
  entropy_kernel<<<(rows + 31) / 32, 32>>>(x.data_ptr<float>(), t.data_ptr<int64_t>(), loss.data_ptr<float>(), rows, x.size(1), bug);
  return loss;
}
__global__ void adam_kernel(float* p, const float* g, float* m, float* v, int n, float step, int bug) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (bug == 1 ? i > n : i >= n) return;
  m[i] = 0.9f * m[i] + 0.1f * g[i];  // line: adam bounds
  v[i] = (bug == 3 ? 0.99f : 0.999f) * v[i] + 0.001f * g[i] * g[i];
  p[i] -= step * m[i] / (sqrtf(v[i]) + 1e-8f);
}
Tensor adam(Tensor p, Tensor g, Tensor m, Tensor v, int64_t bug) {
  auto copy = p.clone(), mc = m.clone(), vc = v.clone();
  int n = p.numel();
  adam_kernel<<<(n + 63) / 64 - (bug == 2), 64>>>(copy.data_ptr<float>(), g.data_ptr<float>(), mc.data_ptr<float>(), vc.data_ptr<float>(), n, 0.1f, bug);
  return copy;
}
"""
NAMES = (
    "gelu", "softmax", "total", "matmul", "tensor_cores", "linear", "transpose", "layernorm",
    "layernorm_backward", "rmsnorm", "attention", "conv", "max_pool", "scan", "argmax",
    "histogram", "embedding", "cross_entropy", "adam",
)  # fmt: skip
ext = load_inline("published_ext", signatures(CUDA), CUDA, functions=list(NAMES))
torch.manual_seed(0)


def draw(*size):
    return torch.randn(*size, device="cuda")


class LayerNorm(torch.autograd.Function):
    """The way that extensions bring their backward pass to autograd."""

    bug = 0

    @staticmethod
    def forward(ctx, x, g):
        y, mean, rstd = ext.layernorm(x, g, 0)
        ctx.save_for_backward(x, g, mean, rstd)
        return y

    @staticmethod
    def backward(ctx, dy):
        return tuple(ext.layernorm_backward(dy, *ctx.saved_tensors, LayerNorm.bug))


def gradients(norm):
    x, g = (t.clone().requires_grad_() for t in (X, G))
    (norm(x, g) * W).sum().backward()
    return torch.cat([x.grad.flatten(), g.grad])


def by_extension(bug):
    LayerNorm.bug = bug
    return gradients(LayerNorm.apply)


X, G, W = draw(7, 40), draw(40), draw(7, 40)
A, B = draw(35, 41), draw(41, 37)
HA, HB = draw(32, 48).half(), draw(48, 64).half()
IDS = torch.randint(0, 10, (200,), device="cuda")
LAST = torch.tensor([3, 9, 0], device="cuda")
IMAGE, FILTERS = draw(3, 9, 37), draw(4, 3, 3, 3)
Q, K, V = draw(20, 16), draw(20, 16), draw(20, 16)
TABLE, P, M, SQUARES = draw(10, 24), draw(300), draw(300), draw(300).square()
NARROW = -draw(10, 16).abs()


def adam():
    g = G.repeat(8)[:300]
    m, v = 0.9 * M + 0.1 * g, 0.999 * SQUARES + 0.001 * g * g
    return P - 0.1 * m / (v.sqrt() + 1e-8)


CASES = {
    "gelu": (lambda b: ext.gelu(P, b), lambda: functional.gelu(P, approximate="tanh"),
             ("bounds", "grid", "constant")),
    "softmax": (lambda b: ext.softmax(A, b), lambda: A.softmax(1), ("race", "bounds", "constant")),
    "total": (lambda b: ext.total(A, b), lambda: A.sum().view(1), ("race", "unwritten", "grid")),
    "matmul": (lambda b: ext.matmul(A, B, b), lambda: A @ B, ("race", "bounds", "constant")),
    "tensor_cores": (lambda b: ext.tensor_cores(HA, HB, b), lambda: HA.float() @ HB.float(),
                     ("race", "bounds", "constant")),
    "linear": (lambda b: ext.linear(A, B.t().contiguous(), P[:37].clone(), b),
               lambda: A @ B + P[:37], ("bounds", "unwritten", "constant")),
    "transpose": (lambda b: ext.transpose(A, b), lambda: A.t(), ("race", "bounds", "grid")),
    "layernorm": (lambda b: ext.layernorm(X, G, b)[0],
                  lambda: functional.layer_norm(X, (40,), G), ("race", "bounds", "constant")),
    "layernorm_backward": (by_extension,
                           lambda: gradients(lambda x, g: functional.layer_norm(x, (40,), g)),
                           ("race", "unwritten", "constant")),
    "rmsnorm": (lambda b: torch.cat([ext.rmsnorm(X, b), ext.rmsnorm(X.half(), b).float()]),
                lambda: torch.cat([X * X.square().mean(1, True).rsqrt()] * 2),
                ("bounds", "grid", "constant")),
    "attention": (lambda b: ext.attention(Q, K, V, b), lambda: (Q @ K.t() / 4).softmax(1) @ V,
                  ("race", "bounds", "constant")),
    "conv": (lambda b: ext.conv(IMAGE, FILTERS, b),
             lambda: functional.conv2d(IMAGE[None], FILTERS, padding=1)[0],
             ("bounds", "grid", "constant")),
    "max_pool": (lambda b: ext.max_pool(NARROW, b),
                 lambda: functional.max_pool2d(NARROW[None], 2)[0], ("bounds", "grid", "constant")),
    "scan": (lambda b: ext.scan(A, b), lambda: A.cumsum(1), ("race", "bounds", "constant")),
    "argmax": (lambda b: ext.argmax(P.view(3, 100), b), lambda: P.view(3, 100).argmax(1),
               ("race", "bounds", "constant")),
    "histogram": (lambda b: ext.histogram(IDS, 10, b),
                  lambda: torch.bincount(IDS, minlength=10) / 200, ("race", "unwritten", "grid")),
    "embedding": (lambda b: ext.embedding(LAST, TABLE, b), lambda: TABLE[LAST],
                  ("bounds", "unwritten", "constant")),
    "cross_entropy": (lambda b: ext.cross_entropy(A, IDS[:35].contiguous(), b),
                      lambda: functional.cross_entropy(A, IDS[:35]),
                      ("race", "bounds", "constant")),
    "adam": (lambda b: ext.adam(P, G.repeat(8)[:300].contiguous(), M, SQUARES, b), adam,
             ("bounds", "grid", "constant")),
}  # fmt: skip


judge(CASES)
