#include <cuda/atomic>
// Kernels that wait for each other by flags in memory, as published ones do.
typedef unsigned u;
// Decoupled look-back by one thread: a status and a value in one word.
extern "C" __global__ void scan_chain(const u* x, u* out, volatile unsigned long long* status) {
  u sum = 0, mine = x[blockIdx.x];
  if (threadIdx.x) return;
  status[blockIdx.x] = (blockIdx.x ? 1ull : 2ull) << 32 | mine;
  for (int b = (int)blockIdx.x - 1; b >= 0; b--) {
    unsigned long long v;
    while (((v = status[b]) >> 32) == 0) __nanosleep(20);
    sum += (u)v;
    if (v >> 32 == 2) break;
  }
  status[blockIdx.x] = 2ull << 32 | (sum + mine);
  out[blockIdx.x] = sum + mine;
}
// The same, 32 blocks at a time by a warp.
extern "C" __global__ void scan_warp(const u* x, u* out, volatile unsigned long long* status) {
  u mine = x[blockIdx.x], sum = 0, lane = threadIdx.x;
  if (lane == 0) status[blockIdx.x] = (blockIdx.x ? 1ull : 2ull) << 32 | mine;
  for (int b = (int)blockIdx.x - 1; b >= 0; b -= 32) {
    int at = b - (int)lane;
    unsigned long long v;
    do v = at >= 0 ? status[at] : 2ull << 32; while (__any_sync(~0u, v >> 32 == 0));
    u whole = __ballot_sync(~0u, v >> 32 == 2);
    u first = whole ? __ffs(whole) - 1 : 31;
    u part = lane <= first ? (u)v : 0;
    for (int k = 16; k; k >>= 1) part += __shfl_xor_sync(~0u, part, k);
    sum += part;
    if (whole) break;
  }
  if (lane == 0) { status[blockIdx.x] = 2ull << 32 | (sum + mine); out[blockIdx.x] = sum + mine; }
}
// Values beside their flags, ordered by fences.
extern "C" __global__ void scan_fenced(const u* x, u* out, u* value, volatile int* flag) {
  if (threadIdx.x) return;
  u sum = x[blockIdx.x];
  if (blockIdx.x) {
    while (flag[blockIdx.x - 1] == 0) { }
    __threadfence();
    sum += ((volatile u*)value)[blockIdx.x - 1];
  }
  value[blockIdx.x] = sum;
  __threadfence();
  flag[blockIdx.x] = 1;
  out[blockIdx.x] = sum;
}
// A barrier of all blocks, made by hand.
extern "C" __global__ void grid_barrier(const u* x, u* out, u* part, u* count) {
  u t = threadIdx.x;
  part[blockIdx.x * 32 + t] = x[blockIdx.x * 32 + t];
  __threadfence();
  __syncthreads();
  if (t == 0) {
    atomicAdd(count, 1);
    while (*(volatile u*)count < gridDim.x) { }
    __threadfence();
  }
  __syncthreads();
  out[blockIdx.x * 32 + t] = ((volatile u*)part)[(gridDim.x - 1 - blockIdx.x) * 32 + t];
}
// cuda::atomic_ref, acquire and release.
extern "C" __global__ void chain_ref(const u* x, u* out, u* flag) {
  if (threadIdx.x) return;
  u sum = x[blockIdx.x];
  if (blockIdx.x) {
    cuda::atomic_ref<u, cuda::thread_scope_device> before(flag[blockIdx.x - 1]);
    while (before.load(cuda::memory_order_acquire) == 0) { }
    sum += out[blockIdx.x - 1];
  }
  out[blockIdx.x] = sum;
  cuda::atomic_ref<u, cuda::thread_scope_device> mine(flag[blockIdx.x]);
  mine.store(1, cuda::memory_order_release);
}
// A ring of two buffers between two warps, in shared memory.
extern "C" __global__ void ring(const u* x, u* out, int n) {
  __shared__ volatile u buffer[2][32];
  __shared__ volatile int full[2];
  int lane = threadIdx.x & 31;
  if (threadIdx.x < 2) full[threadIdx.x] = 0;
  __syncthreads();
  for (int i = 0; i < n; i++) {
    int k = i & 1;
    if (threadIdx.x < 32) {
      while (full[k]) { }
      __syncwarp();
      buffer[k][lane] = x[i * 32 + lane];
      __threadfence_block();
      __syncwarp();
      if (lane == 0) full[k] = 1;
    } else {
      while (!full[k]) { }
      __threadfence_block();
      __syncwarp();
      out[i * 32 + lane] = buffer[k][31 - lane] + 1;
      __threadfence_block();
      __syncwarp();
      if (lane == 0) full[k] = 0;
    }
    __syncwarp();
  }
}
// The block that comes last adds what all have stored; all its threads read.
extern "C" __global__ void last_threads(const u* x, u* out, u* part, u* count) {
  __shared__ u s[32];
  __shared__ bool last;
  u t = threadIdx.x;
  part[blockIdx.x * 32 + t] = x[blockIdx.x * 32 + t];
  __threadfence();
  __syncthreads();
  if (t == 0) last = atomicAdd(count, 1) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  u sum = 0;
  for (u b = 0; b < gridDim.x; b++) sum += ((volatile u*)part)[b * 32 + t];
  s[t] = sum;
  __syncthreads();
  out[t] = s[31 - t];
}
// A threshold that only spares atomics; a flag set once; an early end of a search.
extern "C" __global__ void search(const u* x, u* best, volatile int* seen, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    u v = x[i];
    if (v > *(volatile u*)best) atomicMax(best, v);
    if (v > 100 && !*seen) *seen = 1;
  }
}
// Union-find with path halving.
extern "C" __global__ void roots(const u* a, const u* b, u* parent, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  u p = a[i], q = b[i];
  while (true) {
    while (p != ((volatile u*)parent)[p]) p = ((volatile u*)parent)[p];
    while (q != ((volatile u*)parent)[q]) q = ((volatile u*)parent)[q];
    if (p == q) break;
    if (p < q) { u r = p; p = q; q = r; }
    u old = atomicMin(&parent[p], q);
    if (old == p) break;
    p = old;
  }
}
// A ticket lock.
extern "C" __global__ void tickets(u* out, u* next, volatile u* serving) {
  if (threadIdx.x) return;
  u mine = atomicAdd(next, 1);
  while (*serving != mine) { }
  __threadfence();
  out[0] = ((volatile u*)out)[0] + blockIdx.x;
  __threadfence();
  *serving = mine + 1;
}
// Insertion into a hash table.
extern "C" __global__ void insert(const u* x, u* keys, int n, u size) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  u k = x[i] + 1;
  for (u at = k * 2654435761u % size;; at = (at + 1) % size) {
    u now = ((volatile u*)keys)[at];
    if (now == k) return;
    if (now == 0) { u old = atomicCAS(&keys[at], 0, k); if (old == 0 || old == k) return; }
  }
}
// Producer and consumers in one block by a counter, with plain data.
extern "C" __global__ void warps_in_turn(const u* x, u* out) {
  __shared__ u s[128];
  __shared__ u done;
  u t = threadIdx.x, w = t / 32, lane = t & 31;
  if (t == 0) done = 0;
  __syncthreads();
  if (w) { while (*(volatile u*)&done < w) { } __threadfence_block(); }
  __syncwarp();
  s[t] = x[t] + (w ? s[t - 32] : 0);
  __threadfence_block();
  __syncwarp();
  if (lane == 0) atomicAdd(&done, 1);
  out[t] = s[t];
}
// A value that is its own flag, looked at now and then.
extern "C" __global__ void chain_value(const u* x, u* out, volatile u* value) {
  if (threadIdx.x) return;
  u sum = x[blockIdx.x] + 1, before;
  if (blockIdx.x) {
    while ((before = value[blockIdx.x - 1]) == 0) __nanosleep(20);
    sum += before;
  }
  value[blockIdx.x] = sum;
  out[blockIdx.x] = sum;
}
