// Histogram of bytes: private counts in shared memory, one global atomic per bin and block.

constexpr int kBins = 256;

extern "C" __global__ void __launch_bounds__(256)
histogram_shared_kernel(const unsigned char* __restrict__ x, unsigned* __restrict__ counts, int n) {
  __shared__ unsigned mine[kBins];
  mine[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&mine[x[i]], 1u);
  __syncthreads();
  atomicAdd(&counts[threadIdx.x], mine[threadIdx.x]);
}

// The same with a global atomic per element: what the rule atomics-in-loop is about.
extern "C" __global__ void __launch_bounds__(256)
histogram_global_kernel(const unsigned char* __restrict__ x, unsigned* __restrict__ counts, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&counts[x[i]], 1u);
}
