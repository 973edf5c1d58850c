#include "twice.h"
__global__ void scale(const float* x, float* y, int n, bool bug) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n + bug) y[i] = x[i] * FACTOR;  // line: extension
}
extern "C" void twice(const float* x, float* y, int n, bool bug) { scale<<<(n + 63) / 64, 64>>>(x, y, n, bug); }
