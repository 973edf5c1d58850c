// Kernels of the usual kinds, each right, and with a mistake that the program's own check does not see.
#include "common.h"

// ------------------------------------------------------------------ reduction by shuffles
__global__ void reduce(const float* x, float* sum, int n, bool bug) {
  __shared__ float part[32];
  float v = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += x[i];
  for (int o = 16; o; o >>= 1) v += __shfl_down_sync(0xffffffff, v, o);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  if (!bug) __syncthreads();
  if (threadIdx.x < 32) {
    v = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0;  // line: reduction
    for (int o = 16; o; o >>= 1) v += __shfl_down_sync(0xffffffff, v, o);
    if (threadIdx.x == 0) atomicAdd(sum, v);
  }
}
bool reduction(bool bug) {
  auto x = numbers(5000);
  float *d = upload(x), *d_sum, want = 0, got;
  CHECK(cudaMalloc(&d_sum, sizeof(float)));
  CHECK(cudaMemset(d_sum, 0, sizeof(float)));
  reduce<<<4, 256>>>(d, d_sum, 5000, bug);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(&got, d_sum, sizeof(float), cudaMemcpyDeviceToHost));
  for (float v : x) want += v;
  return bug || fabs(got - want) < 1e-3;
}

// ------------------------------------------------------------------ transpose through a tile
__global__ void turn(const float* in, float* out, int rows, int columns, bool bug) {
  __shared__ float tile[16][17];
  int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
  if (x < columns && y < rows) tile[threadIdx.y][threadIdx.x] = in[y * columns + x];
  __syncthreads();
  x = blockIdx.y * 16 + threadIdx.x;
  y = blockIdx.x * 16 + threadIdx.y;
  if ((x < rows || (bug && y == columns - 1 && x == rows)) && y < columns) {
    float v = x < rows ? tile[threadIdx.x][threadIdx.y] : 0;
    out[y * rows + x] = v;  // line: transpose
  }
}
bool transpose(bool bug) {
  const int rows = 37, columns = 50;
  auto x = numbers(rows * columns);
  float *d_in = upload(x), *d_out;
  CHECK(cudaMalloc((void**)&d_out, rows * columns * sizeof(float)));
  turn<<<dim3(4, 3), dim3(16, 16)>>>(d_in, d_out, rows, columns, bug);
  auto y = download(d_out, rows * columns);
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < columns; j++)
      if (y[j * rows + i] != x[i * columns + j]) return false;
  CHECK(cudaFree(d_in));
  return cudaFree(d_out) == cudaSuccess;
}

// ------------------------------------------------------------------ product by tiles
__global__ void multiply(const float* a, const float* b, float* c, int n, bool bug) {
  __shared__ float s[16][16], t[16][16];
  int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
  float sum = 0;
  for (int k = 0; k < n; k += 16) {
    s[y][x] = a[row * n + k + x];  // line: matmul
    t[y][x] = b[(k + y) * n + column];
    __syncthreads();
    for (int i = 0; i < 16; i++) sum += s[y][i] * t[i][x];
    if (!bug) __syncthreads();
  }
  c[row * n + column] = sum;
}
bool matmul(bool bug) {
  const int n = 48;
  auto a = numbers(n * n), b = numbers(n * n, 5);
  float *d_a = upload(a), *d_b = upload(b), *d_c;
  CHECK(cudaMalloc(&d_c, n * n * sizeof(float)));
  multiply<<<dim3(n / 16, n / 16), dim3(16, 16)>>>(d_a, d_b, d_c, n, bug);
  auto c = download(d_c, n * n);
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) {
      float want = 0;
      for (int k = 0; k < n; k++) want += a[i * n + k] * b[k * n + j];
      if (!bug && fabs(want - c[i * n + j]) > 1e-2) return false;
    }
  return true;
}

// ------------------------------------------------------------------ histogram by atomics
__global__ void count(const int* x, unsigned* bins, int n, bool bug) {
  __shared__ unsigned mine[64];
  for (int i = threadIdx.x; i < 64; i += blockDim.x) mine[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    if (bug) mine[x[i]]++;  // line: histogram
    else atomicAdd(&mine[x[i]], 1u);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 64; i += blockDim.x) atomicAdd(&bins[i], mine[i]);
}
bool histogram(bool bug) {
  const int n = 3000;
  std::vector<int> x(n);
  std::vector<unsigned> want(64, 0);
  for (int i = 0; i < n; i++) want[x[i] = i * i % 64]++;
  int* d_x = upload(x);
  unsigned* d_bins;
  CHECK(cudaMalloc(&d_bins, 64 * sizeof(unsigned)));
  CHECK(cudaMemset(d_bins, 0, 64 * sizeof(unsigned)));
  count<<<3, 128>>>(d_x, d_bins, n, bug);
  auto got = download(d_bins, 64);
  return bug || got == want;
}

// ------------------------------------------------------------------ stencil until nothing changes
__device__ int changed;
__global__ void relax(const float* in, float* out, int n, bool bug) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float v = i > 0 && i < n - 1 ? 0.5f * (in[i - 1] + in[i + 1]) : in[i];  // line: stencil
  if (bug && i == n - 1) return;  // the last element of one of the two buffers is never written
  out[i] = v;
  if (fabsf(v - in[i]) > 1e-2f) changed = 1;
}
bool stencil(bool bug) {
  const int n = 64;
  std::vector<float> x(n, 0);
  x[0] = 1;
  float *d_a = upload(x), *d_b;
  CHECK(cudaMalloc(&d_b, n * sizeof(float)));
  int again = 1, rounds = 0;
  while (again && rounds++ < 500) {
    again = 0;
    CHECK(cudaMemcpyToSymbol(changed, &again, sizeof(int)));
    relax<<<1, 64>>>(d_a, d_b, n, bug);
    CHECK(cudaMemcpyFromSymbol(&again, changed, sizeof(int)));
    std::swap(d_a, d_b);
  }
  auto y = download(d_a, n - 1);
  return rounds > 5 && rounds < 500 && y[0] == 1 && y[1] > 0.8f;
}

// ------------------------------------------------------------------ dynamic shared memory above 48 KB
extern __shared__ float large[];
__global__ void reversed(const float* x, float* y, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) large[i] = x[i];  // line: dynamic
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = large[n - 1 - i];
}
bool dynamic(bool bug) {
  const int n = 15000;
  auto x = numbers(n);
  float *d_x = upload(x), *d_y;
  CHECK(cudaMalloc(&d_y, n * sizeof(float)));
  size_t bytes = n * sizeof(float);
  reversed<<<1, 256, bytes>>>(d_x, d_y, n);
  if (cudaGetLastError() != cudaErrorInvalidValue) return false;  // it must be asked for
  CHECK(cudaFuncSetAttribute(reversed, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
  reversed<<<1, 256, bug ? bytes - 4 : bytes>>>(d_x, d_y, n);
  CHECK(cudaDeviceSynchronize());
  auto y = download(d_y, n);
  for (int i = 1; i < n; i++) if (y[i] != x[n - 1 - i]) return false;
  return true;
}

// ------------------------------------------------------------------ votes with a literal mask
__global__ void vote(const int* x, unsigned* y, bool bug) {
  unsigned m = 0;
  if (!bug || threadIdx.x < 31) m = __ballot_sync(0xffffffff, x[threadIdx.x] == 1);  // line: ballot
  if (!bug) {  // as CUB writes it
    unsigned other;
    asm volatile("{ .reg .pred p; setp.eq.u32 p, %1, 1; vote.ballot.sync.b32 %0, p, 0xffffffff; }" : "=r"(other) : "r"(x[threadIdx.x]));
    m &= other;
  }
  y[threadIdx.x] = m;
}
bool votes(bool bug) {
  std::vector<int> x(32);
  unsigned want = 0;
  for (int i = 0; i < 32; i++) { x[i] = i % 3 == 1; want |= (unsigned)x[i] << i; }
  int* d_x = upload(x);
  unsigned* d_y;
  CHECK(cudaMalloc(&d_y, 32 * sizeof(unsigned)));
  vote<<<1, 32>>>(d_x, d_y, bug);
  return download(d_y, 31)[0] == want || bug;
}

// ------------------------------------------------------------------ text
__global__ void speak(int n, bool bug) {
  if (threadIdx.x < n) printf("thread %d of %d: %.2f %s\n", threadIdx.x, n, threadIdx.x / 4.0, "text");
  if (bug && threadIdx.x == 1) __trap();  // line: text
}
bool text(bool bug) {
  speak<<<1, 32>>>(3, bug);
  printf("before\n");
  cudaError_t e = cudaDeviceSynchronize();
  printf("after\n");
  return e == (bug ? cudaErrorLaunchFailure : cudaSuccess);
}

// ------------------------------------------------------------------ the last block adds up
__device__ unsigned finished = 0;
__global__ void total(const float* x, int n, volatile float* partial, float* out, bool bug) {
  __shared__ bool last;
  float mine = 0;
  for (int i = blockIdx.x; i < n; i += gridDim.x) mine += x[i];
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = mine;
    if (!bug) __threadfence();
    last = atomicInc(&finished, gridDim.x) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float all = 0;
    for (unsigned b = 0; b < gridDim.x; b++) all += partial[b];  // line: last
    *out = all;
    finished = 0;
  }
}
bool last(bool bug) {
  auto x = numbers(100);
  float *d_x = upload(x), *d_part, *d_out, want = 0;
  for (float v : x) want += v;
  CHECK(cudaMalloc(&d_part, 8 * sizeof(float)));
  CHECK(cudaMalloc(&d_out, sizeof(float)));
  bool good = true;
  for (int k = 0; k < 3; k++) {
    total<<<8, 32>>>(d_x, 100, d_part, d_out, bug);
    good = good && fabs(download(d_out, 1)[0] - want) < 1e-3;
  }
  return good;
}

int main(int argc, char** argv) {
  const Case cases[] = {{"reduction", reduction}, {"transpose", transpose}, {"matmul", matmul}, {"histogram", histogram},
                        {"stencil", stencil}, {"dynamic", dynamic}, {"ballot", votes}, {"text", text}, {"last", last}};
  return choose(cases, sizeof cases / sizeof *cases, argc, argv);
}
