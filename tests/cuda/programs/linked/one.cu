// Device code linked from two files: nvcc -rdc=true one.cu two.cu
#include "../common.h"

extern __device__ float bias;
extern __constant__ float table[4];
__device__ float twice(float x);
static __device__ int calls = 0;
__device__ float shared_by_both(float x) { return x + 1; }

__global__ void apply(const float* x, float* y, int n) {
  int i = threadIdx.x;
  if (i == 0) printf("one\n");
  if (i < n) y[i] = twice(x[i]) + bias + table[i % 4];  // line: linked
  if (i == 0) calls++;
}
void set(float b, const float* t);
int main(int argc, char** argv) {
  bool bug = argc > 1;
  auto x = numbers(20);
  float *d_x = upload(x), *d_y, t[4] = {1, 2, 3, 4};
  CHECK(cudaMalloc(&d_y, 20 * sizeof(float)));
  set(5, t);
  apply<<<1, 32>>>(d_x, d_y, bug ? 21 : 20);
  int n;
  CHECK(cudaMemcpyFromSymbol(&n, calls, sizeof n));
  auto y = download(d_y, 20);
  for (int i = 0; i < 20; i++) if (y[i] != 2 * (x[i] + 1) + 5 + t[i % 4]) { puts("FAILED"); return 1; }
  puts(n == 1 ? "PASSED" : "FAILED");
  return n != 1;
}
