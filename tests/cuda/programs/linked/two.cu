#include "../common.h"

__device__ float bias = 0;
__constant__ float table[4];
static __device__ int calls = 41;
__device__ float shared_by_both(float x);

__device__ float twice(float x) {
  if (x > 1e30f) { calls++; printf("two\n"); }
  return 2 * shared_by_both(x);
}
void set(float b, const float* t) {
  CHECK(cudaMemcpyToSymbol(bias, &b, sizeof b));
  CHECK(cudaMemcpyToSymbol(table, t, 4 * sizeof(float)));
}
