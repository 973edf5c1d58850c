// Gelu (tanh form): four elements per thread, once as one float4, once as four scalars.

__device__ __forceinline__ float gelu(float x) {
  const float inner = 0.7978845608f * (x + 0.044715f * x * x * x);
  return 0.5f * x * (1.0f + tanhf(inner));
}

extern "C" __global__ void __launch_bounds__(256)
gelu_vector_kernel(const float4* __restrict__ x, float4* __restrict__ y, int quads) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= quads) return;
  const float4 v = x[i];
  y[i] = make_float4(gelu(v.x), gelu(v.y), gelu(v.z), gelu(v.w));
}

extern "C" __global__ void __launch_bounds__(256)
gelu_scalar_kernel(const float* __restrict__ x, float* __restrict__ y, int quads) {
  const int i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (i >= 4 * quads) return;
  const float a = x[i], b = x[i + 1], c = x[i + 2], d = x[i + 3];
  y[i] = gelu(a);
  y[i + 1] = gelu(b);
  y[i + 2] = gelu(c);
  y[i + 3] = gelu(d);
}
