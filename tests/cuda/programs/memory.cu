// The runtime's calls: memory of all kinds, symbols, streams, events, attributes, errors.
#include "common.h"

__global__ void scale(float* x, int n, float by) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= by;
}
__constant__ float weights[4];
__device__ float offset = 1.5f;
__global__ void weigh(const float* x, float* y, int n, int most) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * weights[i % most] + offset;  // line: symbols
}
bool symbols(bool bug) {
  float w[4] = {1, 2, 3, 4}, o = 0, *where;
  size_t size;
  CHECK(cudaMemcpyFromSymbol(&o, offset, sizeof o));
  if (o != 1.5f) return false;
  CHECK(cudaMemcpyToSymbol(weights, w, sizeof w));
  CHECK(cudaGetSymbolAddress((void**)&where, offset));
  CHECK(cudaGetSymbolSize(&size, weights));
  o = 2.5f;
  CHECK(cudaMemcpy(where, &o, sizeof o, cudaMemcpyHostToDevice));
  auto x = numbers(40);
  float *d_x = upload(x), *d_y;
  CHECK(cudaMalloc(&d_y, 40 * sizeof(float)));
  weigh<<<2, 32>>>(d_x, d_y, bug ? 4 : 40, bug ? 5 : 4);
  if (bug) weigh<<<1, 5>>>(d_x, d_y, 5, 5);
  auto y = download(d_y, 4);
  for (int i = 0; i < 4; i++) if (y[i] != x[i] * w[i] + 2.5f) return false;
  return size == 16;
}

struct Node { int value; Node* next; };
__global__ void sum_list(const Node* first, int* sum) {
  int total = 0;
  for (const Node* n = first; n; n = n->next) total += n->value;  // line: managed
  *sum = total;
}
__device__ __managed__ int result = 7;
bool managed(bool bug) {
  Node* first = nullptr;
  int* sum;
  for (int i = 1; i <= 10; i++) {
    Node* n;
    if (bug && i == 1) n = (Node*)malloc(sizeof(Node));
    else CHECK(cudaMallocManaged(&n, sizeof(Node)));
    *n = {i, first};
    first = n;
  }
  sum = &result;
  if (result != 7) return false;
  CHECK(cudaMallocManaged(&sum, sizeof(int)));
  sum_list<<<1, 1>>>(first, sum);
  CHECK(cudaDeviceSynchronize());
  return bug || *sum == 55;
}

bool pitched(bool bug) {
  const int w = 30, h = 20;
  auto x = numbers(w * h);
  float* d;
  size_t pitch;
  CHECK(cudaMallocPitch((void**)&d, &pitch, w * sizeof(float), h));
  CHECK(cudaMemcpy2D(d, pitch, x.data(), w * sizeof(float), w * sizeof(float), h, cudaMemcpyHostToDevice));
  scale<<<1, 32>>>(d, w, 2);
  std::vector<float> y(w * h), all(pitch / sizeof(float) * h);
  CHECK(cudaMemcpy2D(y.data(), w * sizeof(float), d, pitch, w * sizeof(float), h, cudaMemcpyDeviceToHost));
  if (bug) CHECK(cudaMemcpy(all.data(), d, pitch * h, cudaMemcpyDeviceToHost));  // line: pitched
  CHECK(cudaMemset2D(d, pitch, 0, w * sizeof(float), h));
  return y[3] == 2 * x[3] && y[w] == x[w];
}

bool streams(bool bug) {
  const int n = 1024, parts = 4;
  float *h, *d, ms = -1;
  cudaStream_t s[parts];
  cudaEvent_t begin, end;
  CHECK(cudaMallocHost((void**)&h, n * sizeof(float)));
  for (int i = 0; i < n; i++) h[i] = (float)i;
  CHECK(cudaMalloc(&d, n * sizeof(float)));
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreateWithFlags(&end, cudaEventDefault));
  CHECK(cudaEventRecord(begin));
  for (int k = 0; k < parts; k++) {
    int m = n / parts, more = bug && k == parts - 1 ? 1 : 0;
    CHECK(cudaStreamCreate(&s[k]));
    CHECK(cudaMemcpyAsync(d + k * m, h + k * m, m * sizeof(float), cudaMemcpyHostToDevice, s[k]));
    scale<<<m / 128, 128, 0, s[k]>>>(d + k * m, m, 3);
    cudaMemcpyAsync(h + k * m, d + k * m, (m + more) * sizeof(float), cudaMemcpyDeviceToHost, s[k]);  // line: streams
    if (more) CHECK(cudaMemcpyAsync(h + k * m, d + k * m, m * sizeof(float), cudaMemcpyDeviceToHost, s[k]));
  }
  for (auto& one : s) { CHECK(cudaStreamSynchronize(one)); CHECK(cudaStreamDestroy(one)); }
  CHECK(cudaEventRecord(end));
  CHECK(cudaEventSynchronize(end));
  CHECK(cudaEventElapsedTime(&ms, begin, end));
  if (cudaStreamSynchronize((cudaStream_t)0x1234) == cudaSuccess) return false;
  cudaGetLastError();
  for (int i = 0; i < n; i++) if (h[i] != 3.0f * i) return false;
  CHECK(cudaFreeHost(h));
  return ms > 0;
}

bool questions(bool bug) {
  int count, device, major, blocks, value;
  cudaDeviceProp p;
  CHECK(cudaGetDeviceCount(&count));
  CHECK(cudaGetDevice(&device));
  CHECK(cudaGetDeviceProperties(&p, device));
  CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, scale, 256, 0));
  int grid, block;
  CHECK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, scale, 0, 0));
  cudaFuncAttributes a;
  CHECK(cudaFuncGetAttributes(&a, scale));
  size_t left, all;
  CHECK(cudaMemGetInfo(&left, &all));
  CHECK(cudaRuntimeGetVersion(&value));
  cudaPointerAttributes where;
  float* d;
  CHECK(cudaMalloc(&d, 4000));
  CHECK(cudaPointerGetAttributes(&where, d));
  if (bug) cudaFree(d + 1);  // line: questions
  return count == 1 && p.major == major && blocks == 8 && block == 1024 && a.maxThreadsPerBlock == 1024 && all > left &&
         where.type == cudaMemoryTypeDevice && p.warpSize == 32;
}

__global__ void nothing() {}
bool errors(bool bug) {
  nothing<<<1, 2000>>>();
  if (cudaGetLastError() != cudaErrorInvalidConfiguration || cudaGetLastError() != cudaSuccess) return false;
  nothing<<<0, 32>>>();
  if (cudaPeekAtLastError() != cudaErrorInvalidConfiguration) return false;
  cudaGetLastError();
  float *d, x[4] = {};
  if (cudaMalloc(&d, (size_t)1 << 50) != cudaErrorMemoryAllocation || strcmp(cudaGetErrorString(cudaGetLastError()), "out of memory")) return false;
  if (cudaSetDevice(3) != cudaErrorInvalidDevice) return false;
  CHECK(cudaMalloc(&d, sizeof x));
  CHECK(cudaMemcpy(d, x, sizeof x, cudaMemcpyDefault));
  if (bug) cudaMemcpy(d, x, sizeof x, cudaMemcpyDeviceToHost);  // line: errors
  if (bug) cudaGetLastError();
  return !strcmp(cudaGetErrorName(cudaErrorInvalidDevice), "cudaErrorInvalidDevice") && (bug || cudaFree(d) == cudaSuccess);
}

bool unwritten(bool bug) {
  float *d_x, *d_y;
  CHECK(cudaMalloc(&d_x, 100 * sizeof(float)));
  CHECK(cudaMallocAsync(&d_y, 100 * sizeof(float), 0));
  CHECK(cudaMemset(d_x, 0, (bug ? 99 : 100) * sizeof(float)));
  scale<<<1, 64>>>(d_x, bug ? 64 : 100, 2);
  CHECK(cudaMemcpy(d_y, d_x, 100 * sizeof(float), cudaMemcpyDeviceToDevice));
  auto y = download(d_y, 100);
  CHECK(cudaFreeAsync(d_y, 0));
  return y[50] == 0;
}

__global__ void twice(int* x, int n) {
  int i = threadIdx.x;
  if (i < n) x[i] = 2 * i;  // line: freed
}
struct Record { char tag; int value; double weight; short last; };
__global__ void records(Record* r, bool bug) {
  int i = threadIdx.x;
  r[i].tag = 'a'; r[i].value = i; r[i].last = 3;
  if (!bug) r[i].weight = 0.5 * i;
}
__global__ void reversed(const Record* r, Record* to) { to[threadIdx.x] = r[31 - threadIdx.x]; }  // line: padding
bool padding(bool bug) {
  Record *d_r, *d_to;
  CHECK(cudaMalloc(&d_r, 32 * sizeof(Record)));
  CHECK(cudaMalloc(&d_to, 32 * sizeof(Record)));
  records<<<1, 32>>>(d_r, bug);
  reversed<<<1, 32>>>(d_r, d_to);
  auto to = download(d_to, 32);
  return to[3].value == 28 && (bug || to[1].weight == 15);
}

__global__ void evens(float* x, double* y, bool bug) {
  int i = threadIdx.x;
  x[2 * i] = i;
  if (!bug) x[2 * i + 1] = i;
  y[i] = i;
}
bool holes(bool bug) {
  float* d_x;
  double* d_y;
  CHECK(cudaMalloc(&d_x, 64 * sizeof(float)));
  CHECK(cudaMalloc(&d_y, 32 * sizeof(double)));
  evens<<<1, 32>>>(d_x, d_y, bug);
  return download(d_x + 2, 62)[60] == 31 && download(d_y, 32)[31] == 31;
}

__global__ void paint(uchar4* to, float* light, bool bug) {
  int i = threadIdx.x;
  to[i].x = to[i].y = to[i].z = i;
  if (!bug) to[i].w = 255;
  light[i] = i;
}
bool pixels(bool bug) {
  const size_t bytes = 32 * 4;
  uchar4* d_to;
  float* d_light;
  CHECK(cudaMalloc(&d_to, bytes));
  CHECK(cudaMalloc(&d_light, bytes));
  paint<<<1, 32>>>(d_to, d_light, bug);
  return download(d_to, 32)[31].z == 31 && download(d_light, 32)[31] == 31;
}

bool freed(bool bug) {
  int *d_old, *d_new;
  CHECK(cudaMalloc(&d_old, 32 * sizeof(int)));
  CHECK(cudaMalloc(&d_new, 32 * sizeof(int)));
  if (bug) CHECK(cudaFree(d_old));
  twice<<<1, 32>>>(bug ? d_old : d_new, 32);
  CHECK(cudaDeviceSynchronize());
  return true;
}

bool host(bool bug) {  // the host's own use of memory ends the program, as with a GPU
  int *shared, *d;
  CHECK(cudaMallocManaged(&shared, 64));
  CHECK(cudaMalloc(&d, 64));
  CHECK(cudaMemset(d, 0, 64));
  twice<<<1, 16>>>(shared, 16);
  CHECK(cudaDeviceSynchronize());
  result = shared[3] + 1;
  int* read = bug ? d : shared;
  return read[3] == 6 && result == 7;  // line: host
}

int main(int argc, char** argv) {
  const Case cases[] = {{"symbols", symbols}, {"managed", managed}, {"pitched", pitched}, {"streams", streams},
                        {"questions", questions}, {"errors", errors}, {"unwritten", unwritten}, {"padding", padding}, {"holes", holes}, {"pixels", pixels}, {"freed", freed}, {"host", host}};
  return choose(cases, sizeof cases / sizeof *cases, argc, argv);
}
