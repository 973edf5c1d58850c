// Sums, extremes, scans, histograms, sorts: shared memory, barriers, warps, atomics.
#include <cuda_fp16.h>
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

extern "C" __global__ void block_sum(const float* x, float* out, int n) {
  __shared__ float s[256];
  int t = threadIdx.x;
  float a = 0;
  for (int i = t; i < n; i += blockDim.x) a += x[blockIdx.x * n + i];
  s[t] = a;
  __syncthreads();
  for (int k = blockDim.x / 2; k > 0; k >>= 1) {
    if (t < k) s[t] += s[t + k];
    __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = s[0];
}

extern "C" __global__ void warp_sum(const float* x, float* out, int n) {
  __shared__ float partial[32];
  float a = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) a += x[blockIdx.x * n + i];
  for (int o = 16; o; o >>= 1) a += __shfl_xor_sync(~0u, a, o);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = a;
  __syncthreads();
  if (threadIdx.x < 32) {
    a = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0.f;
    for (int o = 16; o; o >>= 1) a += __shfl_down_sync(~0u, a, o);
    if (threadIdx.x == 0) out[blockIdx.x] = a;
  }
}

extern "C" __global__ void argmax_rows(const float* x, int* out, int n) {
  __shared__ float v[128];
  __shared__ int w[128];
  int t = threadIdx.x, best = -1;
  float top = -INFINITY;
  for (int i = t; i < n; i += 128) if (x[blockIdx.x * n + i] > top) { top = x[blockIdx.x * n + i]; best = i; }
  v[t] = top; w[t] = best;
  __syncthreads();
  for (int k = 64; k > 0; k >>= 1) {
    if (t < k && (v[t + k] > v[t] || (v[t + k] == v[t] && w[t + k] < w[t]))) { v[t] = v[t + k]; w[t] = w[t + k]; }
    __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = w[0];
}

extern "C" __global__ void inclusive_scan(const int* x, int* out, int n) {
  extern __shared__ int buffer[];
  int t = threadIdx.x;
  buffer[t] = t < n ? x[t] : 0;
  __syncthreads();
  for (int o = 1; o < blockDim.x; o <<= 1) {
    int v = t >= o ? buffer[t - o] : 0;
    __syncthreads();
    buffer[t] += v;
    __syncthreads();
  }
  if (t < n) out[t] = buffer[t];
}

extern "C" __global__ void warp_scan(const int* x, int* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
  int v = i < n ? x[i] : 0;
  for (int o = 1; o < 32; o <<= 1) { int u = __shfl_up_sync(~0u, v, o); if (lane >= o) v += u; }
  if (i < n) out[i] = v;
}

extern "C" __global__ void histogram(const unsigned char* x, unsigned* out, int n) {
  __shared__ unsigned h[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) h[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&h[x[i]], 1u);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x) if (h[i]) atomicAdd(&out[i], h[i]);
}

extern "C" __global__ void bitonic_sort(int* x) {
  __shared__ int s[512];
  int t = threadIdx.x;
  s[t] = x[blockIdx.x * 512 + t];
  s[t + 256] = x[blockIdx.x * 512 + t + 256];
  for (int size = 2; size <= 512; size <<= 1)
    for (int stride = size / 2; stride > 0; stride >>= 1) {
      __syncthreads();
      int a = 2 * t - (t & (stride - 1)), b = a + stride;
      bool up = (a & size) == 0;
      if ((s[a] > s[b]) == up) { int v = s[a]; s[a] = s[b]; s[b] = v; }
    }
  __syncthreads();
  x[blockIdx.x * 512 + t] = s[t];
  x[blockIdx.x * 512 + t + 256] = s[t + 256];
}

extern "C" __global__ void last_block_sum(const float* x, float* part, float* out, unsigned* counter) {
  __shared__ float s[256];
  __shared__ bool last;
  int t = threadIdx.x;
  s[t] = x[blockIdx.x * 256 + t];
  __syncthreads();
  for (int k = 128; k > 0; k >>= 1) { if (t < k) s[t] += s[t + k]; __syncthreads(); }
  if (t == 0) {
    part[blockIdx.x] = s[0];
    __threadfence();
    last = atomicInc(counter, gridDim.x) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && t == 0) {
    float a = 0;
    for (int i = 0; i < gridDim.x; i++) a += ((volatile float*)part)[i];
    out[0] = a;
  }
}

extern "C" __global__ void warp_aggregated(const int* x, int* out, int* counter, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && x[i] > 0) {
    unsigned active = __activemask();
    int lane = threadIdx.x & 31, leader = __ffs(active) - 1, base = 0;
    if (lane == leader) base = atomicAdd(counter, __popc(active));
    base = __shfl_sync(active, base, leader);
    out[base + __popc(active & ((1u << lane) - 1))] = x[i];
  }
}

extern "C" __global__ void float_max_cas(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int* address = (int*)out;
  int old = *(volatile int*)address, assumed;
  do {
    assumed = old;
    if (__int_as_float(assumed) >= x[i]) break;
    old = atomicCAS(address, assumed, __float_as_int(x[i]));
  } while (old != assumed);
}

extern "C" __global__ void spin_lock(int* lock, int* out) {
  bool done = false;
  while (!done) {
    if (atomicCAS(lock, 0, 1) == 0) {
      *(volatile int*)out = *(volatile int*)out + 1;
      __threadfence();
      atomicExch(lock, 0);
      done = true;
    }
  }
}

extern "C" __global__ void group_reduce(const int* x, int* out, int n) {
  auto block = cg::this_thread_block();
  auto tile = cg::tiled_partition<16>(block);
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int v = i < n ? x[i] : 0;
  for (int o = tile.size() / 2; o > 0; o /= 2) v += tile.shfl_down(v, o);
  if (tile.thread_rank() == 0) out[i / 16] = v;
  block.sync();
}

extern "C" __global__ void redux_votes(const int* x, unsigned* out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned r = __reduce_add_sync(~0u, x[i]) + __reduce_max_sync(~0u, x[i]) + __reduce_xor_sync(~0u, (unsigned)x[i]);
  r += __ballot_sync(~0u, x[i] > 2) + __match_any_sync(~0u, x[i]);
  int all;
  r += __match_all_sync(~0u, x[i] >> 30, &all) + all;
  r += __any_sync(~0u, x[i] == 5) + 2 * __all_sync(~0u, x[i] >= 0);
  out[i] = r;
}

extern "C" __global__ void count_barrier(const int* x, int* out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int c = __syncthreads_count(x[i] > 0);
  int a = __syncthreads_and(x[i] > -100), o = __syncthreads_or(x[i] == 3);
  out[i] = c * 4 + (a != 0) * 2 + (o != 0);
}

extern "C" __global__ void named_barriers(const int* x, int* out) {
  __shared__ int s[64];
  int t = threadIdx.x;
  if (t < 64) { s[t] = x[t] * 2; asm volatile("bar.arrive 1, 128;" ::: "memory"); }
  else { asm volatile("bar.sync 1, 128;" ::: "memory"); out[t - 64] = s[t - 64] + 1; }
}

extern "C" __global__ void warp_private(const int* x, int* out) {
  __shared__ int s[128];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncwarp();
  int v = s[t ^ 1];
  __syncwarp();
  s[t] = v + 1;
  __syncwarp();
  out[t] = s[(t & ~31) | (31 - (t & 31))];
}
