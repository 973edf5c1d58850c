// Dynamic shared memory, whose size is known only at launch, beside a static array.

extern "C" __global__ void __launch_bounds__(256)
dynamic_shared_kernel(const float* __restrict__ x, float* __restrict__ y, int columns) {
  extern __shared__ float row[];
  __shared__ float total[32];
  const size_t base = static_cast<size_t>(blockIdx.x) * columns;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    row[i] = x[base + i];
    sum += row[i];
  }
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 == 0) total[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0.0f;
  for (int w = 0; w < blockDim.x / 32; ++w) sum += total[w];
  for (int i = threadIdx.x; i < columns; i += blockDim.x) y[base + i] = row[columns - 1 - i] - sum;
}
