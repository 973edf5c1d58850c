// Host functions as they are shipped: each allocates, copies and launches. `mode` is the mistake.
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#include "blur.cuh"

enum Mode { RIGHT, BOUNDS, GRID, RACE };

__global__ void blur(const float* x, float* y, int n, int mode) {
  __shared__ float near[66];
  int i = blockIdx.x * blockDim.x + threadIdx.x, t = threadIdx.x + 1;
  near[t] = i < n || mode == BOUNDS ? x[i] : 0;  // line: bounds
  if (threadIdx.x == 0) near[0] = x[max(i - 1, 0)];
  if (threadIdx.x == 63 && i < n) near[65] = x[min(i + 1, n - 1)];
  if (mode != RACE) __syncthreads();
  if (i < n) y[i] = (near[t - 1] + near[t] + near[i + 1 < n ? t + 1 : t]) / WEIGHT;  // line: race
}
static void any(const float* x, float* y, int n, Mode mode) {
  float *d_x, *d_y;
  size_t bytes = n * sizeof(float);
  cudaMalloc(&d_x, bytes);
  cudaMalloc(&d_y, bytes);
  cudaMemcpy(d_x, x, bytes, cudaMemcpyHostToDevice);
  int blocks = (n + 63) / 64 - (mode == GRID);
  if (blocks) blur<<<blocks, 64>>>(d_x, d_y, n, mode);
  cudaMemcpy(y, d_y, bytes, cudaMemcpyDeviceToHost);  // line: grid
  cudaFree(d_x);
  cudaFree(d_y);
}
extern "C" {
void right(const float* x, float* y, int n) { any(x, y, n, RIGHT); }
void bounds(const float* x, float* y, int n) { any(x, y, n, BOUNDS); }
void grid(const float* x, float* y, int n) { any(x, y, n, GRID); }
void race(const float* x, float* y, int n) { any(x, y, n, RACE); }
void dies(const float* x, float* y, int n) { abort(); }
void hangs(const float* x, float* y, int n) { for (volatile int i = 0;; i = i) {} }
void leaves(const float* x, float* y, int n) { exit(0); }
void graph(const float* x, float* y, int n) {
  cudaGraph_t made;
  any(x, y, n, RIGHT);
  cudaGraphCreate(&made, 0);  // line: graph
}
void in_place(float* x, long count) { any(x, x, count, RIGHT); }
}
void hidden(const float* x, float* y, int n) { any(x, y, n, RIGHT); }
