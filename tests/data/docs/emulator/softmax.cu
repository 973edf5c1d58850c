// One block per row; a reference is in softmax_ref.py.
__device__ float reduce(float v, float* s, bool maximum) {
  for (int k = 16; k > 0; k /= 2) {
    float other = __shfl_down_sync(0xffffffff, v, k);
    v = maximum ? fmaxf(v, other) : v + other;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;
  __syncthreads();
  v = s[0];
  for (int i = 1; i < blockDim.x / 32; i++) v = maximum ? fmaxf(v, s[i]) : v + s[i];
  return v;
}

extern "C" __global__ void softmax_rows(const float* x, float* out, int n) {
  __shared__ float s[32];
  x += (size_t)blockIdx.x * n;
  out += (size_t)blockIdx.x * n;
  float top = -INFINITY, total = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) top = fmaxf(top, x[i]);
  top = reduce(top, s, true);
  for (int i = threadIdx.x; i < n; i += blockDim.x) total += expf(x[i] - top);
  total = reduce(total, s, false);
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = expf(x[i] - top) / total;
}
