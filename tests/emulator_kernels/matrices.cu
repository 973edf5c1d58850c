// Matrices: tiles, tensor cores, convolution, transposition, normalisation, attention.
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_pipeline.h>

extern "C" __global__ void transpose(const float* x, float* out, int rows, int cols) {
  __shared__ float tile[32][33];
  int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
  for (int k = 0; k < 32; k += 8) if (c < cols && r + k < rows) tile[threadIdx.y + k][threadIdx.x] = x[(r + k) * cols + c];
  __syncthreads();
  c = blockIdx.y * 32 + threadIdx.x; r = blockIdx.x * 32 + threadIdx.y;
  for (int k = 0; k < 32; k += 8) if (c < rows && r + k < cols) out[(r + k) * rows + c] = tile[threadIdx.x][threadIdx.y + k];
}

extern "C" __global__ void tiled_matmul(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float as[16][16], bs[16][16];
  int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
  float acc = 0;
  for (int t = 0; t < (k + 15) / 16; t++) {
    as[threadIdx.y][threadIdx.x] = row < m && t * 16 + threadIdx.x < k ? a[row * k + t * 16 + threadIdx.x] : 0;
    bs[threadIdx.y][threadIdx.x] = col < n && t * 16 + threadIdx.y < k ? b[(t * 16 + threadIdx.y) * n + col] : 0;
    __syncthreads();
    for (int i = 0; i < 16; i++) acc += as[threadIdx.y][i] * bs[i][threadIdx.x];
    __syncthreads();
  }
  if (row < m && col < n) c[row * n + col] = acc;
}

// 64 x 64 tile, 4 x 4 per thread, 256 threads.
extern "C" __global__ void register_matmul(const float* a, const float* b, float* c, int n) {
  __shared__ float as[8][64], bs[8][64];
  int t = threadIdx.x, tr = t / 16 * 4, tc = t % 16 * 4, row = blockIdx.y * 64, col = blockIdx.x * 64;
  float acc[4][4] = {};
  for (int k = 0; k < n; k += 8) {
    for (int i = t; i < 512; i += 256) {
      as[i % 8][i / 8] = a[(row + i / 8) * n + k + i % 8];
      bs[i / 64][i % 64] = b[(k + i / 64) * n + col + i % 64];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; i++) {
      float x[4], y[4];
      for (int j = 0; j < 4; j++) { x[j] = as[i][tr + j]; y[j] = bs[i][tc + j]; }
      for (int p = 0; p < 4; p++) for (int q = 0; q < 4; q++) acc[p][q] += x[p] * y[q];
    }
    __syncthreads();
  }
  for (int p = 0; p < 4; p++) for (int q = 0; q < 4; q++) c[(row + tr + p) * n + col + tc + q] = acc[p][q];
}

// One warp: a 16 x 8 tile of a (m x k, rows) times b (k x n, columns), by cp.async and ldmatrix.
extern "C" __global__ void mma_f16(const __half* a, const __half* b, float* c, int n, int k) {
  __shared__ __align__(16) __half as[16][16], bs[8][16];
  int lane = threadIdx.x, row = blockIdx.y * 16, col = blockIdx.x * 8;
  float d[4] = {};
  for (int t = 0; t < k; t += 16) {
    __pipeline_memcpy_async(&as[lane / 2][lane % 2 * 8], a + (row + lane / 2) * k + t + lane % 2 * 8, 16);
    if (lane < 16) __pipeline_memcpy_async(&bs[lane / 2][lane % 2 * 8], b + (col + lane / 2) * k + t + lane % 2 * 8, 16);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    unsigned ra[4], rb[2];
    unsigned pa = __cvta_generic_to_shared(&as[lane % 16][lane / 16 * 8]);
    unsigned pb = __cvta_generic_to_shared(&bs[lane % 8][lane / 8 % 2 * 8]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(ra[0]), "=r"(ra[1]), "=r"(ra[2]), "=r"(ra[3]) : "r"(pa));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(rb[0]), "=r"(rb[1]) : "r"(pb));
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
    __syncthreads();
  }
  int g = lane / 4, q = lane % 4 * 2;
  c[(row + g) * n + col + q] = d[0]; c[(row + g) * n + col + q + 1] = d[1];
  c[(row + g + 8) * n + col + q] = d[2]; c[(row + g + 8) * n + col + q + 1] = d[3];
}

extern "C" __global__ void mma_int8(const signed char* a, const signed char* b, int* c) {
  int lane = threadIdx.x, g = lane / 4, t = lane % 4, d[4] = {};
  const int* aw = (const int*)a; const int* bw = (const int*)b;  // rows of 32 bytes
  int ra[4] = {aw[g * 8 + t], aw[(g + 8) * 8 + t], aw[g * 8 + t + 4], aw[(g + 8) * 8 + t + 4]};
  int rb[2] = {bw[g * 8 + t], bw[g * 8 + t + 4]};
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
  c[g * 8 + t * 2] = d[0]; c[g * 8 + t * 2 + 1] = d[1]; c[(g + 8) * 8 + t * 2] = d[2]; c[(g + 8) * 8 + t * 2 + 1] = d[3];
}

extern "C" __global__ void mma_tf32(const float* a, const float* b, float* c) {
  int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  unsigned ra[4], rb[2]; float d[4] = {};
  float va[4] = {a[g * 8 + t], a[(g + 8) * 8 + t], a[g * 8 + t + 4], a[(g + 8) * 8 + t + 4]}, vb[2] = {b[g * 8 + t], b[g * 8 + t + 4]};
  for (int i = 0; i < 4; i++) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(ra[i]) : "f"(va[i]));
  for (int i = 0; i < 2; i++) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rb[i]) : "f"(vb[i]));
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
  c[g * 8 + t * 2] = d[0]; c[g * 8 + t * 2 + 1] = d[1]; c[(g + 8) * 8 + t * 2] = d[2]; c[(g + 8) * 8 + t * 2 + 1] = d[3];
}

extern "C" __global__ void mma_f64(const double* a, const double* b, double* c) {
  int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  double d[2] = {};
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1},{%2},{%3},{%0,%1};" : "+d"(d[0]), "+d"(d[1]) : "d"(a[g * 4 + t]), "d"(b[g * 4 + t]));
  c[g * 8 + t * 2] = d[0]; c[g * 8 + t * 2 + 1] = d[1];
}

extern "C" __global__ void dp4a_dot(const int* a, const int* b, int* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, acc = 0;
  for (int k = 0; k < n; k++) acc = __dp4a(a[i * n + k], b[k], acc);
  out[i] = acc;
}

extern "C" __global__ void convolution(const float* x, const float* w, float* out, int h, int width) {
  __shared__ float tile[18][18];
  int ox = blockIdx.x * 16, oy = blockIdx.y * 16, t = threadIdx.y * 16 + threadIdx.x;
  for (int i = t; i < 18 * 18; i += 256) {
    int y = oy + i / 18 - 1, c = ox + i % 18 - 1;
    tile[i / 18][i % 18] = y >= 0 && y < h && c >= 0 && c < width ? x[y * width + c] : 0.f;
  }
  __syncthreads();
  float acc = 0;
  for (int i = 0; i < 3; i++) for (int j = 0; j < 3; j++) acc += tile[threadIdx.y + i][threadIdx.x + j] * w[i * 3 + j];
  if (oy + threadIdx.y < h && ox + threadIdx.x < width) out[(oy + threadIdx.y) * width + ox + threadIdx.x] = acc;
}

__device__ float block_reduce(float v, float* s, bool maximum) {
  for (int o = 16; o; o >>= 1) { float u = __shfl_xor_sync(~0u, v, o); v = maximum ? fmaxf(v, u) : v + u; }
  __syncthreads();
  if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;
  __syncthreads();
  v = s[0];
  for (int i = 1; i < blockDim.x / 32; i++) v = maximum ? fmaxf(v, s[i]) : v + s[i];
  return v;
}

extern "C" __global__ void softmax_rows(const float* x, float* out, int n) {
  __shared__ float s[32];
  const float* row = x + (size_t)blockIdx.x * n;
  float top = -INFINITY, total = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) top = fmaxf(top, row[i]);
  top = block_reduce(top, s, true);
  for (int i = threadIdx.x; i < n; i += blockDim.x) total += __expf(row[i] - top);
  total = block_reduce(total, s, false);
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[(size_t)blockIdx.x * n + i] = __expf(row[i] - top) / total;
}

extern "C" __global__ void layernorm(const __half* x, const float* gamma, const float* beta, __half* out, int n) {
  __shared__ float s[32];
  const __half* row = x + (size_t)blockIdx.x * n;
  float sum = 0, squares = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) { float v = __half2float(row[i]); sum += v; squares += v * v; }
  float mean = block_reduce(sum, s, false) / n, var = block_reduce(squares, s, false) / n - mean * mean;
  float scale = rsqrtf(var + 1e-5f);
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    out[(size_t)blockIdx.x * n + i] = __float2half((__half2float(row[i]) - mean) * scale * gamma[i] + beta[i]);
}

// One thread for each query row, keys in tiles of 16; head size 16.
extern "C" __global__ void flash_attention(const float* q, const float* k, const float* v, float* out, int n) {
  __shared__ float ks[16][16], vs[16][16];
  int t = threadIdx.x, row = blockIdx.x * 32 + t;
  float query[16], acc[16] = {}, top = -INFINITY, total = 0;
  for (int i = 0; i < 16; i++) query[i] = q[row * 16 + i];
  for (int start = 0; start < n; start += 16) {
    __syncthreads();
    for (int i = t; i < 256; i += 32) { ks[i / 16][i % 16] = k[start * 16 + i]; vs[i / 16][i % 16] = v[start * 16 + i]; }
    __syncthreads();
    for (int j = 0; j < 16; j++) {
      float dot = 0;
      for (int i = 0; i < 16; i++) dot += query[i] * ks[j][i];
      dot *= 0.25f;
      float higher = fmaxf(top, dot), keep = __expf(top - higher), p = __expf(dot - higher);
      total = total * keep + p;
      for (int i = 0; i < 16; i++) acc[i] = acc[i] * keep + p * vs[j][i];
      top = higher;
    }
  }
  for (int i = 0; i < 16; i++) out[row * 16 + i] = acc[i] / total;
}
