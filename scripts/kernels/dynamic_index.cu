// A local array that is indexed at run time lives in local memory; unrolled, in registers.

constexpr int kValues = 64;

extern "C" __global__ void __launch_bounds__(128)
dynamic_index_kernel(const float* __restrict__ x, const int* __restrict__ index,
                     float* __restrict__ y, int steps) {
  float table[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) table[i] = x[i * blockDim.x + threadIdx.x];
  for (int step = 0; step < steps; ++step) {
    const int at = index[step] & (kValues - 1);
    table[at] = table[at] * 0.5f + table[(at + step) & (kValues - 1)];
  }
  y[blockIdx.x * blockDim.x + threadIdx.x] = table[index[0] & (kValues - 1)];
}

extern "C" __global__ void __launch_bounds__(128)
constant_index_kernel(const float* __restrict__ x, float* __restrict__ y) {
  float table[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) table[i] = x[i * blockDim.x + threadIdx.x];
#pragma unroll
  for (int i = 1; i < 8; ++i) table[i] = table[i] * 0.5f + table[i - 1];
  y[blockIdx.x * blockDim.x + threadIdx.x] = table[7];
}
