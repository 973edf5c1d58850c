// Debugging output that was forgotten, and the same kernel without it.
#include <cstdio>

extern "C" __global__ void __launch_bounds__(256)
printf_left_in_kernel(const float* __restrict__ x, float* __restrict__ y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float value = x[i] * x[i];
  if (i == 0) printf("first value %f\n", value);
  y[i] = value;
}

extern "C" __global__ void __launch_bounds__(256)
printf_removed_kernel(const float* __restrict__ x, float* __restrict__ y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  y[i] = x[i] * x[i];
}

extern "C" __global__ void __launch_bounds__(256)
printf_allowed_kernel(const float* __restrict__ x, float* __restrict__ y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  // gpuemu: allow debug-call reports overflow once, on purpose
  if (x[i] > 1e30f) printf("overflow at %d\n", i);
  y[i] = x[i] * x[i];
}
