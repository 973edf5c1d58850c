// Layer normalisation over the last dimension: one block per row, two passes, float4 loads.

constexpr int kThreads = 128;

__device__ __forceinline__ float block_sum(float value, float* shared) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    __syncthreads();
  }
  const float total = shared[0];
  __syncthreads();
  return total;
}

extern "C" __global__ void __launch_bounds__(kThreads)
layernorm_kernel(const float4* __restrict__ x, const float4* __restrict__ gamma,
                 const float4* __restrict__ beta, float4* __restrict__ y, int quads, float eps) {
  __shared__ float shared[kThreads];
  const float4* row = x + static_cast<size_t>(blockIdx.x) * quads;
  const float inverse = __fdividef(1.0f, 4.0f * quads);

  float sum = 0.0f;
  for (int i = threadIdx.x; i < quads; i += kThreads) {
    const float4 v = row[i];
    sum += v.x + v.y + v.z + v.w;
  }
  const float mean = block_sum(sum, shared) * inverse;

  float squares = 0.0f;
  for (int i = threadIdx.x; i < quads; i += kThreads) {
    const float4 v = row[i];
    const float a = v.x - mean, b = v.y - mean, c = v.z - mean, d = v.w - mean;
    squares += a * a + b * b + c * c + d * d;
  }
  const float rstd = rsqrtf(block_sum(squares, shared) * inverse + eps);

  float4* out = y + static_cast<size_t>(blockIdx.x) * quads;
  for (int i = threadIdx.x; i < quads; i += kThreads) {
    const float4 v = row[i], g = gamma[i], b = beta[i];
    out[i] = make_float4((v.x - mean) * rstd * g.x + b.x, (v.y - mean) * rstd * g.y + b.y,
                         (v.z - mean) * rstd * g.z + b.z, (v.w - mean) * rstd * g.w + b.w);
  }
}
