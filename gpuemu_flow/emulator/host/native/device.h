// What the imaginary GPU is like, as libcudart and libcuda tell it; their attributes have equal numbers.
#pragma once
#include "gpuemu.h"

#include <driver_types.h>

#include <algorithm>
#include <chrono>

namespace {
constexpr int kProcessors = 4;  // few, so that grids that are sized by it stay small
int optin() { int cc = gpuemu_architecture(); return (cc >= 90 ? 227 : cc == 80 || cc == 87 ? 163 : cc >= 80 ? 99 : cc >= 75 ? 64 : 96) << 10; }
int threads_of_processor() { int cc = gpuemu_architecture(); return cc == 75 ? 1024 : cc == 86 || cc == 87 || cc == 89 || cc >= 120 ? 1536 : 2048; }
int attribute(int which, bool* known) {
  int cc = gpuemu_architecture();
  *known = true;
  switch (which) {
    case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: return 1024;
    case cudaDevAttrMaxBlockDimZ: return 64;
    case cudaDevAttrMaxGridDimX: case cudaDevAttrMaxPitch: return 0x7fffffff;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: return 65535;
    case cudaDevAttrMaxSharedMemoryPerBlock: return 48 << 10;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return optin();
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return optin() + 1024;
    case cudaDevAttrReservedSharedMemoryPerBlock: return 1024;
    case cudaDevAttrTotalConstantMemory: return 65536;
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
    case cudaDevAttrClockRate: return 1410000;
    case cudaDevAttrMemoryClockRate: return 1215000;
    case cudaDevAttrGlobalMemoryBusWidth: return 5120;
    case cudaDevAttrL2CacheSize: return 40 << 20;
    case cudaDevAttrMultiProcessorCount: return kProcessors;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return threads_of_processor();
    case cudaDevAttrMaxBlocksPerMultiprocessor: return 32;
    case cudaDevAttrComputeCapabilityMajor: return cc / 10;
    case cudaDevAttrComputeCapabilityMinor: return cc % 10;
    case cudaDevAttrAsyncEngineCount: return 2;
    case cudaDevAttrPciBusId: return 1;
    case cudaDevAttrTextureAlignment: case cudaDevAttrSurfaceAlignment: return 512;
    case cudaDevAttrClusterLaunch: return cc >= 90;
    case cudaDevAttrCanMapHostMemory: case cudaDevAttrConcurrentKernels: case cudaDevAttrUnifiedAddressing: case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentManagedAccess: case cudaDevAttrCooperativeLaunch: case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrGlobalL1CacheSupported: case cudaDevAttrLocalL1CacheSupported: case cudaDevAttrComputePreemptionSupported:
    case cudaDevAttrMemoryPoolsSupported: case cudaDevAttrHostRegisterSupported: case cudaDevAttrGpuOverlap: return 1;
    default: *known = which > 0 && which < 200; return 0;
  }
}
int occupancy(GpuKernel* k, int threads, size_t shared) {
  if (threads < 1 || threads > 1024) return 0;
  int warps = (threads + 31) / 32, most = std::min(32, threads_of_processor() / (warps * 32));
  most = std::min(most, 65536 / std::max(1, (int)k->registers * warps * 32));
  return std::min<int>(most, (optin() + 1024) / (int)(k->shared + shared + 1024));
}
struct Stream { unsigned flags; int priority; };
struct Event { double at; bool timed; };
inline double now() { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
size_t pitched(size_t width) { return (width + 511) & ~(size_t)511; }
}  // namespace
