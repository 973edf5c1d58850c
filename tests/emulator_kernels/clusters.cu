// Thread block clusters: distributed shared memory, cluster barriers, remote barrier objects.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ unsigned rank_in_cluster() {
  unsigned r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
__device__ unsigned cluster_blocks() {
  unsigned n;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
  return n;
}
__device__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
template <typename T> __device__ T *mapped(T *p, unsigned rank) {
  T *q;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(q) : "l"(p), "r"(rank));
  return q;
}
__device__ unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ unsigned mapped_address(unsigned a, unsigned rank) {
  unsigned b;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(b) : "r"(a), "r"(rank));
  return b;
}
__device__ void wait_for(unsigned bar, unsigned parity) {
  asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, "
               "[%0], %1; @p bra D; bra W; D: }" ::"r"(bar), "r"(parity) : "memory");
}

// A histogram spread over the shared memory of all blocks of a cluster.
extern "C" __global__ void cluster_histogram(const int *in, int n, int bins, int *out) {
  extern __shared__ int part[];
  int per = bins / cluster_blocks();
  for (int i = threadIdx.x; i < per; i += blockDim.x) part[i] = 0;
  cluster_sync();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(mapped(part, in[i] / per) + in[i] % per, 1);
  cluster_sync();
  for (int i = threadIdx.x; i < per; i += blockDim.x)
    atomicAdd(out + rank_in_cluster() * per + i, part[i]);
}

// The sum of one row by all blocks of a cluster; every block writes it.
template <typename T, typename S> __device__ void row_sum(const T *in, S *out, int n) {
  __shared__ S own[32], whole;
  S sum = 0;
  unsigned blocks = cluster_blocks(), row = blockIdx.x / blocks;
  for (int i = rank_in_cluster() * blockDim.x + threadIdx.x; i < n; i += blocks * blockDim.x)
    sum += (S)in[row * n + i];
  for (int k = 16; k; k /= 2) sum += __shfl_down_sync(~0u, sum, k);
  if (threadIdx.x % 32 == 0) own[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    whole = 0;
    for (int k = 0; k < blockDim.x / 32; k++) whole += own[k];
  }
  cluster_sync();
  S total = 0;
  if (threadIdx.x == 0) {
    for (unsigned r = 0; r < blocks; r++) total += *mapped(&whole, r);
    out[blockIdx.x] = total;
  }
  cluster_sync();
}
extern "C" __global__ void cluster_sum_f32(const float *in, float *out, int n) {
  row_sum<float, float>(in, out, n);
}
extern "C" __global__ void cluster_sum_f64(const double *in, double *out, int n) {
  row_sum<double, double>(in, out, n);
}
extern "C" __global__ void cluster_sum_i32(const int *in, int *out, int n) {
  row_sum<int, int>(in, out, n);
}
extern "C" __global__ void cluster_sum_f16(const __half *in, float *out, int n) {
  row_sum<__half, float>(in, out, n);
}
extern "C" __global__ void cluster_sum_bf16(const __nv_bfloat16 *in, float *out, int n) {
  row_sum<__nv_bfloat16, float>(in, out, n);
}

// C = A B by pairs of blocks along the columns: each loads half of the tile of A, and both use all.
template <typename T> __device__ void paired(const T *a, const T *b, float *c, int n, int k) {
  __shared__ float left[16][8], right[16][16];
  unsigned rank = rank_in_cluster();
  int x = threadIdx.x % 16, y = threadIdx.x / 16, column = blockIdx.x * 16 + x;
  int row = blockIdx.y * 16 + y;
  float sum = 0;
  for (int s = 0; s < k; s += 16) {
    if (x < 8) left[y][x] = (float)a[row * k + s + rank * 8 + x];
    right[y][x] = (float)b[(s + y) * n + column];
    cluster_sync();
    for (unsigned r = 0; r < 2; r++) {
      float *half = mapped(&left[y][0], r);
      for (int j = 0; j < 8; j++) sum += half[j] * right[r * 8 + j][x];
    }
    cluster_sync();
  }
  c[row * n + column] = sum;
}
extern "C" __global__ void __cluster_dims__(2, 1, 1)
pair_matmul_f32(const float *a, const float *b, float *c, int n, int k) { paired(a, b, c, n, k); }
extern "C" __global__ void __cluster_dims__(2, 1, 1)
pair_matmul_f16(const __half *a, const __half *b, float *c, int n, int k) { paired(a, b, c, n, k); }
extern "C" __global__ void __cluster_dims__(2, 1, 1)
pair_matmul_bf16(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *c, int n, int k) {
  paired(a, b, c, n, k);
}

// One block sends tiles to all of the cluster at once; each block tells it when the tile is used.
extern "C" __global__ void __cluster_dims__(4, 1, 1)
multicast_scale(const float *in, float *out, int tiles) {
  __shared__ alignas(128) float tile[128];
  __shared__ alignas(8) unsigned long long full, empty;
  unsigned rank = rank_in_cluster(), f = shared_address(&full), e = shared_address(&empty);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(f));
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 4;" ::"r"(e));
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  cluster_sync();
  const float *from = in + blockIdx.x / 4 * tiles * 128;
#pragma unroll 1
  for (int t = 0; t < tiles; t++) {
    if (threadIdx.x == 0)
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 512;" ::"r"(f));
    if (rank == 0 && threadIdx.x == 0) {
      if (t) wait_for(e, (t - 1) & 1);
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                   ".multicast::cluster [%0], [%1], 512, [%2], %3;" ::"r"(shared_address(tile)),
                   "l"(from + t * 128), "r"(f), "h"((short)15) : "memory");
    }
    wait_for(f, t & 1);
    out[(blockIdx.x * tiles + t) * 128 + threadIdx.x] = tile[threadIdx.x] * (rank + 1);
    __syncthreads();
    if (threadIdx.x == 0)
      asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                       mapped_address(e, 0)) : "memory");
  }
  cluster_sync();
}

// Each block sends a value of each thread to the next block of its cluster: stores that arrive later.
extern "C" __global__ void __cluster_dims__(4, 1, 1) ring(const int *in, int *out) {
  __shared__ alignas(16) int got[64];
  __shared__ int sum;
  __shared__ alignas(16) int copied[64];
  __shared__ alignas(8) unsigned long long full;
  unsigned next = (rank_in_cluster() + 1) % 4, f = shared_address(&full);
  if (threadIdx.x == 0) {
    sum = 0;
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(f));
    asm volatile("fence.mbarrier_init.release.cluster;");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 512;" ::"r"(f));
  }
  cluster_sync();
  int i = blockIdx.x * 64 + threadIdx.x;
  unsigned there = mapped_address(f, next);
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::
                   "r"(mapped_address(shared_address(got + threadIdx.x), next)), "r"(in[i]),
               "r"(there) : "memory");
  asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 "
               "[%0], %1, [%2];" ::"r"(mapped_address(shared_address(&sum), next)), "r"(in[i]),
               "r"(there) : "memory");
  wait_for(f, 0);
  out[2 * i] = got[threadIdx.x];
  out[2 * i + 1] = sum;
  // and a copy from block to block
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 256;" ::"r"(f));
    asm volatile("fence.proxy.async;");
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], "
                 "[%1], 256, [%2];" ::"r"(mapped_address(shared_address(copied), next)),
                 "r"(shared_address(got)), "r"(there) : "memory");
  }
  wait_for(f, 1);
  out[gridDim.x * 128 + i] = copied[threadIdx.x];
  cluster_sync();
}

// What each block knows of its cluster, in three dimensions.
extern "C" __global__ void __cluster_dims__(2, 2, 1) places(unsigned *out) {
  unsigned v[12];
  asm volatile("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(v[0]));
  asm volatile("mov.u32 %0, %%cluster_ctaid.y;" : "=r"(v[1]));
  asm volatile("mov.u32 %0, %%cluster_ctaid.z;" : "=r"(v[2]));
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(v[3]));
  asm volatile("mov.u32 %0, %%clusterid.y;" : "=r"(v[4]));
  asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(v[5]));
  asm volatile("mov.u32 %0, %%nclusterid.y;" : "=r"(v[6]));
  asm volatile("mov.u32 %0, %%cluster_nctaid.y;" : "=r"(v[7]));
  asm volatile("{ .reg .pred p; mov.pred p, %%is_explicit_cluster; selp.u32 %0, 1, 0, p; }"
               : "=r"(v[8]));
  __shared__ unsigned mine;
  v[9] = rank_in_cluster();
  unsigned *there = mapped(&mine, v[9] ^ 3);
  asm volatile("getctarank.u64 %0, %1;" : "=r"(v[10]) : "l"(there));
  v[11] = __isShared(there) + 2 * __isClusterShared(there) + 4 * __isShared(&mine);
  unsigned block = blockIdx.x + gridDim.x * blockIdx.y;
  for (int i = 0; i < 12; i++) out[block * 12 + i] = v[i];
}

// Blocks hand a value on through global memory: by the cluster's barrier, then by a barrier object.
extern "C" __global__ void __cluster_dims__(2, 1, 1) handed_on(const int *in, int *mid, int *out) {
  __shared__ alignas(8) unsigned long long ready;
  unsigned rank = rank_in_cluster(), r = shared_address(&ready);
  int i = blockIdx.x * 32 + threadIdx.x, other = (blockIdx.x ^ 1) * 32 + threadIdx.x;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 32;" ::"r"(r));
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  mid[i] = in[i] + 1;
  cluster_sync();
  int got = mid[other];
  cluster_sync();
  if (rank == 0) {
    mid[i] = got * 2;
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                     mapped_address(r, 1)) : "memory");
  } else {
    wait_for(r, 0);
    got = mid[other];
  }
  out[i] = got;
  cluster_sync();
}
