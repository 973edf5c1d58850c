// Kernels that work element by element: indexing, masks, types, math functions, device functions.
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cstdio>

extern "C" __global__ void vecadd(const float* x, const float* y, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] + y[i];
}

extern "C" __global__ void saxpy_strided(float a, const float* x, float* y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    y[i] = a * x[i] + y[i];
}

template <typename T> __device__ T gelu(T v) {
  float x = float(v);
  return T(0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))));
}
extern "C" __global__ void gelu_f32(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = gelu(x[i]);
}
extern "C" __global__ void gelu_f16(const __half* x, __half* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = gelu(x[i]);
}
extern "C" __global__ void gelu_bf16(const __nv_bfloat16* x, __nv_bfloat16* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = gelu(x[i]);
}

extern "C" __global__ void half2_axpy(const __half2* x, const __half2* y, __half2* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = __hfma2(x[i], __float2half2_rn(1.5f), y[i]);
}
extern "C" __global__ void bfloat2_scale(const __nv_bfloat162* x, __nv_bfloat162* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = __hmul2(x[i], x[i]);
}

extern "C" __global__ void double_poly(const double* x, double* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = fma(x[i], fma(x[i], 0.25, -1.5), sqrt(x[i]) / 3.0);
}

extern "C" __global__ void integer_mix(const int* x, const unsigned* y, long long* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  long long a = (long long)x[i] * (int)y[i];
  a += x[i] / (int)(y[i] % 7 + 1) - x[i] % 5;
  a ^= __popc(y[i]) + __clz(x[i]) + __ffs(x[i]) + (long long)__brev(y[i]);
  a += __mulhi(x[i], x[i]) + (long long)__umulhi(y[i], 12345u) + (a >> 3);
  out[i] = a;
}

__device__ __noinline__ float horner(const float* c, int n, float x) {
  float a = 0;
  for (int k = n - 1; k >= 0; --k) a = a * x + c[k];
  return a;
}
__constant__ float weights[4] = {1.0f, -0.5f, 0.25f, 2.0f};
extern "C" __global__ void polynomial_call(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = horner(weights, 4, x[i]);
}

extern "C" __global__ void transcendental(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = expf(-x[i]) + logf(x[i] + 3.0f) + sinf(x[i]) * cosf(x[i]) + powf(x[i] + 3.0f, 1.3f)
      + erff(x[i]) + rsqrtf(x[i] + 4.0f);
}

extern "C" __global__ void int8_quantize(const float* x, signed char* out, float scale, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = (signed char)max(-128, min(127, __float2int_rn(x[i] / scale)));
}

extern "C" __global__ void switch_table(const int* x, int* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int v = x[i], r;
  switch (v & 7) {
    case 0: r = v * 3; break;
    case 1: r = v - 17; break;
    case 2: r = v ^ 0x55; break;
    case 3: r = -v; break;
    case 4: r = v << 2; break;
    case 5: r = v / 3; break;
    case 6: r = v % 11; break;
    default: r = 42;
  }
  out[i] = r;
}

extern "C" __global__ void local_array(const int* x, int* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int a[16];
  for (int k = 0; k < 16; k++) a[k] = x[i * 16 + k];
  for (int k = 1; k < 16; k++)
    for (int j = k; j > 0 && a[j - 1] > a[j]; j--) { int t = a[j]; a[j] = a[j - 1]; a[j - 1] = t; }
  for (int k = 0; k < 16; k++) out[i * 16 + k] = a[(k * x[i * 16] & 0) + k];
}

struct Pair { float a; int b; };
extern "C" __global__ void by_value(Pair p, const float4* x, float4* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float4 v = x[i];
  v.x *= p.a; v.y += p.b; v.z -= p.a; v.w = p.b;
  out[i] = v;
}

extern "C" __global__ void wide_product(const unsigned long long* x, unsigned long long* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned __int128 p = (unsigned __int128)x[i] * x[i] + x[i];
  out[2 * i] = (unsigned long long)p;
  out[2 * i + 1] = (unsigned long long)(p >> 64);
}

extern "C" __global__ void hello(int n) {
  if (threadIdx.x < n) printf("thread %d says %s %5.2f %x\n", threadIdx.x, "hello", threadIdx.x * 0.5, 255);
}
