// Barrier objects (mbarrier), copies that arrive at them, and bulk copies; compiled for sm_90.
#include <cuda/barrier>
#include <cuda/ptx>

namespace ptx = cuda::ptx;
using barrier = cuda::barrier<cuda::thread_scope_block>;

extern "C" {
__global__ void rotate(const float* x, float* out) {
  __shared__ barrier ready;
  __shared__ float tile[128];
  if (threadIdx.x == 0) init(&ready, blockDim.x);
  __syncthreads();
  for (int round = 0; round < 3; round++) {
    tile[threadIdx.x] = round ? out[threadIdx.x] : x[threadIdx.x];
    ready.wait(ready.arrive());
    out[threadIdx.x] = tile[(threadIdx.x + 1) % 128];
    ready.arrive_and_wait();
  }
}
__global__ void copied(const float* x, float* out) {
  __shared__ barrier ready;
  __shared__ float tile[128];
  if (threadIdx.x == 0) init(&ready, blockDim.x);
  __syncthreads();
  cuda::memcpy_async(tile + threadIdx.x, x + threadIdx.x, sizeof(float), ready);
  ready.arrive_and_wait();
  out[threadIdx.x] = tile[127 - threadIdx.x];
}
__global__ void bulk_double(float* x) {
  __shared__ alignas(128) float tile[256];
  __shared__ uint64_t ready;
  float* mine = x + 256 * blockIdx.x;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&ready, 1);
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &ready, 1024);
    ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, tile, mine, 1024, &ready);
  }
  while (!ptx::mbarrier_try_wait_parity(&ready, 0)) {
  }
  tile[threadIdx.x] *= 2;
  ptx::fence_proxy_async(ptx::space_shared);
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, mine, tile, 1024);
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
  }
}
}
