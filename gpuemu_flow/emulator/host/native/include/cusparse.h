#pragma once
#include <cuda_runtime_api.h>
#include <library_types.h>
typedef struct cusparseContext* cusparseHandle_t;
typedef enum { CUSPARSE_STATUS_SUCCESS = 0, CUSPARSE_STATUS_NOT_SUPPORTED = 10 } cusparseStatus_t;
#ifdef __cplusplus
extern "C"
#endif
const char* cusparseGetErrorString(cusparseStatus_t);
