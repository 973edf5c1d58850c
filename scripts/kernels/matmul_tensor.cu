// C = A B for 16 x 16 tiles of half on the tensor cores, one warp per tile.
#include <mma.h>

extern "C" __global__ void __launch_bounds__(32)
matmul_tensor_kernel(const half* __restrict__ a, const half* __restrict__ b, float* __restrict__ c,
                     int n, int k) {
  using namespace nvcuda;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  wmma::fill_fragment(sum, 0.0f);
  for (int start = 0; start < k; start += 16) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> right;
    wmma::load_matrix_sync(left, a + blockIdx.y * 16 * k + start, k);
    wmma::load_matrix_sync(right, b + start * n + blockIdx.x * 16, n);
    wmma::mma_sync(sum, left, right, sum);
  }
  wmma::store_matrix_sync(c + blockIdx.y * 16 * n + blockIdx.x * 16, sum, n, wmma::mem_row_major);
}
