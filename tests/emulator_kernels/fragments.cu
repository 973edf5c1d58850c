// Matrix products by wmma in all of its element types, and memory from alloca.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda::wmma;

template <typename T, typename S, int M, int N, int K, typename A, typename B, typename Source>
__device__ void product(const Source* a, const Source* b, S* c, int lda, int ldb) {
  fragment<matrix_a, M, N, K, T, A> left;
  fragment<matrix_b, M, N, K, T, B> right;
  fragment<accumulator, M, N, K, S> sum;
  load_matrix_sync(sum, c, N, mem_row_major);
  load_matrix_sync(left, a, lda);
  load_matrix_sync(right, b, ldb);
  mma_sync(sum, left, right, sum);
  store_matrix_sync(c, sum, N, mem_row_major);
}

extern "C" {
__global__ void wmma_f16_shared(const half* a, const half* b, float* c) {
  __shared__ half tile[256];
  for (int i = threadIdx.x; i < 256; i += 32) tile[i] = a[i];
  __syncthreads();
  product<half, float, 16, 16, 16, row_major, col_major>(tile, b, c, 16, 16);
}
__global__ void wmma_f16_half(const half* a, const half* b, half* c) {
  product<half, half, 16, 16, 16, col_major, row_major>(a, b, c, 16, 16);
}
__global__ void wmma_bf16(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c) {
  product<__nv_bfloat16, float, 32, 8, 16, row_major, row_major>(a, b, c, 16, 8);
}
__global__ void wmma_s8(const signed char* a, const signed char* b, int* c) {
  product<signed char, int, 8, 32, 16, row_major, col_major>(a, b, c, 16, 16);
}
__global__ void wmma_tf32(const float* a, const float* b, float* c) {
  product<precision::tf32, float, 16, 16, 8, row_major, row_major>(a, b, c, 8, 16);
}
__global__ void wmma_f64(const double* a, const double* b, double* c) {
  product<double, double, 8, 8, 4, row_major, col_major>(a, b, c, 4, 4);
}
__global__ void stack_sum(int* out, int n) {
  int* part = (int*)alloca(n * sizeof(int));
  for (int i = 0; i < n; i++) part[i] = i * (int)threadIdx.x;
  int sum = 0;
  for (int i = 0; i < n; i++) sum += part[n - 1 - i];
  out[threadIdx.x] = sum;
}
}
