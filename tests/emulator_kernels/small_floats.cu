// Eight-bit floats (sm_89).
#include <cuda_fp8.h>

extern "C" __global__ void to_e4m3(const float* x, __nv_fp8_e4m3* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = __nv_fp8_e4m3(x[i]);
}
extern "C" __global__ void from_e5m2(const __nv_fp8_e5m2* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = float(x[i]);
}
