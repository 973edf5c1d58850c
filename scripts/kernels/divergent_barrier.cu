// Barriers in divergent code: wrong in the first kernel, right in the others.

extern "C" __global__ void __launch_bounds__(256)
divergent_barrier_kernel(const float* __restrict__ x, float* __restrict__ y) {
  __shared__ float half[256];
  half[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x < 100) {
    half[threadIdx.x] += 1.0f;
    __syncthreads();
    half[threadIdx.x] += half[threadIdx.x + 1];
  }
  __syncthreads();
  y[threadIdx.x] = half[255 - threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(256)
guarded_work_kernel(const float* __restrict__ x, float* __restrict__ y) {
  __shared__ float half[256];
  half[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x < 100) half[threadIdx.x] += 1.0f;
  __syncthreads();
  y[threadIdx.x] = half[255 - threadIdx.x];
}

// Every thread of a block takes the same side: the condition depends on the block alone.
extern "C" __global__ void __launch_bounds__(256)
uniform_barrier_kernel(const float* __restrict__ x, float* __restrict__ y, int flags) {
  __shared__ float half[256];
  half[threadIdx.x] = x[threadIdx.x];
  if (blockIdx.x < flags) {
    __syncthreads();
    half[threadIdx.x] += 2.0f;
  }
  __syncthreads();
  y[threadIdx.x] = half[255 - threadIdx.x];
}
