#ifdef GPUEMU_TENSORUTILS
#include_next <ATen/TensorUtils.h>
#endif
