// Stands for libcublas: the products and vector operations that programs call beside their kernels,
// computed by loops on the CPU. Matrices are column-major. What is not here does not link.
#include "gpuemu.h"

#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cublas_v2.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <vector>

namespace {
typedef cublasStatus_t S;
constexpr S kOk = CUBLAS_STATUS_SUCCESS;
struct Handle { cudaStream_t stream; cublasPointerMode_t mode; };

double load(const void* p, cudaDataType t, size_t i) {
  switch (t) {
    case CUDA_R_64F: return ((const double*)p)[i];
    case CUDA_R_16F: return (double)__half2float(((const __half*)p)[i]);
    case CUDA_R_16BF: return (double)__bfloat162float(((const __nv_bfloat16*)p)[i]);
    default: return ((const float*)p)[i];
  }
}
void store(void* p, cudaDataType t, size_t i, double v) {
  switch (t) {
    case CUDA_R_64F: ((double*)p)[i] = v; break;
    case CUDA_R_16F: ((__half*)p)[i] = __float2half((float)v); break;
    case CUDA_R_16BF: ((__nv_bfloat16*)p)[i] = __float2bfloat16((float)v); break;
    default: ((float*)p)[i] = (float)v;
  }
}
size_t bytes_of(cudaDataType t) { return t == CUDA_R_64F ? 8 : t == CUDA_R_32F ? 4 : 2; }
bool known(cudaDataType t) { return t == CUDA_R_64F || t == CUDA_R_32F || t == CUDA_R_16F || t == CUDA_R_16BF; }

// What a matrix or vector reads must be written, as for a kernel of ours; what it writes then is.
void reads(const char* name, const void* p, size_t columns, size_t length, size_t step) {
  size_t bad = 0, first = 0, at = 0;
  for (size_t j = 0; j < columns; j++) {
    size_t n = gpuemu_unwritten((const char*)p + j * step, length, &first);
    if (n && !bad) at = j * step + first;
    bad += n;
  }
  GpuBlock b;
  if (gpuemu_find(p, &b)) {
    char text[160];
    snprintf(text, sizeof text, "%s reads a matrix or vector at %p, which is no memory of the device", name, p);
    gpuemu_finding("mem", "out-of-bounds", text);
  } else if ((uint64_t)p - kBase + (columns - 1) * step + length > b.start + b.size) {
    char text[160];
    snprintf(text, sizeof text, "%s reads past the end of {%llu}", name, (unsigned long long)b.start);
    gpuemu_finding("mem", "out-of-bounds", text);
  } else if (bad) {
    char text[200];
    snprintf(text, sizeof text, "%s reads %zu bytes of {%llu} that nobody wrote; the first is byte %llu", name, bad, (unsigned long long)b.start,
             (unsigned long long)((uint64_t)p - kBase - b.start + at));
    gpuemu_finding("init", "never-written", text);
  }
}
bool writes(const char* name, void* p, size_t columns, size_t length, size_t step) {
  GpuBlock b;
  if (gpuemu_find(p, &b) || (uint64_t)p - kBase + (columns - 1) * step + length > b.start + b.size) {
    char text[160];
    snprintf(text, sizeof text, "%s writes outside of the device's memory, or past the end of an allocation", name);
    gpuemu_finding("mem", "out-of-bounds", text);
    return false;
  }
  for (size_t j = 0; j < columns; j++) gpuemu_mark((char*)p + j * step, length, kWritten);
  return true;
}

S gemm(const char* name, bool ta, bool tb, int m, int n, int k, double alpha, const void* A, cudaDataType at, int lda, long long sa, const void* B,
       cudaDataType bt, int ldb, long long sb, double beta, void* C, cudaDataType ct, int ldc, long long sc, int count) {
  if (m < 0 || n < 0 || k < 0 || lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m) return CUBLAS_STATUS_INVALID_VALUE;
  if (!known(at) || !known(bt) || !known(ct)) { gpuemu_unsupported(name); return CUBLAS_STATUS_NOT_SUPPORTED; }
  if (!m || !n) return kOk;
  std::vector<double> a((size_t)m * k), b((size_t)k * n);
  for (int z = 0; z < count; z++) {
    const char *pa = (const char*)A + z * sa * bytes_of(at), *pb = (const char*)B + z * sb * bytes_of(bt);
    char* pc = (char*)C + z * sc * bytes_of(ct);
    reads(name, pa, ta ? m : k, (ta ? k : m) * bytes_of(at), lda * bytes_of(at));
    reads(name, pb, tb ? k : n, (tb ? n : k) * bytes_of(bt), ldb * bytes_of(bt));
    if (beta != 0) reads(name, pc, n, m * bytes_of(ct), ldc * bytes_of(ct));
    if (!writes(name, pc, n, m * bytes_of(ct), ldc * bytes_of(ct))) return CUBLAS_STATUS_EXECUTION_FAILED;
    pa = (const char*)gpuemu_host(pa); pb = (const char*)gpuemu_host(pb); pc = (char*)gpuemu_host(pc);
    for (int i = 0; i < m; i++) for (int l = 0; l < k; l++) a[(size_t)i * k + l] = load(pa, at, ta ? (size_t)i * lda + l : (size_t)l * lda + i);
    for (int j = 0; j < n; j++) for (int l = 0; l < k; l++) b[(size_t)j * k + l] = load(pb, bt, tb ? (size_t)l * ldb + j : (size_t)j * ldb + l);
    for (int j = 0; j < n; j++)
      for (int i = 0; i < m; i++) {
        double sum = 0;
        const double *x = &a[(size_t)i * k], *y = &b[(size_t)j * k];
        for (int l = 0; l < k; l++) sum += x[l] * y[l];
        size_t to = (size_t)j * ldc + i;
        store(pc, ct, to, alpha * sum + (beta != 0 ? beta * load(pc, ct, to) : 0));
      }
  }
  return kOk;
}
double scale(const void* p, cublasComputeType_t c) {
  p = gpuemu_host(p);
  return c == CUBLAS_COMPUTE_64F ? *(const double*)p : c == CUBLAS_COMPUTE_16F ? (double)__half2float(*(const __half*)p) : (double)*(const float*)p;
}
template <class T> constexpr cudaDataType type() { return std::is_same<T, double>::value ? CUDA_R_64F : CUDA_R_32F; }
template <class T> T* at(T* p) { return (T*)gpuemu_host(p); }
template <class T> S gemv(const char* name, cublasOperation_t o, int m, int n, double alpha, const T* A, int lda, const T* x, int ix, double beta, T* y, int iy) {
  bool t = o != CUBLAS_OP_N;
  int rows = t ? n : m, columns = t ? m : n;
  reads(name, A, n, m * sizeof(T), lda * sizeof(T));
  reads(name, x, columns, sizeof(T), ix * sizeof(T));
  if (beta != 0) reads(name, y, rows, sizeof(T), iy * sizeof(T));
  if (!writes(name, y, rows, sizeof(T), iy * sizeof(T))) return CUBLAS_STATUS_EXECUTION_FAILED;
  A = at(A); x = at(x); y = at(y);
  for (int i = 0; i < rows; i++) {
    double sum = 0;
    for (int j = 0; j < columns; j++) sum += (double)A[t ? (size_t)i * lda + j : (size_t)j * lda + i] * x[(size_t)j * ix];
    y[(size_t)i * iy] = (T)(alpha * sum + (beta != 0 ? beta * y[(size_t)i * iy] : 0));
  }
  return kOk;
}
template <class T> S axpy(const char* name, int n, double a, const T* x, int ix, T* y, int iy) {
  if (n <= 0) return kOk;
  reads(name, x, n, sizeof(T), ix * sizeof(T));
  reads(name, y, n, sizeof(T), iy * sizeof(T));
  if (!writes(name, y, n, sizeof(T), iy * sizeof(T))) return CUBLAS_STATUS_EXECUTION_FAILED;
  x = at(x); y = at(y);
  for (int i = 0; i < n; i++) y[(size_t)i * iy] = (T)(a * x[(size_t)i * ix] + y[(size_t)i * iy]);
  return kOk;
}
template <class T> S result(cublasHandle_t, T* to, double v) { *at(to) = (T)v; gpuemu_mark(to, sizeof(T), kWritten); return kOk; }
template <class T> S dot(const char* name, cublasHandle_t h, int n, const T* x, int ix, const T* y, int iy, T* to) {
  double sum = 0;
  if (n > 0) { reads(name, x, n, sizeof(T), ix * sizeof(T)); reads(name, y, n, sizeof(T), iy * sizeof(T)); }
  x = at(x); y = at(y);
  for (int i = 0; i < n; i++) sum += (double)x[(size_t)i * ix] * y[(size_t)i * iy];
  return result(h, to, sum);
}
template <class T> S scal(const char* name, int n, double a, T* x, int ix) {
  if (n <= 0) return kOk;
  reads(name, x, n, sizeof(T), ix * sizeof(T));
  if (!writes(name, x, n, sizeof(T), ix * sizeof(T))) return CUBLAS_STATUS_EXECUTION_FAILED;
  x = at(x);
  for (int i = 0; i < n; i++) x[(size_t)i * ix] = (T)(a * x[(size_t)i * ix]);
  return kOk;
}
}  // namespace

extern "C" {
S cublasCreate_v2(cublasHandle_t* h) { *h = (cublasHandle_t) new Handle{nullptr, CUBLAS_POINTER_MODE_HOST}; return kOk; }
S cublasDestroy_v2(cublasHandle_t) { return kOk; }
S cublasSetStream_v2(cublasHandle_t, cudaStream_t) { return kOk; }
S cublasGetStream_v2(cublasHandle_t, cudaStream_t* s) { *s = nullptr; return kOk; }
S cublasSetMathMode(cublasHandle_t, cublasMath_t) { return kOk; }
S cublasSetPointerMode_v2(cublasHandle_t, cublasPointerMode_t) { return kOk; }  // device memory is the host's, too
S cublasGetVersion_v2(cublasHandle_t, int* v) { *v = 130000; return kOk; }
S cublasSetWorkspace_v2(cublasHandle_t, void*, size_t) { return kOk; }
S cublasSgemm_v2(cublasHandle_t, cublasOperation_t x, cublasOperation_t y, int m, int n, int k, const float* al, const float* A, int lda, const float* B, int ldb,
                 const float* be, float* C, int ldc) {
  return gemm("cublasSgemm", x, y, m, n, k, *at(al), A, CUDA_R_32F, lda, 0, B, CUDA_R_32F, ldb, 0, *at(be), C, CUDA_R_32F, ldc, 0, 1);
}
S cublasDgemm_v2(cublasHandle_t, cublasOperation_t x, cublasOperation_t y, int m, int n, int k, const double* al, const double* A, int lda, const double* B, int ldb,
                 const double* be, double* C, int ldc) {
  return gemm("cublasDgemm", x, y, m, n, k, *at(al), A, CUDA_R_64F, lda, 0, B, CUDA_R_64F, ldb, 0, *at(be), C, CUDA_R_64F, ldc, 0, 1);
}
S cublasHgemm(cublasHandle_t, cublasOperation_t x, cublasOperation_t y, int m, int n, int k, const __half* al, const __half* A, int lda, const __half* B, int ldb,
              const __half* be, __half* C, int ldc) {
  return gemm("cublasHgemm", x, y, m, n, k, __half2float(*at(al)), A, CUDA_R_16F, lda, 0, B, CUDA_R_16F, ldb, 0, __half2float(*at(be)), C, CUDA_R_16F, ldc, 0, 1);
}
S cublasGemmEx(cublasHandle_t, cublasOperation_t x, cublasOperation_t y, int m, int n, int k, const void* al, const void* A, cudaDataType at, int lda, const void* B,
               cudaDataType bt, int ldb, const void* be, void* C, cudaDataType ct, int ldc, cublasComputeType_t c, cublasGemmAlgo_t) {
  return gemm("cublasGemmEx", x, y, m, n, k, scale(al, c), A, at, lda, 0, B, bt, ldb, 0, scale(be, c), C, ct, ldc, 0, 1);
}
S cublasSgemmStridedBatched(cublasHandle_t, cublasOperation_t x, cublasOperation_t y, int m, int n, int k, const float* al, const float* A, int lda, long long sa,
                            const float* B, int ldb, long long sb, const float* be, float* C, int ldc, long long sc, int count) {
  return gemm("cublasSgemmStridedBatched", x, y, m, n, k, *at(al), A, CUDA_R_32F, lda, sa, B, CUDA_R_32F, ldb, sb, *at(be), C, CUDA_R_32F, ldc, sc, count);
}
S cublasGemmStridedBatchedEx(cublasHandle_t, cublasOperation_t x, cublasOperation_t y, int m, int n, int k, const void* al, const void* A, cudaDataType at, int lda,
                             long long sa, const void* B, cudaDataType bt, int ldb, long long sb, const void* be, void* C, cudaDataType ct, int ldc, long long sc,
                             int count, cublasComputeType_t c, cublasGemmAlgo_t) {
  return gemm("cublasGemmStridedBatchedEx", x, y, m, n, k, scale(al, c), A, at, lda, sa, B, bt, ldb, sb, scale(be, c), C, ct, ldc, sc, count);
}
S cublasSgemv_v2(cublasHandle_t, cublasOperation_t o, int m, int n, const float* al, const float* A, int lda, const float* x, int ix, const float* be, float* y, int iy) {
  return gemv("cublasSgemv", o, m, n, *at(al), A, lda, x, ix, *at(be), y, iy);
}
S cublasDgemv_v2(cublasHandle_t, cublasOperation_t o, int m, int n, const double* al, const double* A, int lda, const double* x, int ix, const double* be, double* y, int iy) {
  return gemv("cublasDgemv", o, m, n, *at(al), A, lda, x, ix, *at(be), y, iy);
}
S cublasSaxpy_v2(cublasHandle_t, int n, const float* a, const float* x, int ix, float* y, int iy) { return axpy("cublasSaxpy", n, *at(a), x, ix, y, iy); }
S cublasDaxpy_v2(cublasHandle_t, int n, const double* a, const double* x, int ix, double* y, int iy) { return axpy("cublasDaxpy", n, *at(a), x, ix, y, iy); }
S cublasSdot_v2(cublasHandle_t h, int n, const float* x, int ix, const float* y, int iy, float* to) { return dot("cublasSdot", h, n, x, ix, y, iy, to); }
S cublasDdot_v2(cublasHandle_t h, int n, const double* x, int ix, const double* y, int iy, double* to) { return dot("cublasDdot", h, n, x, ix, y, iy, to); }
S cublasSnrm2_v2(cublasHandle_t h, int n, const float* x, int ix, float* to) { float v; dot("cublasSnrm2", h, n, x, ix, x, ix, &v); return result(h, to, std::sqrt((double)v)); }
S cublasDnrm2_v2(cublasHandle_t h, int n, const double* x, int ix, double* to) { double v; dot("cublasDnrm2", h, n, x, ix, x, ix, &v); return result(h, to, std::sqrt(v)); }
S cublasSscal_v2(cublasHandle_t, int n, const float* a, float* x, int ix) { return scal("cublasSscal", n, *at(a), x, ix); }
S cublasDscal_v2(cublasHandle_t, int n, const double* a, double* x, int ix) { return scal("cublasDscal", n, *at(a), x, ix); }
}
