// Sum of a vector: grid-stride loads, warp shuffles, one atomic per block.

constexpr unsigned kAllLanes = 0xffffffffu;

extern "C" __global__ void __launch_bounds__(512)
reduce_shuffle_kernel(const float4* __restrict__ x, float* __restrict__ total, int quads) {
  __shared__ float partial[16];
  float sum = 0.0f;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < quads; i += gridDim.x * blockDim.x) {
    const float4 v = x[i];
    sum += (v.x + v.y) + (v.z + v.w);
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(kAllLanes, sum, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0.0f;
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) sum += __shfl_down_sync(kAllLanes, sum, offset);
    if (threadIdx.x == 0) atomicAdd(total, sum);
  }
}
