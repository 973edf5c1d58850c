// Programs in the kinds of public benchmarks and samples: loops until convergence, waves over tiles, several
// kernels, symbols, streams. Each right, and with a mistake that the program's own check does not see.
#include <cooperative_groups.h>

#include "common.h"
namespace cg = cooperative_groups;

// ------------------------------------------------------------------ breadth-first search, until nothing changes
struct Node { int first, degree; };
__global__ void visit(const Node* nodes, const int* edges, char* mask, char* updating, const char* visited, int* cost, int n, bool bug) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= n || !mask[t]) return;
  mask[t] = 0;
  for (int e = nodes[t].first; e < nodes[t].first + nodes[t].degree + bug; e++) {
    int id = edges[e];  // line: bfs
    if (id >= 0 && id < n && !visited[id]) { cost[id] = cost[t] + 1; updating[id] = 1; }
  }
}
__global__ void update(char* mask, char* updating, char* visited, char* over, int n) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t < n && updating[t]) { mask[t] = visited[t] = *over = 1; updating[t] = 0; }
}
bool bfs(bool bug) {
  const int n = 200;
  std::vector<Node> nodes(n);
  std::vector<int> edges, cost(n, -1), want(n, -1);
  for (int i = 0; i < n; i++) {
    nodes[i] = {(int)edges.size(), 2};
    edges.push_back((2 * i + 1) % n);
    edges.push_back((2 * i + 2) % n);
  }
  std::vector<char> mask(n, 0), updating(n, 0), visited(n, 0);
  mask[0] = visited[0] = 1;
  cost[0] = want[0] = 0;
  std::vector<int> queue{0};
  for (size_t q = 0; q < queue.size(); q++)
    for (int k = 0; k < 2; k++) {
      int to = edges[2 * queue[q] + k];
      if (want[to] < 0) { want[to] = want[queue[q]] + 1; queue.push_back(to); }
    }
  Node* d_nodes = upload(nodes);
  int *d_edges = upload(edges), *d_cost = upload(cost);
  char *d_mask = upload(mask), *d_updating = upload(updating), *d_visited = upload(visited), *d_over, over;
  CHECK(cudaMalloc(&d_over, 1));
  do {
    over = 0;
    CHECK(cudaMemcpy(d_over, &over, 1, cudaMemcpyHostToDevice));
    visit<<<(n + 63) / 64, 64>>>(d_nodes, d_edges, d_mask, d_updating, d_visited, d_cost, n, bug);
    update<<<(n + 63) / 64, 64>>>(d_mask, d_updating, d_visited, d_over, n);
    CHECK(cudaMemcpy(&over, d_over, 1, cudaMemcpyDeviceToHost));
  } while (over);
  return bug || download(d_cost, n) == want;
}

// ------------------------------------------------------------------ heat on a chip: a halo in shared memory, two buffers
#define SIDE 16
__global__ void heat(const float* power, const float* from, float* to, int rows, int columns, bool bug) {
  __shared__ float here[SIDE][SIDE];
  int tx = threadIdx.x, ty = threadIdx.y;
  int y = (SIDE - 2) * blockIdx.y + ty - 1, x = (SIDE - 2) * blockIdx.x + tx - 1;
  bool in = y >= 0 && y < rows && x >= 0 && x < columns;
  if (in) here[ty][tx] = from[y * columns + x];
  if (!bug) __syncthreads();
  if (!in || !tx || !ty || tx == SIDE - 1 || ty == SIDE - 1) return;
  float n = y ? here[ty - 1][tx] : here[ty][tx], s = y < rows - 1 ? here[ty + 1][tx] : here[ty][tx];  // line: hotspot
  float w = x ? here[ty][tx - 1] : here[ty][tx], e = x < columns - 1 ? here[ty][tx + 1] : here[ty][tx];
  to[y * columns + x] = here[ty][tx] + 0.1f * (n + s + w + e - 4 * here[ty][tx]) + power[y * columns + x];
}
bool hotspot(bool bug) {
  const int rows = 30, columns = 25;
  auto power = numbers(rows * columns, 3), t = numbers(rows * columns, 5);
  float *d_power = upload(power), *d_t[2] = {upload(t), nullptr};
  CHECK(cudaMalloc(&d_t[1], rows * columns * sizeof(float)));
  auto u = t;
  for (int k = 0; k < 4; k++) {
    heat<<<dim3((columns + SIDE - 3) / (SIDE - 2), (rows + SIDE - 3) / (SIDE - 2)), dim3(SIDE, SIDE)>>>(d_power, d_t[k % 2], d_t[1 - k % 2], rows, columns, bug);
    for (int y = 0; y < rows; y++)
      for (int x = 0; x < columns; x++) {
        float c = t[y * columns + x], n = y ? t[(y - 1) * columns + x] : c, s = y < rows - 1 ? t[(y + 1) * columns + x] : c;
        float w = x ? t[y * columns + x - 1] : c, e = x < columns - 1 ? t[y * columns + x + 1] : c;
        u[y * columns + x] = c + 0.1f * (n + s + w + e - 4 * c) + power[y * columns + x];
      }
    std::swap(t, u);
  }
  auto got = download(d_t[0], rows * columns);
  for (int i = 0; i < rows * columns; i++)
    if (!bug && fabs(got[i] - t[i]) > 1e-3) return false;
  return true;
}

// ------------------------------------------------------------------ decomposition: diagonal, perimeter, the inner tiles
#define B 8
__global__ void lud_diagonal(float* m, int n, int o) {
  __shared__ float s[B][B];
  int t = threadIdx.x;
  for (int i = 0; i < B; i++) s[i][t] = m[(o + i) * n + o + t];
  __syncthreads();
  for (int i = 0; i < B - 1; i++) {
    if (t > i) {
      for (int j = 0; j < i; j++) s[t][i] -= s[t][j] * s[j][i];
      s[t][i] /= s[i][i];
    }
    __syncthreads();
    if (t > i)
      for (int j = 0; j < i + 1; j++) s[i + 1][t] -= s[i + 1][j] * s[j][t];
    __syncthreads();
  }
  for (int i = 1; i < B; i++) m[(o + i) * n + o + t] = s[i][t];
}
__global__ void lud_perimeter(float* m, int n, int o) {
  __shared__ float d[B][B], r[B][B], c[B][B];
  int t = threadIdx.x % B, at = o + (blockIdx.x + 1) * B;
  bool row = threadIdx.x < B;
  for (int i = 0; i < B; i++) {
    if (row) { d[i][t] = m[(o + i) * n + o + t]; r[i][t] = m[(o + i) * n + at + t]; }
    else c[i][t] = m[(at + i) * n + o + t];
  }
  __syncthreads();
  if (row)
    for (int i = 1; i < B; i++)
      for (int j = 0; j < i; j++) r[i][t] -= d[i][j] * r[j][t];
  else
    for (int i = 0; i < B; i++) {
      for (int j = 0; j < i; j++) c[t][i] -= c[t][j] * d[j][i];
      c[t][i] /= d[i][i];
    }
  __syncthreads();
  for (int i = 0; i < B; i++) {
    if (row) m[(o + i) * n + at + t] = r[i][t];
    else m[(at + i) * n + o + t] = c[i][t];
  }
}
__global__ void lud_inner(float* m, int n, int o, bool bug) {
  __shared__ float r[B][B], c[B][B];
  int x = threadIdx.x, y = threadIdx.y, row = o + (blockIdx.y + 1) * B, column = o + (blockIdx.x + 1) * B;
  r[y][x] = m[(o + y) * n + column + x];
  c[y][x] = m[(row + y) * n + o + x];
  if (!bug) __syncthreads();
  float v = 0;
  for (int i = 0; i < B; i++) v += c[y][i] * r[i][x];  // line: lud
  m[(row + y) * n + column + x] -= v;
}
bool lud(bool bug) {
  const int n = 4 * B;
  std::vector<float> m(n * n);
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) m[i * n + j] = (i == j ? n : 0) + 1.f / (1 + abs(i - j));
  float* d = upload(m);
  int o = 0;
  for (; o < n - B; o += B) {
    int left = (n - o) / B - 1;
    lud_diagonal<<<1, B>>>(d, n, o);
    lud_perimeter<<<left, 2 * B>>>(d, n, o);
    lud_inner<<<dim3(left, left), dim3(B, B)>>>(d, n, o, bug);
  }
  lud_diagonal<<<1, B>>>(d, n, o);
  auto got = download(d, n * n);
  for (int i = 0; i < n && !bug; i++)
    for (int j = 0; j < n; j++) {
      float v = 0;
      for (int k = 0; k <= std::min(i, j); k++) v += (k == i ? 1 : got[i * n + k]) * got[k * n + j];
      if (fabs(v - m[i * n + j]) > 1e-3) return false;
    }
  return true;
}

// ------------------------------------------------------------------ alignment of sequences: waves over tiles
__global__ void align(const int* score, int* m, int columns, int penalty, int wave, int tiles, bool bug) {
  __shared__ int s[B + 1][B + 1];
  int bx = wave < tiles ? blockIdx.x : wave - tiles + 1 + blockIdx.x, by = wave - bx, t = threadIdx.x;
  int corner = by * B * columns + bx * B;
  if (t == 0) s[0][0] = m[corner];
  s[t + 1][0] = m[corner + (t + 1) * columns];
  s[0][t + 1] = m[corner + t + 1];
  __syncthreads();
  for (int d = 0; d < 2 * B - 1; d++) {
    int y = d < B ? d - t : B - 1 - t, x = d - y;
    if (y >= 0 && x >= 0 && x < B && (d < B ? t <= d : t < 2 * B - 1 - d)) {
      int sub = s[y][x] + score[(by * B + y + 1) * columns + bx * B + x + 1];
      s[y + 1][x + 1] = max(sub, max(s[y + 1][x], s[y][x + 1]) - penalty);  // line: nw
    }
    if (!bug) __syncthreads();
  }
  __syncthreads();
  for (int y = 0; y < B; y++) m[corner + (y + 1) * columns + t + 1] = s[y + 1][t + 1];
}
bool nw(bool bug) {
  const int tiles = 3, n = tiles * B + 1, penalty = 10;
  std::vector<int> score(n * n), m(n * n, 0), want;
  for (int i = 0; i < n * n; i++) score[i] = i * 7 % 19 - 9;
  for (int i = 0; i < n; i++) m[i] = m[i * n] = -i * penalty;
  want = m;
  for (int i = 1; i < n; i++)
    for (int j = 1; j < n; j++)
      want[i * n + j] = std::max(want[(i - 1) * n + j - 1] + score[i * n + j], std::max(want[i * n + j - 1], want[(i - 1) * n + j]) - penalty);
  int *d_score = upload(score), *d_m = upload(m);
  for (int wave = 0; wave < 2 * tiles - 1; wave++) {
    int blocks = wave < tiles ? wave + 1 : 2 * tiles - 1 - wave;
    align<<<blocks, B>>>(d_score, d_m, n, penalty, wave, tiles, bug);
  }
  return bug || download(d_m, n * n) == want;
}

// ------------------------------------------------------------------ speckle: a sum in two steps, then two kernels that exchange
__global__ void sums(const float* x, float* part, int n) {
  __shared__ float s[64];
  int i = blockIdx.x * 64 + threadIdx.x;
  s[threadIdx.x] = i < n ? x[i] : 0;
  for (int o = 32; o; o /= 2) {
    __syncthreads();
    if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];
  }
  if (threadIdx.x == 0) part[blockIdx.x] = s[0];
}
__global__ void derivatives(const float* x, float* c, int rows, int columns, float mean) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, y = i / columns, k = i % columns;
  if (i >= rows * columns) return;
  float d = x[min(y + 1, rows - 1) * columns + k] - x[i] + x[y * columns + min(k + 1, columns - 1)] - x[i];
  c[i] = 1 / (1 + d * d / (mean * mean + 1));
}
__global__ void diffuse(float* x, const float* c, int rows, int columns) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, y = i / columns;
  if (i < rows * columns) x[i] += 0.1f * (c[min(y + 1, rows - 1) * columns + i % columns] - c[i]);
}
bool srad(bool bug) {
  const int rows = 20, columns = 13, n = rows * columns, blocks = (n + 63) / 64;
  auto x = numbers(n);
  float *d_x = upload(x), *d_c, *d_part;
  CHECK(cudaMalloc(&d_c, n * sizeof(float)));
  CHECK(cudaMalloc(&d_part, blocks * sizeof(float)));
  std::vector<float> c(n);
  for (int k = 0; k < 3; k++) {
    sums<<<bug ? blocks - 1 : blocks, 64>>>(d_x, d_part, n);
    float sum = 0, want = 0;
    for (float v : download(d_part, blocks)) sum += v;
    for (float v : x) want += v;
    if (!bug && fabs(sum - want) > 1e-2) return false;
    float mean = sum / n;
    derivatives<<<blocks, 64>>>(d_x, d_c, rows, columns, mean);
    diffuse<<<blocks, 64>>>(d_x, d_c, rows, columns);
    for (int i = 0; i < n; i++) {
      float d = x[std::min(i / columns + 1, rows - 1) * columns + i % columns] - x[i] + x[i / columns * columns + std::min(i % columns + 1, columns - 1)] - x[i];
      c[i] = 1 / (1 + d * d / (mean * mean + 1));
    }
    for (int i = 0; i < n; i++) x[i] += 0.1f * (c[std::min(i / columns + 1, rows - 1) * columns + i % columns] - c[i]);
  }
  auto got = download(d_x, n);
  for (int i = 0; i < n && !bug; i++)
    if (fabs(got[i] - x[i]) > 1e-3) return false;
  return true;
}

// ------------------------------------------------------------------ a layer's forward and weight update
__global__ void forward_(const float* in, const float* w, float* part, int hidden) {
  __shared__ float node[16], s[16][16];
  int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * 16 + ty;
  if (tx == 0) node[ty] = in[row];
  __syncthreads();
  s[ty][tx] = w[row * hidden + tx] * node[ty];
  __syncthreads();
  for (int i = 1; i <= 4; i++) {
    if (ty % (1 << i) == 0) s[ty][tx] += s[ty + (1 << (i - 1))][tx];
    __syncthreads();
  }
  if (ty == 0) part[blockIdx.y * hidden + tx] = s[0][tx];
}
__global__ void adjust(const float* delta, const float* in, float* w, float* old, int hidden, bool bug) {
  int row = blockIdx.y * 16 + threadIdx.y, at = row * hidden + threadIdx.x;
  float change = 0.3f * delta[threadIdx.x] * in[row] + 0.3f * old[at + (bug ? hidden : 0)];  // line: backprop
  w[at] += change;
  old[at] = change;
}
bool backprop(bool bug) {
  const int in = 64, hidden = 16;
  auto x = numbers(in), w = numbers(in * hidden, 5), delta = numbers(hidden, 3);
  std::vector<float> zero(in * hidden, 0.f);
  float *d_x = upload(x), *d_w = upload(w), *d_delta = upload(delta), *d_old = upload(zero), *d_part;
  CHECK(cudaMalloc(&d_part, in / 16 * hidden * sizeof(float)));
  forward_<<<dim3(1, in / 16), dim3(16, 16)>>>(d_x, d_w, d_part, hidden);
  auto part = download(d_part, in / 16 * hidden);
  for (int j = 0; j < hidden; j++) {
    float got = 0, want = 0;
    for (int k = 0; k < in / 16; k++) got += part[k * hidden + j];
    for (int i = 0; i < in; i++) want += x[i] * w[i * hidden + j];
    if (fabs(got - want) > 1e-2) return false;
  }
  adjust<<<dim3(1, in / 16), dim3(16, 16)>>>(d_delta, d_x, d_w, d_old, hidden, bug);
  auto got = download(d_w, in * hidden);
  for (int i = 0; i < in * hidden && !bug; i++)
    if (fabs(got[i] - w[i] - 0.3f * delta[i % hidden] * x[i / hidden]) > 1e-3) return false;
  return true;
}

// ------------------------------------------------------------------ clusters: centres in constant memory, atomics, until stable
__constant__ float centres[4 * 2];
__global__ void assign(const float2* x, int* member, int n, int* changed, float* sum, int* count, bool bug) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int best = 0;
  float least = INFINITY;
  for (int k = 0; k < 4; k++) {
    float dx = x[i].x - centres[2 * k], dy = x[i].y - centres[2 * k + 1], d = dx * dx + dy * dy;
    if (d < least) { least = d; best = k; }
  }
  if (member[i] != best) { member[i] = best; if (bug) ++*changed; else atomicAdd(changed, 1); }  // line: kmeans
  atomicAdd(sum + 2 * best, x[i].x);
  atomicAdd(sum + 2 * best + 1, x[i].y);
  atomicAdd(count + best, 1);
}
bool kmeans(bool bug) {
  const int n = 120;
  std::vector<float2> x(n);
  for (int i = 0; i < n; i++) x[i] = make_float2((i % 4 % 2) * 10 + i % 3, (i % 4 / 2) * 10 + i % 5);
  std::vector<int> member(n, -1);
  float2* d_x = upload(x);
  int *d_member = upload(member), *d_changed, *d_count, changed;
  float *d_sum, c[8] = {1, 1, 9, 2, 2, 9, 8, 8};
  CHECK(cudaMalloc(&d_changed, sizeof(int)));
  CHECK(cudaMalloc(&d_sum, 8 * sizeof(float)));
  CHECK(cudaMalloc(&d_count, 4 * sizeof(int)));
  int rounds = 0;
  do {
    CHECK(cudaMemcpyToSymbol(centres, c, sizeof c));
    CHECK(cudaMemset(d_changed, 0, sizeof(int)));
    CHECK(cudaMemset(d_sum, 0, 8 * sizeof(float)));
    CHECK(cudaMemset(d_count, 0, 4 * sizeof(int)));
    assign<<<2, 64>>>(d_x, d_member, n, d_changed, d_sum, d_count, bug);
    CHECK(cudaMemcpy(&changed, d_changed, sizeof(int), cudaMemcpyDeviceToHost));
    auto sum = download(d_sum, 8);
    auto count = download(d_count, 4);
    for (int k = 0; k < 8; k++) c[k] = count[k / 2] ? sum[k] / count[k / 2] : c[k];
  } while (changed && ++rounds < 20);
  member = download(d_member, n);
  for (int i = 0; i < n; i++)
    if (member[i] != i % 4) return false;
  return true;
}

// ------------------------------------------------------------------ the cheapest path: several rows a launch, the halo shrinks
__global__ void paths(int steps, const int* wall, const int* from, int* to, int columns, int start, bool bug) {
  __shared__ int before[64], after[64];
  int tx = threadIdx.x, x = (64 - 2 * steps) * (int)blockIdx.x - steps + tx;
  if (x >= 0 && x < columns) before[tx] = from[x];
  __syncthreads();
  bool computed = false;
  for (int i = 0; i < steps; i++) {
    computed = tx > i && tx < 63 - i && x >= 0 && x < columns;
    if (computed) {
      int best = before[tx];
      if (x) best = min(best, before[tx - 1]);  // line: pathfinder
      if (x < columns - 1) best = min(best, before[tx + 1]);
      after[tx] = best + wall[(start + i) * columns + x];
    }
    __syncthreads();
    if (i == steps - 1) break;
    if (computed) before[tx] = after[tx];
    if (!bug) __syncthreads();
  }
  if (computed) to[x] = after[tx];
}
bool pathfinder(bool bug) {
  const int columns = 150, rows = 9, steps = 4;
  std::vector<int> wall(rows * columns);
  for (int i = 0; i < rows * columns; i++) wall[i] = i * 31 % 10;
  std::vector<int> row(wall.begin(), wall.begin() + columns), next(columns);
  int *d_wall = upload(wall), *d[2] = {upload(row), nullptr}, k = 0;
  CHECK(cudaMalloc(&d[1], columns * sizeof(int)));
  for (int t = 1; t < rows; t += steps, k = 1 - k)
    paths<<<(columns + 64 - 2 * steps - 1) / (64 - 2 * steps), 64>>>(std::min(steps, rows - t), d_wall, d[k], d[1 - k], columns, t, bug);
  for (int t = 1; t < rows; t++, row = next)
    for (int x = 0; x < columns; x++) {
      int best = row[x];
      if (x) best = std::min(best, row[x - 1]);
      if (x < columns - 1) best = std::min(best, row[x + 1]);
      next[x] = best + wall[t * columns + x];
    }
  return bug || download(d[k], columns) == row;
}

// ------------------------------------------------------------------ a sum whose kernel is a template over block and last step
template <unsigned BLOCK, bool POWER> __global__ void reduce_by(const double* x, double* out, unsigned n, bool bug) {
  cg::thread_block block = cg::this_thread_block();
  extern __shared__ double dynamic[];
  double v = 0;
  for (unsigned i = blockIdx.x * BLOCK * 2 + threadIdx.x; i < n; i += BLOCK * 2 * gridDim.x) {
    v += x[i];
    if (POWER || i + BLOCK < n + bug) v += x[i + BLOCK];  // line: sdk_reduction
  }
  dynamic[threadIdx.x] = v;
  cg::sync(block);
  if (BLOCK >= 128) { if (threadIdx.x < 64) dynamic[threadIdx.x] = v = v + dynamic[threadIdx.x + 64]; cg::sync(block); }
  cg::thread_block_tile<32> tile = cg::tiled_partition<32>(block);
  if (threadIdx.x < 32) {
    if (BLOCK >= 64) v += dynamic[threadIdx.x + 32];
    for (int o = tile.size() / 2; o; o /= 2) v += tile.shfl_down(v, o);
  }
  if (threadIdx.x == 0) out[blockIdx.x] = v;
}
bool sdk_reduction(bool bug) {
  const unsigned n = 1000 - 1000 % 128 + 64;
  std::vector<double> x(n);
  double want = 0;
  for (unsigned i = 0; i < n; i++) want += x[i] = i % 13 - 5;
  double *d_x = upload(x), *d_out, got = 0;
  CHECK(cudaMalloc(&d_out, 2 * sizeof(double)));
  switch (128) {
    case 64: reduce_by<64, false><<<2, 64, 64 * sizeof(double)>>>(d_x, d_out, n, bug); break;
    case 128: reduce_by<128, false><<<2, 128, 128 * sizeof(double)>>>(d_x, d_out, n, bug); break;
  }
  for (double v : download(d_out, 2)) got += v;
  return bug || got == want;
}

// ------------------------------------------------------------------ bitonic sort over blocks, by launches
__global__ void exchange(int* x, int j, int k, int n, bool bug) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, other = i ^ j;
  if (bug ? i > n : i >= n) return;
  if (other > i) {
    int a = x[i], b = x[other];  // line: bitonic
    if ((a > b) == !(i & k)) { x[i] = b; x[other] = a; }
  }
}
bool bitonic(bool bug) {
  const int n = 256;
  std::vector<int> x(n);
  for (int i = 0; i < n; i++) x[i] = i * 101 % 257;
  int* d = upload(x);
  for (int k = 2; k <= n; k *= 2)
    for (int j = k / 2; j; j /= 2) exchange<<<bug ? 5 : 4, 64>>>(d, j, k, n, bug);
  x = download(d, n);
  for (int i = 1; i < n; i++)
    if (x[i - 1] > x[i]) return false;
  return true;
}

// ------------------------------------------------------------------ separable convolution, streams, events, pinned memory
__constant__ float filter[5];
__global__ void rows_(const float* x, float* y, int w, int h) {
  __shared__ float s[4][36];
  int tx = threadIdx.x, ty = threadIdx.y, r = blockIdx.y * 4 + ty, c = blockIdx.x * 32 + tx;
  for (int k = tx; k < 36; k += 32) {
    int at = blockIdx.x * 32 + k - 2;
    s[ty][k] = r < h && at >= 0 && at < w ? x[r * w + at] : 0;
  }
  __syncthreads();
  if (r >= h || c >= w) return;
  float v = 0;
  for (int k = 0; k < 5; k++) v += filter[k] * s[ty][tx + k];
  y[r * w + c] = v;
}
bool convolution(bool bug) {
  const int w = 70, h = 10, n = w * h;
  float taps[5] = {1, 4, 6, 4, 1}, *in, *out, ms;
  CHECK(cudaMallocHost(&in, n * sizeof(float)));
  CHECK(cudaMallocHost(&out, n * sizeof(float)));
  for (int i = 0; i < n; i++) in[i] = i * 7 % 23;
  CHECK(cudaMemcpyToSymbol(filter, taps, sizeof taps));
  cudaStream_t streams[2];
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  CHECK(cudaEventRecord(begin));
  float *d_x, *d_y;
  CHECK(cudaMalloc(&d_x, n * sizeof(float)));
  CHECK(cudaMalloc(&d_y, n * sizeof(float)));
  for (int s = 0; s < 2; s++) {
    CHECK(cudaStreamCreateWithFlags(&streams[s], cudaStreamNonBlocking));
    int o = s * n / 2;
    CHECK(cudaMemcpyAsync(d_x + o, in + o, n / 2 * sizeof(float), cudaMemcpyHostToDevice, streams[s]));
    rows_<<<dim3(3, bug ? 1 : 2), dim3(32, 4), 0, streams[s]>>>(d_x + o, d_y + o, w, h / 2);
    CHECK(cudaMemcpyAsync(out + o, d_y + o, n / 2 * sizeof(float), cudaMemcpyDeviceToHost, streams[s]));  // line: convolution
  }
  for (auto s : streams) { CHECK(cudaStreamSynchronize(s)); CHECK(cudaStreamDestroy(s)); }
  CHECK(cudaEventRecord(end));
  CHECK(cudaEventSynchronize(end));
  CHECK(cudaEventElapsedTime(&ms, begin, end));
  for (int i = 0; i < n && !bug; i++) {
    float v = 0;
    for (int k = 0; k < 5; k++)
      if (i % w + k - 2 >= 0 && i % w + k - 2 < w) v += taps[k] * in[i + k - 2];
    if (fabs(out[i] - v) > 1e-3) return false;
  }
  return ms >= 0;
}

// ------------------------------------------------------------------ a scan of many blocks: sums of blocks, scanned, added
__global__ void scan_block(const int* x, int* y, int* total, int n) {
  __shared__ int s[2][64];
  int t = threadIdx.x, i = blockIdx.x * 64 + t, now = 0;
  s[0][t] = i < n ? x[i] : 0;
  __syncthreads();
  for (int o = 1; o < 64; o *= 2, now = 1 - now) {
    s[1 - now][t] = s[now][t] + (t >= o ? s[now][t - o] : 0);
    __syncthreads();
  }
  if (i < n) y[i] = s[now][t];
  if (t == 63 && total) total[blockIdx.x] = s[now][63];
}
__global__ void add_totals(int* y, const int* total, int n) {
  int i = blockIdx.x * 64 + threadIdx.x;
  if (blockIdx.x && i < n) y[i] += total[blockIdx.x - 1];  // line: scans
}
bool scans(bool bug) {
  const int n = 1000, blocks = (n + 63) / 64;
  std::vector<int> x(n);
  for (int i = 0; i < n; i++) x[i] = i % 7 - 2;
  int *d_x = upload(x), *d_y, *d_total;
  CHECK(cudaMallocManaged(&d_y, n * sizeof(int)));
  CHECK(cudaMalloc(&d_total, blocks * sizeof(int)));
  scan_block<<<bug ? blocks - 1 : blocks, 64>>>(d_x, d_y, d_total, n);
  scan_block<<<1, 64>>>(d_total, d_total, nullptr, bug ? blocks - 1 : blocks);
  add_totals<<<blocks, 64>>>(d_y, d_total + (bug ? 1 : 0), n);
  CHECK(cudaDeviceSynchronize());
  for (int i = 0, sum = 0; i < n && !bug; i++)
    if (d_y[i] != (sum += x[i])) return false;
  return true;
}

int main(int argc, char** argv) {
  const Case cases[] = {{"bfs", bfs}, {"hotspot", hotspot}, {"lud", lud}, {"nw", nw}, {"srad", srad}, {"backprop", backprop},
                        {"kmeans", kmeans}, {"pathfinder", pathfinder}, {"sdk_reduction", sdk_reduction}, {"bitonic", bitonic},
                        {"convolution", convolution}, {"scans", scans}};
  return choose(cases, sizeof cases / sizeof *cases, argc, argv);
}
