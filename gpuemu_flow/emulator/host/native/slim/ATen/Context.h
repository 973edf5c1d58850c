#ifdef GPUEMU_CONTEXT
#include_next <ATen/Context.h>
#endif
