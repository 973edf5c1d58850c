// Row-wise softmax of a float32 matrix: one block per row, online maximum and sum.

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ float warp_max(float value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  return value;
}

__device__ __forceinline__ float warp_sum(float value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}

extern "C" __global__ void __launch_bounds__(256)
softmax_kernel(const float* __restrict__ x, float* __restrict__ y, int columns) {
  __shared__ float partial[kWarp];
  const float* row = x + static_cast<size_t>(blockIdx.x) * columns;
  float* out = y + static_cast<size_t>(blockIdx.x) * columns;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int warps = blockDim.x / kWarp;

  float largest = -INFINITY;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) largest = fmaxf(largest, row[i]);
  largest = warp_max(largest);
  if (lane == 0) partial[warp] = largest;
  __syncthreads();
  largest = warp_max(lane < warps ? partial[lane] : -INFINITY);
  __syncthreads();

  float sum = 0.0f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += __expf(row[i] - largest);
  sum = warp_sum(sum);
  if (lane == 0) partial[warp] = sum;
  __syncthreads();
  sum = warp_sum(lane < warps ? partial[lane] : 0.0f);

  const float scale = __fdividef(1.0f, sum);
  for (int i = threadIdx.x; i < columns; i += blockDim.x) out[i] = __expf(row[i] - largest) * scale;
}
