// What all test programs share: `./program CASE [bug]` prints PASSED if its own check is content.
#pragma once
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CHECK(x)                                                                     \
  do {                                                                               \
    cudaError_t e_ = (x);                                                            \
    if (e_ != cudaSuccess) {                                                         \
      printf("%s:%d %s %s\n", __FILE__, __LINE__, cudaGetErrorName(e_), cudaGetErrorString(e_)); \
      exit(1);                                                                       \
    }                                                                                \
  } while (0)

struct Case { const char* name; bool (*run)(bool bug); };

inline int choose(const Case* cases, size_t count, int argc, char** argv) {
  bool bug = argc > 2 && !strcmp(argv[2], "bug");
  for (size_t i = 0; i < count; i++)
    if (argc > 1 && !strcmp(argv[1], cases[i].name)) {
      bool good = cases[i].run(bug);
      puts(good ? "PASSED" : "FAILED");
      return good ? 0 : 1;
    }
  return 2;
}

inline std::vector<float> numbers(int n, int step = 7) {
  std::vector<float> x(n);
  for (int i = 0; i < n; i++) x[i] = (float)(i * step % 23) - 11;
  return x;
}

template <class T> T* upload(const std::vector<T>& x) {
  T* d;
  CHECK(cudaMalloc(&d, x.size() * sizeof(T)));
  CHECK(cudaMemcpy(d, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice));
  return d;
}
template <class T> std::vector<T> download(const T* d, size_t n) {
  std::vector<T> x(n);
  CHECK(cudaMemcpy(x.data(), d, n * sizeof(T), cudaMemcpyDeviceToHost));
  return x;
}
