// Types of cuBLAS, where the toolkit lacks them: PyTorch's headers for CUDA include them.
#pragma once
#include <cuda_runtime_api.h>
#include <library_types.h>
typedef struct cublasContext* cublasHandle_t;
typedef enum { CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_NOT_INITIALIZED = 1, CUBLAS_STATUS_ALLOC_FAILED = 3,
  CUBLAS_STATUS_INVALID_VALUE = 7, CUBLAS_STATUS_ARCH_MISMATCH = 8, CUBLAS_STATUS_MAPPING_ERROR = 11,
  CUBLAS_STATUS_EXECUTION_FAILED = 13, CUBLAS_STATUS_INTERNAL_ERROR = 14, CUBLAS_STATUS_NOT_SUPPORTED = 15,
  CUBLAS_STATUS_LICENSE_ERROR = 16 } cublasStatus_t;
typedef enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1, CUBLAS_OP_C = 2 } cublasOperation_t;
typedef enum { CUBLAS_DEFAULT_MATH = 0, CUBLAS_TENSOR_OP_MATH = 1, CUBLAS_PEDANTIC_MATH = 2, CUBLAS_TF32_TENSOR_OP_MATH = 3 } cublasMath_t;
typedef enum { CUBLAS_GEMM_DEFAULT = -1, CUBLAS_GEMM_DEFAULT_TENSOR_OP = 99 } cublasGemmAlgo_t;
typedef enum { CUBLAS_COMPUTE_16F = 64, CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_64F = 70, CUBLAS_COMPUTE_32F_FAST_16F = 74,
  CUBLAS_COMPUTE_32F_FAST_16BF = 75, CUBLAS_COMPUTE_32F_FAST_TF32 = 77 } cublasComputeType_t;
typedef enum { CUBLAS_POINTER_MODE_HOST = 0, CUBLAS_POINTER_MODE_DEVICE = 1 } cublasPointerMode_t;
typedef enum { CUBLAS_SIDE_LEFT = 0, CUBLAS_SIDE_RIGHT = 1 } cublasSideMode_t;
typedef enum { CUBLAS_FILL_MODE_LOWER = 0, CUBLAS_FILL_MODE_UPPER = 1, CUBLAS_FILL_MODE_FULL = 2 } cublasFillMode_t;
typedef enum { CUBLAS_DIAG_NON_UNIT = 0, CUBLAS_DIAG_UNIT = 1 } cublasDiagType_t;
typedef cudaDataType cublasDataType_t;
#ifdef __cplusplus
extern "C" {
#endif
cublasStatus_t cublasCreate_v2(cublasHandle_t*);
cublasStatus_t cublasDestroy_v2(cublasHandle_t);
cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int*);
cublasStatus_t cublasSetStream_v2(cublasHandle_t, cudaStream_t);
cublasStatus_t cublasGetStream_v2(cublasHandle_t, cudaStream_t*);
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t);
cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t, cublasPointerMode_t);
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void*, size_t);
cublasStatus_t cublasSetVector(int, int, const void*, int, void*, int);
cublasStatus_t cublasGetVector(int, int, const void*, int, void*, int);
cublasStatus_t cublasSetMatrix(int, int, int, const void*, int, void*, int);
cublasStatus_t cublasGetMatrix(int, int, int, const void*, int, void*, int);
const char* cublasGetStatusName(cublasStatus_t);
const char* cublasGetStatusString(cublasStatus_t);
#define GPUEMU_BOTH(P, p, T) \
  cublasStatus_t cublas##P##gemm_v2(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const T*, const T*, int, const T*, int, const T*, T*, int); \
  cublasStatus_t cublas##P##gemmBatched(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const T*, const T* const[], int, const T* const[], int, const T*, T* const[], int, int); \
  cublasStatus_t cublas##P##gemmStridedBatched(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const T*, const T*, int, long long, const T*, int, long long, const T*, T*, int, long long, int); \
  cublasStatus_t cublas##P##geam(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, const T*, const T*, int, const T*, const T*, int, T*, int); \
  cublasStatus_t cublas##P##gemv_v2(cublasHandle_t, cublasOperation_t, int, int, const T*, const T*, int, const T*, int, const T*, T*, int); \
  cublasStatus_t cublas##P##ger_v2(cublasHandle_t, int, int, const T*, const T*, int, const T*, int, T*, int); \
  cublasStatus_t cublas##P##axpy_v2(cublasHandle_t, int, const T*, const T*, int, T*, int); \
  cublasStatus_t cublas##P##copy_v2(cublasHandle_t, int, const T*, int, T*, int); \
  cublasStatus_t cublas##P##swap_v2(cublasHandle_t, int, T*, int, T*, int); \
  cublasStatus_t cublas##P##scal_v2(cublasHandle_t, int, const T*, T*, int); \
  cublasStatus_t cublas##P##dot_v2(cublasHandle_t, int, const T*, int, const T*, int, T*); \
  cublasStatus_t cublas##P##nrm2_v2(cublasHandle_t, int, const T*, int, T*); \
  cublasStatus_t cublas##P##asum_v2(cublasHandle_t, int, const T*, int, T*); \
  cublasStatus_t cublasI##p##amax_v2(cublasHandle_t, int, const T*, int, int*); \
  cublasStatus_t cublasI##p##amin_v2(cublasHandle_t, int, const T*, int, int*);
GPUEMU_BOTH(S, s, float)
GPUEMU_BOTH(D, d, double)
#undef GPUEMU_BOTH
struct __half;
cublasStatus_t cublasHgemm(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const struct __half*, const struct __half*, int, const struct __half*, int,
  const struct __half*, struct __half*, int);
cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*, const void*, cudaDataType, int, const void*, cudaDataType, int,
  const void*, void*, cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t);
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*, const void*, cudaDataType, int, long long, const void*,
  cudaDataType, int, long long, const void*, void*, cudaDataType, int, long long, int, cublasComputeType_t, cublasGemmAlgo_t);
#ifdef __cplusplus
}
#endif
#define cublasCreate cublasCreate_v2
#define cublasDestroy cublasDestroy_v2
#define cublasGetVersion cublasGetVersion_v2
#define cublasSetStream cublasSetStream_v2
#define cublasGetStream cublasGetStream_v2
#define cublasSetPointerMode cublasSetPointerMode_v2
#define cublasSetWorkspace cublasSetWorkspace_v2
#define cublasSgemm cublasSgemm_v2
#define cublasDgemm cublasDgemm_v2
#define cublasSgemv cublasSgemv_v2
#define cublasDgemv cublasDgemv_v2
#define cublasSger cublasSger_v2
#define cublasDger cublasDger_v2
#define cublasSaxpy cublasSaxpy_v2
#define cublasDaxpy cublasDaxpy_v2
#define cublasScopy cublasScopy_v2
#define cublasDcopy cublasDcopy_v2
#define cublasSswap cublasSswap_v2
#define cublasDswap cublasDswap_v2
#define cublasSscal cublasSscal_v2
#define cublasDscal cublasDscal_v2
#define cublasSdot cublasSdot_v2
#define cublasDdot cublasDdot_v2
#define cublasSnrm2 cublasSnrm2_v2
#define cublasDnrm2 cublasDnrm2_v2
#define cublasSasum cublasSasum_v2
#define cublasDasum cublasDasum_v2
#define cublasIsamax cublasIsamax_v2
#define cublasIdamax cublasIdamax_v2
#define cublasIsamin cublasIsamin_v2
#define cublasIdamin cublasIdamin_v2
