#ifdef GPUEMU_TRACERMODE
#include_next <ATen/TracerMode.h>
#endif
