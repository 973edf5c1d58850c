// More of what published programs use; each case is right.
#include "common.h"

#include <cooperative_groups.h>
#include <cublas_v2.h>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace cg = cooperative_groups;

__global__ void barriers(const int* x, int* y, int n) {
  __shared__ cuda::barrier<cuda::thread_scope_block> bar;
  __shared__ int s[64];
  auto block = cg::this_thread_block();
  if (block.thread_rank() == 0) init(&bar, block.size());
  block.sync();
  s[threadIdx.x] = x[threadIdx.x];
  bar.arrive_and_wait();
  y[threadIdx.x] = s[63 - threadIdx.x];
  y[64 + threadIdx.x] = __syncthreads_count(x[threadIdx.x] > 10);
  y[128 + threadIdx.x] = __syncthreads_or(x[threadIdx.x] == 5) + 2 * __syncthreads_and(x[threadIdx.x] >= 0);
}
bool barrier(bool) {
  std::vector<int> x(64);
  for (int i = 0; i < 64; i++) x[i] = i;
  int *d_x = upload(x), *d_y;
  CHECK(cudaMalloc(&d_y, 192 * sizeof(int)));
  barriers<<<1, 64>>>(d_x, d_y, 64);
  auto y = download(d_y, 192);
  return y[0] == 63 && y[63] == 0 && y[64] == 53 && y[191] == 3;
}

__global__ void piped(const float* x, float* y, int tiles) {
  extern __shared__ float buffer[];
  auto pipe = cuda::make_pipeline();
  auto fetch = [&](int t) {
    pipe.producer_acquire();
    cuda::memcpy_async(&buffer[(t % 2) * 64 + threadIdx.x], &x[t * 64 + threadIdx.x], sizeof(float), pipe);
    pipe.producer_commit();
  };
  float sum = 0;
  fetch(0);
  for (int t = 0; t < tiles; t++) {
    if (t + 1 < tiles) fetch(t + 1);
    if (t + 1 < tiles) cuda::pipeline_consumer_wait_prior<1>(pipe); else cuda::pipeline_consumer_wait_prior<0>(pipe);
    sum += buffer[(t % 2) * 64 + threadIdx.x];
    pipe.consumer_release();
  }
  y[threadIdx.x] = sum;
}
bool pipeline(bool) {
  auto x = numbers(256);
  float *d_x = upload(x), *d_y;
  CHECK(cudaMalloc(&d_y, 64 * sizeof(float)));
  piped<<<1, 64, 512>>>(d_x, d_y, 4);
  auto y = download(d_y, 64);
  for (int i = 0; i < 64; i++) if (y[i] != x[i] + x[i + 64] + x[i + 128] + x[i + 192]) return false;
  return true;
}

__global__ void tables(const int* x, int* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int local[16];
  for (int k = 0; k < 16; k++) local[k] = k * x[i];
  int v = local[x[i] & 15];
  switch (x[i] % 9) {
    case 0: v += 3; break;
    case 1: v *= 2; break;
    case 2: v -= 7; [[fallthrough]];
    case 3: v ^= 21; break;
    case 4: for (int k = 0; k < x[i]; k++) { if (k == 9) break; v += k; } break;
    case 5: while (v > 100) v /= 3; break;
    case 6: v = -v; break;
    case 7: do { v++; } while (v % 5); break;
    default: v = 1000;
  }
  y[i] = v;
}
int expected(int x) {
  int v = (x & 15) * x;
  switch (x % 9) {
    case 0: return v + 3;
    case 1: return v * 2;
    case 2: return (v - 7) ^ 21;
    case 3: return v ^ 21;
    case 4: for (int k = 0; k < x; k++) { if (k == 9) break; v += k; } return v;
    case 5: while (v > 100) v /= 3; return v;
    case 6: return -v;
    case 7: do { v++; } while (v % 5); return v;
    default: return 1000;
  }
}
bool branches(bool) {
  std::vector<int> x(300);
  for (int i = 0; i < 300; i++) x[i] = i % 61;
  int *d_x = upload(x), *d_y;
  CHECK(cudaMalloc(&d_y, 300 * sizeof(int)));
  tables<<<3, 128>>>(d_x, d_y, 300);
  auto y = download(d_y, 300);
  for (int i = 0; i < 300; i++) if (y[i] != expected(x[i])) return false;
  return true;
}

struct Complex {
  float re, im;
  __host__ __device__ Complex operator*(Complex o) const { return {re * o.re - im * o.im, re * o.im + im * o.re}; }
  __host__ __device__ Complex operator+(Complex o) const { return {re + o.re, im + o.im}; }
};
__constant__ Complex twiddles[8];
template <class F> __global__ void each(Complex* z, int n, F f) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) z[i] = f(z[i], i);
}
struct Turn { __device__ Complex operator()(Complex z, int i) const { return z * twiddles[i % 8] + Complex{1, 0}; } };
bool functors(bool) {
  Complex w[8];
  for (int i = 0; i < 8; i++) w[i] = {(float)i, 1};
  CHECK(cudaMemcpyToSymbol(twiddles, w, sizeof w));
  std::vector<Complex> z(100, Complex{2, 3});
  auto* d = upload(z);
  each<<<2, 32>>>(d, 100, Turn());
  auto y = download(d, 100);
  Complex want = z[0] * w[3] + Complex{1, 0};
  return y[11].re == want.re && y[11].im == want.im;
}

__global__ void aggregated(const int* x, int* out, int* count, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && x[i] % 3 == 0) {
    auto active = cg::coalesced_threads();
    int start;
    if (active.thread_rank() == 0) start = atomicAdd(count, (int)active.size());
    start = active.shfl(start, 0);
    out[start + active.thread_rank()] = x[i];
  }
}
__global__ void shared_cas(const int* keys, int* found, int n) {  // a hash table in shared memory
  __shared__ int table[128];
  for (int i = threadIdx.x; i < 128; i += blockDim.x) table[i] = -1;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    int slot = keys[i] * 7 % 128;
    while (atomicCAS(&table[slot], -1, keys[i]) != -1) slot = (slot + 1) % 128;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 128; i += blockDim.x) if (table[i] >= 0) atomicAdd(found, 1);
}
bool queues(bool) {
  std::vector<int> x(500);
  for (int i = 0; i < 500; i++) x[i] = i;
  int *d_x = upload(x), *d_out, *d_count;
  CHECK(cudaMalloc(&d_out, 500 * sizeof(int)));
  CHECK(cudaMalloc(&d_count, 2 * sizeof(int)));
  CHECK(cudaMemset(d_count, 0, 2 * sizeof(int)));
  aggregated<<<4, 128>>>(d_x, d_out, d_count, 500);
  shared_cas<<<1, 64>>>(d_x, d_count + 1, 100);
  auto count = download(d_count, 2);
  return count[0] == 167 && count[1] == 100 && download(d_out, 167)[5] % 3 == 0;
}

__global__ void packed(const __half2* x, const __nv_bfloat162* b, float2* y, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  __half2 h = __hfma2(x[i], x[i], __float2half2_rn(1.0f));
  __nv_bfloat162 v = __hmul2(b[i], b[i]);
  float2 f = __half22float2(h), g = __bfloat1622float2(v);
  float4 wide = reinterpret_cast<const float4*>(x)[i / 4];
  y[i] = make_float2(f.x + g.y, f.y + g.x + (__half2float(__low2half(*(__half2*)&wide.x)) > 1e9f));
}
bool pairs(bool) {
  std::vector<__half2> x(64);
  std::vector<__nv_bfloat162> b(64);
  for (int i = 0; i < 64; i++) { x[i] = __floats2half2_rn(i * 0.5f, 1); b[i] = __floats2bfloat162_rn(2, i % 4); }
  auto *d_x = upload(x); auto* d_b = upload(b);
  float2* d_y;
  CHECK(cudaMalloc(&d_y, 64 * sizeof(float2)));
  packed<<<1, 64>>>(d_x, d_b, d_y, 64);
  auto y = download(d_y, 64);
  return y[3].x == 2.25f + 1 + 9 && y[3].y == 6;
}

__global__ void configured(int* x) { x[blockIdx.x * blockDim.x + threadIdx.x] = blockIdx.x; }
bool launches(bool) {
  int* d;
  CHECK(cudaMalloc(&d, 256 * sizeof(int)));
  cudaLaunchConfig_t c = {};
  c.gridDim = dim3(4); c.blockDim = dim3(64);
  CHECK(cudaLaunchKernelEx(&c, configured, d));
  void* arguments[] = {&d};
  CHECK(cudaLaunchKernel((void*)configured, dim3(4), dim3(64), arguments, 0, nullptr));
  CHECK(cudaMemPrefetchAsync(d, 1024, cudaMemLocation{cudaMemLocationTypeDevice, 0}, 0, nullptr));
  return download(d, 256)[200] == 3;
}

typedef float (*Op)(float, float);
__device__ float plus_(float a, float b) { return a + b; }
__device__ float times(float a, float b) { return a * b; }
__device__ Op table[2] = {plus_, times};
__global__ void apply_(const float* x, float* y, int which, Op given) {
  float v = table[(which + threadIdx.x) % 2](x[threadIdx.x], 3.0f);
  y[threadIdx.x] = given ? given(v, 1.0f) : v;
}
struct Shape { __device__ virtual float area(float s) const = 0; };
struct Square : Shape { __device__ float area(float s) const override { return s * s; } };
struct Circle : Shape { __device__ float area(float s) const override { return 3 * s * s; } };
__global__ void virtuals(const float* x, float* y) {
  Square a; Circle b;
  const Shape* s = threadIdx.x % 2 ? (const Shape*)&a : &b;
  y[threadIdx.x] = s->area(x[threadIdx.x]);
}
bool pointers(bool) {
  auto x = numbers(32);
  float *d_x = upload(x), *d_y;
  CHECK(cudaMalloc(&d_y, 128));
  Op op;
  Op host[2];
  CHECK(cudaMemcpyFromSymbol(host, table, sizeof host));
  op = host[0];
  apply_<<<1, 32>>>(d_x, d_y, 0, op);
  CHECK(cudaDeviceSynchronize());
  auto y = download(d_y, 32);
  for (int i = 0; i < 32; i++) if (y[i] != (i % 2 ? x[i] * 3 : x[i] + 3) + 1) return false;
  virtuals<<<1, 32>>>(d_x, d_y);
  CHECK(cudaDeviceSynchronize());
  y = download(d_y, 32);
  for (int i = 0; i < 32; i++) if (y[i] != (i % 2 ? 1 : 3) * x[i] * x[i]) return false;
  return true;
}

#define CUBLAS(x) do { if ((x) != CUBLAS_STATUS_SUCCESS) return false; } while (0)
bool cublas_(bool bug) {
  const int m = 3, n = 2;
  double a[] = {1, -2, 3, 4, -5, 6}, b[] = {7, 8, 9, 10, 11, 12}, got[6], sum, one = 1, two = 2, none = 0;
  double *d_a, *d_b, *d_c, **d_list;
  int place;
  for (double** d : {&d_a, &d_b, &d_c}) CHECK(cudaMalloc(d, sizeof a));
  cublasHandle_t h;
  CUBLAS(cublasCreate(&h));
  CUBLAS(cublasSetMatrix(m, n, sizeof *a, a, m, d_a, m));
  CUBLAS(cublasSetVector(6, sizeof *b, b, 1, d_b, 1));
  CUBLAS(cublasDasum(h, 6, d_a, 1, &sum));
  if (sum != 21) return false;
  CUBLAS(cublasIdamax(h, 6, d_a, 1, &place));
  if (place != 6) return false;
  CUBLAS(cublasIdamin(h, 6, d_a, 1, &place));
  if (place != 1) return false;
  CUBLAS(cublasDgeam(h, CUBLAS_OP_T, CUBLAS_OP_N, n, m, &two, d_a, m, &none, d_b, n, d_c, n));
  CUBLAS(cublasGetMatrix(n, m, sizeof *got, d_c, n, got, n));
  for (int i = 0; i < 6; i++) if (got[i] != 2 * a[i / n + i % n * m]) return false;
  CUBLAS(cublasDcopy(h, 6, d_b, 1, d_c, 1));
  CUBLAS(cublasDger(h, m, n, &two, d_a, 1, d_a + 3, 1, d_c, m));
  CUBLAS(cublasDswap(h, 6, d_b, 1, d_c, 1));
  CUBLAS(cublasDscal(h, 6, &two, d_c, 1));
  CUBLAS(cublasGetVector(6, sizeof *got, d_b, 1, got, 1));
  for (int i = 0; i < 6; i++) if (got[i] != b[i] + 2 * a[i % m] * a[3 + i / m]) return false;
  CUBLAS(cublasGetVector(6, sizeof *got, d_c, 1, got, 1));
  for (int i = 0; i < 6; i++) if (got[i] != 2 * b[i]) return false;
  double* list[] = {d_a, d_a, d_b, d_c};  // twice a^T a
  CHECK(cudaMalloc(&d_list, sizeof list));
  CHECK(cudaMemcpy(d_list, list, sizeof list, cudaMemcpyHostToDevice));
  if (cublasDgeam(h, CUBLAS_OP_N, CUBLAS_OP_N, m, n, &two, d_a, m, &none, d_b, m, d_c, n) != CUBLAS_STATUS_INVALID_VALUE) return false;
  double** from = bug ? list : d_list;
  CUBLAS(cublasDgemmBatched(h, CUBLAS_OP_T, CUBLAS_OP_N, n, n, m, &one, from, m, from, m, &none, d_list + 2, n, 2));  // line: cublas
  CUBLAS(cublasGetVector(4, sizeof *got, d_c, 1, got, 1));
  for (int i = 0; i < 4; i++) {
    for (int k = 0; k < m; k++) got[i] -= a[i % n * m + k] * a[i / n * m + k];
    if (got[i]) return false;
  }
  CUBLAS(cublasDestroy(h));
  return true;
}

int main(int argc, char** argv) {
  const Case cases[] = {{"barrier", barrier}, {"pipeline", pipeline}, {"branches", branches}, {"functors", functors},
                        {"queues", queues}, {"pairs", pairs}, {"launches", launches}, {"pointers", pointers},
                        {"cublas", cublas_}};
  return choose(cases, sizeof cases / sizeof *cases, argc, argv);
}
