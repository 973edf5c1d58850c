// What published programs use beside the basics; each case is right.
#include "common.h"

#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cuda/atomic>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
#include <cassert>
#include <thread>

namespace cg = cooperative_groups;

template <class T> __global__ void halves(const T* x, T* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = __hadd(x[i], __hmul(x[i], x[i]));
}
bool half_(bool) {
  std::vector<__half> x(64);
  for (int i = 0; i < 64; i++) x[i] = __float2half(i * 0.25f);
  auto* d_x = upload(x);
  __half* d_y;
  CHECK(cudaMalloc(&d_y, 64 * sizeof(__half)));
  halves<<<1, 64>>>(d_x, d_y, 64);
  auto y = download(d_y, 64);
  for (int i = 0; i < 64; i++) if (__half2float(y[i]) != i * 0.25f + i * 0.25f * i * 0.25f && i < 8) return false;
  return true;
}

__global__ void tensor_core(const __half* a, const __half* b, float* c) {
  using namespace nvcuda;
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
  wmma::fill_fragment(fc, 0.0f);
  wmma::load_matrix_sync(fa, a, 16);
  wmma::load_matrix_sync(fb, b, 16);
  wmma::mma_sync(fc, fa, fb, fc);
  wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}
bool wmma_(bool) {
  std::vector<__half> a(256), b(256);
  for (int i = 0; i < 256; i++) { a[i] = __float2half((float)(i % 7)); b[i] = __float2half((float)(i % 5)); }
  auto *d_a = upload(a), *d_b = upload(b);
  float* d_c;
  CHECK(cudaMalloc(&d_c, 256 * sizeof(float)));
  tensor_core<<<1, 32>>>(d_a, d_b, d_c);
  auto c = download(d_c, 256);
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 16; j++) {
      float want = 0;
      for (int k = 0; k < 16; k++) want += (float)((i * 16 + k) % 7) * ((j * 16 + k) % 5);
      if (c[i * 16 + j] != want) return false;
    }
  return true;
}

struct Box { int n; double by; float weights[3]; };
__global__ void __launch_bounds__(128, 2) boxed(Box box, const double* x, double* y) {
  for (int i = threadIdx.x; i < box.n; i += blockDim.x) y[i] = x[i] * box.by + box.weights[i % 3];
}
bool structs(bool) {
  std::vector<double> x(200);
  for (int i = 0; i < 200; i++) x[i] = i;
  double *d_x = upload(x), *d_y;
  CHECK(cudaMalloc(&d_y, 200 * sizeof(double)));
  Box box = {200, 1.5, {1, 2, 3}};
  boxed<<<1, 128>>>(box, d_x, d_y);
  boxed<<<1, 256>>>(box, d_x, d_y);
  if (cudaGetLastError() == cudaSuccess) return false;  // more threads than __launch_bounds__ allows
  auto y = download(d_y, 200);
  return y[100] == 152 && y[199] == 199 * 1.5 + 2;
}

__global__ void atomics(int* i, unsigned long long* u, double* d, float* most, unsigned* turn) {
  atomicAdd(i, 1);
  atomicMax(i + 1, (int)threadIdx.x);
  atomicAdd(u, 3ull);
  unsigned long long* bits = (unsigned long long*)d;
  unsigned long long old = *bits, assumed;
  do {
    assumed = old;
    old = atomicCAS(bits, assumed, __double_as_longlong(0.5 + __longlong_as_double(assumed)));
  } while (assumed != old);
  atomicMax((int*)most, __float_as_int((float)threadIdx.x));
  atomicExch(turn, 7u);
  atomicOr(turn + 1, 1u << (threadIdx.x % 32));
  cuda::atomic_ref<int, cuda::thread_scope_device>(i[2]).fetch_add(2, cuda::memory_order_relaxed);
}
bool atomic(bool) {
  int* i; unsigned long long* u; double* d; float* f; unsigned* t;
  CHECK(cudaMallocManaged(&i, 16)); CHECK(cudaMallocManaged(&u, 16)); CHECK(cudaMallocManaged(&d, 16));
  CHECK(cudaMallocManaged(&f, 16)); CHECK(cudaMallocManaged(&t, 16));
  memset(i, 0, 16); memset(u, 0, 16); memset(d, 0, 16); memset(f, 0, 16); memset(t, 0, 16);
  atomics<<<2, 64>>>(i, u, d, f, t);
  CHECK(cudaDeviceSynchronize());
  return i[0] == 128 && i[1] == 63 && i[2] == 256 && *u == 384 && *d == 64 && *f == 63 && t[0] == 7 && t[1] == ~0u;
}

__global__ void warps(const int* x, int* y) {
  auto block = cg::this_thread_block();
  auto tile = cg::tiled_partition<32>(block);
  int v = x[threadIdx.x];
  y[threadIdx.x] = cg::reduce(tile, v, cg::plus<int>());
  y[64 + threadIdx.x] = __shfl_xor_sync(0xffffffff, v, 5);
  y[128 + threadIdx.x] = __popc(__match_any_sync(0xffffffff, v % 4));
  y[192 + threadIdx.x] = __reduce_max_sync(0xffffffff, v);
  if (v % 2) {
    auto active = cg::coalesced_threads();
    y[256 + threadIdx.x] = active.size();
  } else y[256 + threadIdx.x] = __any_sync(__activemask(), v > 100);
}
bool warp(bool) {
  std::vector<int> x(64);
  for (int i = 0; i < 64; i++) x[i] = i;
  int *d_x = upload(x), *d_y;
  CHECK(cudaMalloc(&d_y, 320 * sizeof(int)));
  warps<<<1, 64>>>(d_x, d_y);
  auto y = download(d_y, 320);
  return y[0] == 496 && y[63] == 1520 && y[64] == 5 && y[130] == 8 && y[192] == 31 && y[255] == 63 && y[257] == 16 && y[256] == 0;
}

__global__ void copies(const float* x, float* y, int n) {
  __shared__ float s[256];
  auto block = cg::this_thread_block();
  cg::memcpy_async(block, s, x, sizeof(float) * n);
  cg::wait(block);
  if (threadIdx.x < n) y[threadIdx.x] = s[n - 1 - threadIdx.x];
}
bool async(bool) {
  auto x = numbers(200);
  float *d_x = upload(x), *d_y;
  CHECK(cudaMalloc(&d_y, 200 * sizeof(float)));
  copies<<<1, 256>>>(d_x, d_y, 200);
  auto y = download(d_y, 200);
  for (int i = 0; i < 200; i++) if (y[i] != x[199 - i]) return false;
  return true;
}

__global__ void functions(const float* x, double* y, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  float v = x[i];
  y[8 * i] = sinf(v) + __cosf(v); y[8 * i + 1] = expf(v / 4); y[8 * i + 2] = logf(fabsf(v) + 1); y[8 * i + 3] = pow((double)fabsf(v), 1.5);
  y[8 * i + 4] = sqrt((double)fabsf(v)); y[8 * i + 5] = erff(v / 8); y[8 * i + 6] = tanhf(v / 3); y[8 * i + 7] = fmodf(v, 3.0f) + rsqrtf(fabsf(v) + 1) + cbrtf(v);
}
bool math(bool) {
  auto x = numbers(23);
  float* d_x = upload(x);
  double* d_y;
  CHECK(cudaMalloc(&d_y, 8 * 23 * sizeof(double)));
  functions<<<1, 32>>>(d_x, d_y, 23);
  auto y = download(d_y, 8 * 23);
  for (int i = 0; i < 23; i++) {
    double v = x[i], w[8] = {sin(v) + cos(v), exp(v / 4), log(fabs(v) + 1), pow(fabs(v), 1.5), sqrt(fabs(v)), erf(v / 8), tanh(v / 3),
                             fmod(v, 3) + 1 / sqrt(fabs(v) + 1) + cbrt(v)};
    for (int k = 0; k < 8; k++) if (fabs(w[k] - y[8 * i + k]) > 1e-5 * (1 + fabs(w[k]))) { printf("%d %d %g %g\n", i, k, w[k], y[8 * i + k]); return false; }
  }
  return true;
}

__global__ void mapped(int* x, int n) { if (threadIdx.x < n) x[threadIdx.x] += 5; }
bool zero_copy(bool) {
  int *h, *d;
  CHECK(cudaHostAlloc((void**)&h, 64 * sizeof(int), cudaHostAllocMapped));
  for (int i = 0; i < 64; i++) h[i] = i;
  CHECK(cudaHostGetDevicePointer((void**)&d, h, 0));
  mapped<<<1, 64>>>(d, 64);
  CHECK(cudaDeviceSynchronize());
  std::vector<int> own(64, 1);
  CHECK(cudaHostRegister(own.data(), 64 * sizeof(int), cudaHostRegisterDefault));
  CHECK(cudaMemcpyAsync(own.data(), d, 64 * sizeof(int), cudaMemcpyDeviceToHost));
  CHECK(cudaStreamSynchronize(0));
  CHECK(cudaHostUnregister(own.data()));
  return h[9] == 14 && own[63] == 68;
}

__global__ void slow(float* x, int n, long long* when) {
  long long t = clock64();
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  assert(n > 0);
  if (i < n) x[i] = sqrtf(x[i] + 1);
  if (i == 0) *when = clock64() - t;
}
static int called = 0;
bool timing(bool) {
  float* d;
  long long* when;
  cudaEvent_t a, b;
  cudaStream_t s;
  CHECK(cudaMalloc(&d, 4096));
  CHECK(cudaMalloc(&when, 8));
  CHECK(cudaMemset(d, 0, 4096));
  CHECK(cudaEventCreate(&a)); CHECK(cudaEventCreate(&b));
  CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  CHECK(cudaEventRecord(a, s));
  for (int i = 0; i < 20; i++) slow<<<4, 256, 0, s>>>(d, 1024, when);
  CHECK(cudaEventRecord(b, s));
  CHECK(cudaStreamWaitEvent(s, b, 0));
  CHECK(cudaLaunchHostFunc(s, [](void* p) { ++*(int*)p; }, &called));
  CHECK(cudaStreamAddCallback(s, [](cudaStream_t, cudaError_t, void* p) { ++*(int*)p; }, &called, 0));
  std::thread other([&] { cudaSetDevice(0); slow<<<1, 32, 0, s>>>(d, 32, when); cudaStreamSynchronize(s); });
  other.join();
  CHECK(cudaEventSynchronize(b));
  float ms;
  CHECK(cudaEventElapsedTime(&ms, a, b));
  return ms > 0 && called == 2 && cudaEventQuery(b) == cudaSuccess && fabs(download(d, 1)[0] - 1.618f) < 1e-3;
}

__device__ float table[4][8];
__constant__ double coefficients[] = {1, 0.5, 0.25};
namespace deep { __device__ int counter[2] = {3, 4}; }
__global__ void fill(int which) {
  table[threadIdx.y][threadIdx.x] = threadIdx.x * 10 + threadIdx.y + coefficients[2];
  if (!threadIdx.x && !threadIdx.y) deep::counter[which]++;
}
bool variables(bool) {
  fill<<<1, dim3(8, 4)>>>(1);
  float t[4][8];
  int c[2];
  CHECK(cudaMemcpyFromSymbol(t, table, sizeof t));
  CHECK(cudaMemcpyFromSymbol(c, deep::counter, sizeof c));
  return t[2][3] == 32.25f && c[0] == 3 && c[1] == 5;
}

bool volumes(bool) {
  const int w = 5, h = 4, d = 3;
  cudaExtent e = make_cudaExtent(w * sizeof(float), h, d);
  cudaPitchedPtr p;
  auto x = numbers(w * h * d);
  std::vector<float> y(w * h * d);
  CHECK(cudaMalloc3D(&p, e));
  CHECK(cudaMemset3D(p, 0, e));
  cudaMemcpy3DParms m = {};
  m.srcPtr = make_cudaPitchedPtr(x.data(), w * sizeof(float), w, h);
  m.dstPtr = p; m.extent = e; m.kind = cudaMemcpyHostToDevice;
  CHECK(cudaMemcpy3D(&m));
  m.srcPtr = p; m.dstPtr = make_cudaPitchedPtr(y.data(), w * sizeof(float), w, h); m.kind = cudaMemcpyDeviceToHost;
  CHECK(cudaMemcpy3D(&m));
  return x == y;
}

__global__ void old_style(const float* x, float* y) {  // a warp in step, by volatile and __syncwarp
  volatile __shared__ float s[64];
  int t = threadIdx.x;
  s[t] = x[t] + x[t + 32];
  __syncwarp();
  for (int o = 16; o; o /= 2) {
    float v = t < o ? s[t + o] : 0;
    __syncwarp();
    if (t < o) s[t] += v;
    __syncwarp();
  }
  if (t == 0) *y = s[0];
}
bool warp_sync(bool) {
  auto x = numbers(64);
  float *d_x = upload(x), *d_y, want = 0;
  for (float v : x) want += v;
  CHECK(cudaMalloc(&d_y, sizeof(float)));
  old_style<<<1, 32>>>(d_x, d_y);
  return download(d_y, 1)[0] == want;
}

int main(int argc, char** argv) {
  const Case cases[] = {{"half", half_}, {"wmma", wmma_}, {"structs", structs}, {"atomic", atomic}, {"warp", warp}, {"async", async},
                        {"math", math}, {"zero_copy", zero_copy}, {"timing", timing}, {"variables", variables}, {"volumes", volumes},
                        {"warp_sync", warp_sync}};
  return choose(cases, sizeof cases / sizeof *cases, argc, argv);
}
