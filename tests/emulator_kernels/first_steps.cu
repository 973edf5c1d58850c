extern "C" __global__ void vecadd(const float* x, const float* y, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] + y[i];
}
extern "C" __global__ void reduce(const float* x, float* out, int n) {
  __shared__ float s[256];
  int t = threadIdx.x;
  float a = 0;
  for (int i = t; i < n; i += 256) a += x[blockIdx.x*n+i];
  s[t] = a;
  __syncthreads();
  for (int k = 128; k > 0; k >>= 1) { if (t < k) s[t] += s[t+k]; __syncthreads(); }
  if (t == 0) out[blockIdx.x] = s[0];
}
