#ifdef GPUEMU_DEVICEGUARD
#include_next <ATen/DeviceGuard.h>
#endif
