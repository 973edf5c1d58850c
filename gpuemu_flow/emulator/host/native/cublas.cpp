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
typedef cublasOperation_t O;
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
// From the other end of a vector, as a negative increment asks, nothing is computed here.
S forwards(const char* name, int ix, int iy = 1) {
  if (ix > 0 && iy > 0) return kOk;
  gpuemu_unsupported(name);
  return CUBLAS_STATUS_NOT_SUPPORTED;
}
template <class T> S gemv(const char* name, cublasOperation_t o, int m, int n, double alpha, const T* A, int lda, const T* x, int ix, double beta, T* y, int iy) {
  if (m < 0 || n < 0 || lda < m) return CUBLAS_STATUS_INVALID_VALUE;
  if (S bad = forwards(name, ix, iy)) return bad;
  if (!m || !n) return kOk;
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
  if (S bad = forwards(name, ix, iy)) return bad;
  reads(name, x, n, sizeof(T), ix * sizeof(T));
  reads(name, y, n, sizeof(T), iy * sizeof(T));
  if (!writes(name, y, n, sizeof(T), iy * sizeof(T))) return CUBLAS_STATUS_EXECUTION_FAILED;
  x = at(x); y = at(y);
  for (int i = 0; i < n; i++) y[(size_t)i * iy] = (T)(a * x[(size_t)i * ix] + y[(size_t)i * iy]);
  return kOk;
}
template <class T> S copy(const char* name, int n, const T* x, int ix, T* y, int iy) {
  if (n <= 0) return kOk;
  if (S bad = forwards(name, ix, iy)) return bad;
  reads(name, x, n, sizeof(T), ix * sizeof(T));
  if (!writes(name, y, n, sizeof(T), iy * sizeof(T))) return CUBLAS_STATUS_EXECUTION_FAILED;
  x = at(x); y = at(y);
  for (int i = 0; i < n; i++) y[(size_t)i * iy] = x[(size_t)i * ix];
  return kOk;
}
template <class T> S swap(const char* name, int n, T* x, int ix, T* y, int iy) {
  if (n <= 0) return kOk;
  if (S bad = forwards(name, ix, iy)) return bad;
  std::vector<T> held(n);
  reads(name, x, n, sizeof(T), ix * sizeof(T));
  for (int i = 0; i < n; i++) held[i] = at(x)[(size_t)i * ix];
  S done = copy<T>(name, n, y, iy, x, ix);
  if (done != kOk || !writes(name, y, n, sizeof(T), iy * sizeof(T))) return CUBLAS_STATUS_EXECUTION_FAILED;
  for (int i = 0; i < n; i++) at(y)[(size_t)i * iy] = held[i];
  return kOk;
}
template <class T> S give(T* to, double v) { *at(to) = (T)v; gpuemu_mark(to, sizeof(T), kWritten); return kOk; }
// The sum of products; of a vector with itself, as nrm2 gives it, its root.
template <class T> S dot(const char* name, int n, const T* x, int ix, const T* y, int iy, T* to, bool root) {
  if (S bad = forwards(name, ix, iy)) return bad;
  double sum = 0;
  if (n > 0) { reads(name, x, n, sizeof(T), ix * sizeof(T)); if (y != x) reads(name, y, n, sizeof(T), iy * sizeof(T)); }
  x = at(x); y = at(y);
  for (int i = 0; i < n; i++) sum += (double)x[(size_t)i * ix] * y[(size_t)i * iy];
  return give(to, root ? std::sqrt(sum) : sum);
}
// The sum of absolute values, or with `sign` the place, from 1, of the largest (1) or smallest (-1).
template <class T, class R> S absolute(const char* name, int n, const T* x, int ix, int sign, R* to) {
  if (n <= 0) return give(to, 0);
  if (S bad = forwards(name, ix)) return bad;
  reads(name, x, n, sizeof(T), ix * sizeof(T));
  x = at(x);
  double sum = 0, best = 0;
  int place = 0;
  for (int i = 0; i < n; i++) {
    double v = std::abs((double)x[(size_t)i * ix]);
    sum += v;
    if (!place || v * sign > best * sign) { best = v; place = i + 1; }
  }
  return give(to, sign ? place : sum);
}
template <class T> S scal(const char* name, int n, double a, T* x, int ix) {
  if (n <= 0) return kOk;
  if (S bad = forwards(name, ix)) return bad;
  reads(name, x, n, sizeof(T), ix * sizeof(T));
  if (!writes(name, x, n, sizeof(T), ix * sizeof(T))) return CUBLAS_STATUS_EXECUTION_FAILED;
  x = at(x);
  for (int i = 0; i < n; i++) x[(size_t)i * ix] = (T)(a * x[(size_t)i * ix]);
  return kOk;
}
template <class T> S ger(const char* name, int m, int n, double alpha, const T* x, int ix, const T* y, int iy, T* A, int lda) {
  if (m < 0 || n < 0 || lda < m) return CUBLAS_STATUS_INVALID_VALUE;
  if (S bad = forwards(name, ix, iy)) return bad;
  if (!m || !n) return kOk;
  reads(name, x, m, sizeof(T), ix * sizeof(T));
  reads(name, y, n, sizeof(T), iy * sizeof(T));
  reads(name, A, n, m * sizeof(T), lda * sizeof(T));
  if (!writes(name, A, n, m * sizeof(T), lda * sizeof(T))) return CUBLAS_STATUS_EXECUTION_FAILED;
  x = at(x); y = at(y); A = at(A);
  for (int j = 0; j < n; j++)
    for (int i = 0; i < m; i++) A[(size_t)j * lda + i] = (T)(A[(size_t)j * lda + i] + alpha * x[(size_t)i * ix] * y[(size_t)j * iy]);
  return kOk;
}
template <class T> S geam(const char* name, bool ta, bool tb, int m, int n, double alpha, const T* A, int lda, double beta, const T* B, int ldb, T* C, int ldc) {
  bool small = (alpha != 0 && lda < (ta ? n : m)) || (beta != 0 && ldb < (tb ? n : m)) || ldc < m;
  if (m < 0 || n < 0 || small) return CUBLAS_STATUS_INVALID_VALUE;
  if (!m || !n) return kOk;
  if (alpha != 0) reads(name, A, ta ? m : n, (ta ? n : m) * sizeof(T), lda * sizeof(T));
  if (beta != 0) reads(name, B, tb ? m : n, (tb ? n : m) * sizeof(T), ldb * sizeof(T));
  if (!writes(name, C, n, m * sizeof(T), ldc * sizeof(T))) return CUBLAS_STATUS_EXECUTION_FAILED;
  A = at(A); B = at(B); C = at(C);
  for (int j = 0; j < n; j++)
    for (int i = 0; i < m; i++) {
      double a = alpha != 0 ? alpha * A[ta ? (size_t)i * lda + j : (size_t)j * lda + i] : 0, b = beta != 0 ? beta * B[tb ? (size_t)i * ldb + j : (size_t)j * ldb + i] : 0;
      C[(size_t)j * ldc + i] = (T)(a + b);
    }
  return kOk;
}
template <class T> S gemms(const char* name, bool ta, bool tb, int m, int n, int k, double alpha, const T* const* A, int lda, const T* const* B, int ldb, double beta,
                           T* const* C, int ldc, int count) {
  if (count < 0) return CUBLAS_STATUS_INVALID_VALUE;
  if (!count) return kOk;
  reads(name, A, 1, count * sizeof *A, 0);  // the pointers are the device's, too
  reads(name, B, 1, count * sizeof *B, 0);
  reads(name, C, 1, count * sizeof *C, 0);
  for (int z = 0; z < count; z++) {
    S done = gemm(name, ta, tb, m, n, k, alpha, at(A)[z], type<T>(), lda, 0, at(B)[z], type<T>(), ldb, 0, beta, at(C)[z], type<T>(), ldc, 0, 1);
    if (done != kOk) return done;
  }
  return kOk;
}
// What the host and the device hold of a vector or matrix, each as columns of some bytes.
S moved(const char* name, int columns, size_t length, const void* from, size_t from_step, void* to, size_t to_step, int kind) {
  return gpuemu_copy(to, from, length, columns, to_step, from_step, kind, name) ? CUBLAS_STATUS_MAPPING_ERROR : kOk;
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
#define BOTH(P, p, T)                                                                                                                                     \
  S cublas##P##gemm_v2(cublasHandle_t, O x, O y, int m, int n, int k, const T* al, const T* A, int lda, const T* B, int ldb, const T* be, T* C, int ldc) {  \
    return gemm("cublas" #P "gemm", x, y, m, n, k, *at(al), A, type<T>(), lda, 0, B, type<T>(), ldb, 0, *at(be), C, type<T>(), ldc, 0, 1);                 \
  }                                                                                                                                                       \
  S cublas##P##gemmBatched(cublasHandle_t, O x, O y, int m, int n, int k, const T* al, const T* const A[], int lda, const T* const B[], int ldb,            \
                           const T* be, T* const C[], int ldc, int count) {                                                                               \
    return gemms("cublas" #P "gemmBatched", x, y, m, n, k, *at(al), A, lda, B, ldb, *at(be), C, ldc, count);                                               \
  }                                                                                                                                                       \
  S cublas##P##gemmStridedBatched(cublasHandle_t, O x, O y, int m, int n, int k, const T* al, const T* A, int lda, long long sa, const T* B, int ldb,      \
                                  long long sb, const T* be, T* C, int ldc, long long sc, int count) {                                                    \
    return gemm("cublas" #P "gemmStridedBatched", x, y, m, n, k, *at(al), A, type<T>(), lda, sa, B, type<T>(), ldb, sb, *at(be), C, type<T>(), ldc, sc,     \
                count);                                                                                                                                   \
  }                                                                                                                                                       \
  S cublas##P##geam(cublasHandle_t, O x, O y, int m, int n, const T* al, const T* A, int lda, const T* be, const T* B, int ldb, T* C, int ldc) {            \
    return geam("cublas" #P "geam", x, y, m, n, *at(al), A, lda, *at(be), B, ldb, C, ldc);                                                                 \
  }                                                                                                                                                       \
  S cublas##P##gemv_v2(cublasHandle_t, O o, int m, int n, const T* al, const T* A, int lda, const T* x, int ix, const T* be, T* y, int iy) {                \
    return gemv("cublas" #P "gemv", o, m, n, *at(al), A, lda, x, ix, *at(be), y, iy);                                                                      \
  }                                                                                                                                                       \
  S cublas##P##ger_v2(cublasHandle_t, int m, int n, const T* al, const T* x, int ix, const T* y, int iy, T* A, int lda) {                                  \
    return ger("cublas" #P "ger", m, n, *at(al), x, ix, y, iy, A, lda);                                                                                    \
  }                                                                                                                                                       \
  S cublas##P##axpy_v2(cublasHandle_t, int n, const T* a, const T* x, int ix, T* y, int iy) { return axpy("cublas" #P "axpy", n, *at(a), x, ix, y, iy); }   \
  S cublas##P##copy_v2(cublasHandle_t, int n, const T* x, int ix, T* y, int iy) { return copy("cublas" #P "copy", n, x, ix, y, iy); }                       \
  S cublas##P##swap_v2(cublasHandle_t, int n, T* x, int ix, T* y, int iy) { return swap("cublas" #P "swap", n, x, ix, y, iy); }                             \
  S cublas##P##scal_v2(cublasHandle_t, int n, const T* a, T* x, int ix) { return scal("cublas" #P "scal", n, *at(a), x, ix); }                              \
  S cublas##P##dot_v2(cublasHandle_t, int n, const T* x, int ix, const T* y, int iy, T* to) {                                                              \
    return dot("cublas" #P "dot", n, x, ix, y, iy, to, false);                                                                                            \
  }                                                                                                                                                       \
  S cublas##P##nrm2_v2(cublasHandle_t, int n, const T* x, int ix, T* to) { return dot("cublas" #P "nrm2", n, x, ix, x, ix, to, true); }                     \
  S cublas##P##asum_v2(cublasHandle_t, int n, const T* x, int ix, T* to) { return absolute("cublas" #P "asum", n, x, ix, 0, to); }                          \
  S cublasI##p##amax_v2(cublasHandle_t, int n, const T* x, int ix, int* to) { return absolute("cublasI" #p "amax", n, x, ix, 1, to); }                      \
  S cublasI##p##amin_v2(cublasHandle_t, int n, const T* x, int ix, int* to) { return absolute("cublasI" #p "amin", n, x, ix, -1, to); }
BOTH(S, s, float)
BOTH(D, d, double)
S cublasSetVector(int n, int size, const void* x, int ix, void* y, int iy) { return ix <= 0 || iy <= 0 ? CUBLAS_STATUS_INVALID_VALUE : moved("cublasSetVector", n, size, x, (size_t)ix * size, y, (size_t)iy * size, kHostToDevice); }
S cublasGetVector(int n, int size, const void* x, int ix, void* y, int iy) { return ix <= 0 || iy <= 0 ? CUBLAS_STATUS_INVALID_VALUE : moved("cublasGetVector", n, size, x, (size_t)ix * size, y, (size_t)iy * size, kDeviceToHost); }
S cublasSetMatrix(int m, int n, int size, const void* A, int lda, void* B, int ldb) {
  return moved("cublasSetMatrix", n, (size_t)m * size, A, (size_t)lda * size, B, (size_t)ldb * size, kHostToDevice);
}
S cublasGetMatrix(int m, int n, int size, const void* A, int lda, void* B, int ldb) {
  return moved("cublasGetMatrix", n, (size_t)m * size, A, (size_t)lda * size, B, (size_t)ldb * size, kDeviceToHost);
}
const char* cublasGetStatusString(S s) { return cublasGetStatusName(s); }
const char* cublasGetStatusName(S s) {
  switch (s) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_MAPPING_ERROR: return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "unknown cuBLAS status";
  }
}
S cublasHgemm(cublasHandle_t, cublasOperation_t x, cublasOperation_t y, int m, int n, int k, const __half* al, const __half* A, int lda, const __half* B, int ldb,
              const __half* be, __half* C, int ldc) {
  return gemm("cublasHgemm", x, y, m, n, k, __half2float(*at(al)), A, CUDA_R_16F, lda, 0, B, CUDA_R_16F, ldb, 0, __half2float(*at(be)), C, CUDA_R_16F, ldc, 0, 1);
}
S cublasGemmEx(cublasHandle_t, cublasOperation_t x, cublasOperation_t y, int m, int n, int k, const void* al, const void* A, cudaDataType at, int lda, const void* B,
               cudaDataType bt, int ldb, const void* be, void* C, cudaDataType ct, int ldc, cublasComputeType_t c, cublasGemmAlgo_t) {
  return gemm("cublasGemmEx", x, y, m, n, k, scale(al, c), A, at, lda, 0, B, bt, ldb, 0, scale(be, c), C, ct, ldc, 0, 1);
}
S cublasGemmStridedBatchedEx(cublasHandle_t, cublasOperation_t x, cublasOperation_t y, int m, int n, int k, const void* al, const void* A, cudaDataType at, int lda,
                             long long sa, const void* B, cudaDataType bt, int ldb, long long sb, const void* be, void* C, cudaDataType ct, int ldc, long long sc,
                             int count, cublasComputeType_t c, cublasGemmAlgo_t) {
  return gemm("cublasGemmStridedBatchedEx", x, y, m, n, k, scale(al, c), A, at, lda, sa, B, bt, ldb, sb, scale(be, c), C, ct, ldc, sc, count);
}
}
