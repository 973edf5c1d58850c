// Literals without "f": the whole expression is computed in double.

extern "C" __global__ void __launch_bounds__(256)
accidental_f64_kernel(const float* __restrict__ x, float* __restrict__ y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * 0.3 + 1.7;
}

extern "C" __global__ void __launch_bounds__(256)
meant_f32_kernel(const float* __restrict__ x, float* __restrict__ y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * 0.3f + 1.7f;
}

// Double data: f64 arithmetic is what the kernel is for.
extern "C" __global__ void __launch_bounds__(256)
real_f64_kernel(const float* __restrict__ x, double* __restrict__ y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = y[i] * 0.3 + x[i];
}
