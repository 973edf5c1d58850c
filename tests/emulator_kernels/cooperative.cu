// Kernels with cooperative groups, each right, and with one bug that its values need not show.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;

// Bug: no barrier between the warps' sums and the thread that adds them.
template <bool RIGHT> __device__ void dot(const float* a, const float* b, float* out, int n) {
  __shared__ float part[8];
  auto block = cg::this_thread_block();
  auto warp = cg::tiled_partition<32>(block);
  float v = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += a[i] * b[i];
  v = cg::reduce(warp, v, cg::plus<float>());
  if (warp.thread_rank() == 0) part[warp.meta_group_rank()] = v;
  if (RIGHT) block.sync();
  if (threadIdx.x == 0) {
    float s = 0;
    for (int k = 0; k < blockDim.x / 32; k++) s += part[k];
    atomicAdd(out, s);
  }
}

// Bug: a block leaves before the others of its cluster have read its shared memory.
template <bool RIGHT> __device__ void greatest(const int* x, int* out, int n) {
  __shared__ int top;
  auto cluster = cg::this_cluster();
  if (threadIdx.x == 0) top = -2147483647;
  __syncthreads();
  int rank = cluster.block_rank();
  for (int i = rank * blockDim.x + threadIdx.x; i < n; i += 4 * blockDim.x)
    atomicMax(&top, x[(blockIdx.x / 4) * n + i]);
  cluster.sync();
  if (threadIdx.x == 0) {
    int m = top;
    for (int k = 0; k < 4; k++) m = max(m, *cluster.map_shared_rank(&top, k));
    out[blockIdx.x] = m;
  }
  if (RIGHT) cluster.sync();
}

// Bug: all lanes of a warp write to the place of the first.
template <bool RIGHT> __device__ void compact(const int* x, int* out, int* count, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31, base = 0;
  bool keep = i < n && x[i] > 0;
  unsigned kept = __ballot_sync(~0u, keep);
  if (lane == 0) base = atomicAdd(count, __popc(kept));
  base = __shfl_sync(~0u, base, 0);
  if (keep) out[base + (RIGHT ? __popc(kept & ((1u << lane) - 1)) : 0)] = x[i];
}

__device__ unsigned arrived;

// Bug: no fence between a block's sum and its arrival.
template <bool RIGHT> __device__ void last(const int* x, int* part, int* out, int n) {
  __shared__ bool final;
  int s = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) s += x[i];
  s = __reduce_add_sync(~0u, s);
  if (threadIdx.x == 0) {
    part[blockIdx.x] = s;
    if (RIGHT) __threadfence();
    final = atomicAdd(&arrived, 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (final && threadIdx.x == 0) {
    int t = 0;
    for (int k = 0; k < gridDim.x; k++) t += ((volatile int*)part)[k];
    *out = t;
  }
}

// Bug: one lane stays away from shuffles that name all.
template <bool RIGHT> __device__ void prefix(const int* x, int* out) {
  int v = x[threadIdx.x], lane = threadIdx.x & 31;
  if (RIGHT || lane >= 1)
    for (int d = 1; d < 32; d *= 2) {
      int o = __shfl_up_sync(~0u, v, d);
      if (lane >= d) v += o;
    }
  out[threadIdx.x] = v;
}

#define BOTH(NAME, BODY, ATTRIBUTES, PARAMETERS, ...) \
  extern "C" __global__ void ATTRIBUTES NAME PARAMETERS { BODY<true>(__VA_ARGS__); } \
  extern "C" __global__ void ATTRIBUTES NAME##_wrong PARAMETERS { BODY<false>(__VA_ARGS__); }

BOTH(group_dot, dot, , (const float* a, const float* b, float* out, int n), a, b, out, n)
BOTH(cluster_max, greatest, __cluster_dims__(4, 1, 1), (const int* x, int* out, int n), x, out, n)
BOTH(compaction, compact, , (const int* x, int* out, int* count, int n), x, out, count, n)
BOTH(last_adds, last, , (const int* x, int* part, int* out, int n), x, part, out, n)
BOTH(warp_prefix, prefix, , (const int* x, int* out), x, out)
