// An outer product of 12 x 12 values per thread: many registers, no launch bounds.

constexpr int kSide = 12;

extern "C" __global__ void many_registers_kernel(const float* __restrict__ a,
                                                 const float* __restrict__ b,
                                                 float* __restrict__ c, int k) {
  float sum[kSide][kSide] = {};
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  for (int step = 0; step < k; ++step) {
    float left[kSide], right[kSide];
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
      left[i] = a[(step * kSide + i) * gridDim.x + t];
      right[i] = b[(step * kSide + i) * gridDim.x + t];
    }
#pragma unroll
    for (int i = 0; i < kSide; ++i)
#pragma unroll
      for (int j = 0; j < kSide; ++j) sum[i][j] += left[i] * right[j];
  }
#pragma unroll
  for (int i = 0; i < kSide; ++i)
#pragma unroll
    for (int j = 0; j < kSide; ++j) c[(i * kSide + j) * gridDim.x + t] = sum[i][j];
}
