// Header libraries of the toolkit: cooperative groups, CUB, thrust.
#include "common.h"

#include <cooperative_groups.h>
#include <cub/cub.cuh>
#include <thrust/device_vector.h>
#include <thrust/host_vector.h>
#include <thrust/reduce.h>
#include <thrust/sort.h>
#include <thrust/transform.h>

namespace cg = cooperative_groups;

__global__ void halves(float* x, float* y, int n, bool bug) {
  auto grid = cg::this_grid();
  for (int half = n / 2; half; half /= 2) {
    int i = grid.thread_rank();
    if (i < half) x[i] += x[i + half];  // line: grid
    if (!bug) grid.sync();
  }
  if (grid.thread_rank() == 0) *y = x[0];
}
bool grid(bool bug) {
  const int n = 512;
  auto x = numbers(n);
  float *d_x = upload(x), *d_y, want = 0;
  for (float v : x) want += v;
  CHECK(cudaMalloc(&d_y, sizeof(float)));
  int size = n;
  void* arguments[] = {&d_x, &d_y, &size, &bug};
  CHECK(cudaLaunchCooperativeKernel((void*)halves, dim3(4), dim3(128), arguments, 0, 0));
  CHECK(cudaDeviceSynchronize());
  return bug || fabs(download(d_y, 1)[0] - want) < 1e-2;
}

__global__ void tiles(const float* x, float* y) {
  auto tile = cg::tiled_partition<8>(cg::this_thread_block());
  float v = x[threadIdx.x];
  for (int o = 4; o; o /= 2) v += tile.shfl_down(v, o);
  if (tile.thread_rank() == 0) y[threadIdx.x / 8] = v;
}
bool groups(bool) {
  auto x = numbers(64);
  float *d_x = upload(x), *d_y;
  CHECK(cudaMalloc(&d_y, 8 * sizeof(float)));
  tiles<<<1, 64>>>(d_x, d_y);
  auto y = download(d_y, 8);
  for (int i = 0; i < 8; i++) {
    float want = 0;
    for (int k = 0; k < 8; k++) want += x[8 * i + k];
    if (want != y[i]) return false;
  }
  return true;
}

__global__ void block_sum(const int* x, int* y, int n, bool bug) {
  typedef cub::BlockReduce<int, 128> Reduce;
  __shared__ typename Reduce::TempStorage storage;
  int i = blockIdx.x * 128 + threadIdx.x;
  int sum = Reduce(storage).Sum(i < n || bug ? x[i] : 0);  // line: cub
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
bool cub_(bool bug) {
  const int n = 1000;
  std::vector<int> x(n);
  int want = 0;
  for (int i = 0; i < n; i++) want += x[i] = i % 13;
  int *d_x = upload(x), *d_y, *d_z;
  CHECK(cudaMalloc(&d_y, 8 * sizeof(int)));
  CHECK(cudaMalloc(&d_z, n * sizeof(int)));
  block_sum<<<8, 128>>>(d_x, d_y, n, bug);
  int sum = 0;
  for (int v : download(d_y, 8)) sum += v;
  if (sum != want && !bug) return false;
  void* space = nullptr;
  size_t bytes = 0;
  CHECK(cub::DeviceReduce::Sum(space, bytes, d_x, d_z, n));
  CHECK(cudaMalloc(&space, bytes));
  CHECK(cub::DeviceReduce::Sum(space, bytes, d_x, d_z, n));
  if (download(d_z, 1)[0] != want) return false;
  size_t more = 0;
  void* other = nullptr;
  CHECK(cub::DeviceScan::ExclusiveSum(other, more, d_x, d_z, n));
  CHECK(cudaMalloc(&other, more));
  CHECK(cub::DeviceScan::ExclusiveSum(other, more, d_x, d_z, n));
  return download(d_z, n)[n - 1] == want - x[n - 1];
}

bool device(bool bug) {
  const int n = 500;
  auto x = numbers(n);
  float* d_x = upload(x);
  cub::KeyValuePair<int, float>* d_best;
  void* space = nullptr;
  size_t bytes = 0;
  CHECK(cudaMalloc(&d_best, sizeof *d_best));
  CHECK(cub::DeviceReduce::ArgMin(space, bytes, d_x, d_best, n));
  CHECK(cudaMalloc(&space, bytes));
  CHECK(cub::DeviceReduce::ArgMin(space, bytes, d_x, d_best, bug ? n + 1 : n));  // line: device
  return x[download(d_best, 1)[0].key] == -11;
}

bool thrust_(bool) {
  thrust::host_vector<int> h(500);
  for (int i = 0; i < 500; i++) h[i] = i * 37 % 501;
  thrust::device_vector<int> d = h;
  thrust::sort(d.begin(), d.end());
  int sum = thrust::reduce(d.begin(), d.end(), 0, thrust::plus<int>());
  thrust::transform(d.begin(), d.end(), d.begin(), thrust::negate<int>());
  int want = 0;
  for (int v : h) want += v;
  h = d;
  for (int i = 1; i < 500; i++) if (h[i - 1] < h[i]) return false;
  return sum == want;
}

int main(int argc, char** argv) {
  const Case cases[] = {{"grid", grid}, {"groups", groups}, {"cub", cub_}, {"device", device}, {"thrust", thrust_}};
  return choose(cases, sizeof cases / sizeof *cases, argc, argv);
}
