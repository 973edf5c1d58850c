// A polynomial filter whose launch bounds leave 32 registers for 48 live values: it must spill.

constexpr int kTaps = 48;

extern "C" __global__ void __launch_bounds__(1024, 2)
forced_spills_kernel(const float* __restrict__ x, float* __restrict__ y, int rounds, int stride) {
  float tap[kTaps];
  const int first = blockIdx.x * blockDim.x + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kTaps; ++i) tap[i] = x[first + i * stride];
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int i = 0; i < kTaps; ++i)
      tap[i] = tap[i] * tap[(i * 7 + 1) % kTaps] + tap[(i + 5) % kTaps];
  }
#pragma unroll
  for (int i = 0; i < kTaps; ++i) y[first + i * stride] = tap[i];
}

// The same filter with bounds that it fits in.
extern "C" __global__ void __launch_bounds__(256)
relaxed_spills_kernel(const float* __restrict__ x, float* __restrict__ y, int rounds, int stride) {
  float tap[kTaps];
  const int first = blockIdx.x * blockDim.x + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kTaps; ++i) tap[i] = x[first + i * stride];
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int i = 0; i < kTaps; ++i)
      tap[i] = tap[i] * tap[(i * 7 + 1) % kTaps] + tap[(i + 5) % kTaps];
  }
#pragma unroll
  for (int i = 0; i < kTaps; ++i) y[first + i * stride] = tap[i];
}
