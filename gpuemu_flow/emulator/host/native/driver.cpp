// Stands for libcuda, the driver's library: modules of PTX text (of NVRTC, numba, cuda-python), their
// launches, memory, streams and events. What is not here is a weak stub that says its name.
#include "device.h"

#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {
typedef CUresult R;
constexpr R kOk = CUDA_SUCCESS, kBad = CUDA_ERROR_INVALID_VALUE;
int context_;                                     // its address stands for the only context
CUcontext the_context() { return (CUcontext)&context_; }
thread_local std::vector<CUcontext> stack_;

R made(void* p) { return p ? kOk : CUDA_ERROR_OUT_OF_MEMORY; }
void* at(CUdeviceptr p) { return (void*)p; }
R status() { return (R)gpuemu_status(); }
R copy(void* to, const void* from, size_t n, int kind, const char* what, bool waits = true) {
  if (waits) gpuemu_synchronise();
  return (R)gpuemu_copy(to, from, n, 1, n, n, kind, what);
}
template <class T> R fill(CUdeviceptr p, T value, size_t width, size_t height, size_t pitch, const char* what) {
  return (R)gpuemu_fill(at(p), &value, sizeof value, width * sizeof value, height, pitch, what);
}
GpuModule* load(const void* image) {
  size_t size;
  if (*(const uint32_t*)image == 0x466243b1) image = ((const void* const*)image)[1];  // a wrapper of a fat binary
  if (*(const uint32_t*)image == 0xBA55ED50) size = ((const uint64_t*)image)[1] + ((const uint16_t*)image)[3];
  else size = *(const uint32_t*)image == 0x464c457f ? 64 : strlen((const char*)image);
  return gpuemu_load(&image, &size, 1);
}
R launch(GpuKernel* k, const uint32_t grid[3], const uint32_t block[3], const uint32_t cluster[3], unsigned shared, bool cooperative,
         void** arguments, void** extra) {
  if (!k) return CUDA_ERROR_INVALID_HANDLE;
  std::vector<char> parameters(k->bytes + 1);
  if (arguments) gpuemu_pack(k, arguments, parameters.data());
  else if (extra) {
    const void* data = nullptr;
    size_t size = 0;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
      if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) data = extra[1];
      if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *(size_t*)extra[1];
    }
    if (data) memcpy(parameters.data(), data, std::min<size_t>(size, k->bytes));
  } else if (k->count) return kBad;
  int e = gpuemu_launch(k, grid, block, cluster, shared, cooperative, parameters.data());
  return (R)(e == kInvalidConfiguration ? kInvalidValue : e);
}
R two_dimensions(const CUDA_MEMCPY2D* c, const char* what) {
  if (c->srcMemoryType == CU_MEMORYTYPE_ARRAY || c->dstMemoryType == CU_MEMORYTYPE_ARRAY) { gpuemu_unsupported("cuMemcpy2D of an array"); return CUDA_ERROR_NOT_SUPPORTED; }
  const char* from = c->srcMemoryType == CU_MEMORYTYPE_HOST ? (const char*)c->srcHost : (const char*)c->srcDevice;
  char* to = c->dstMemoryType == CU_MEMORYTYPE_HOST ? (char*)c->dstHost : (char*)c->dstDevice;
  size_t fp = c->srcPitch ? c->srcPitch : c->WidthInBytes, tp = c->dstPitch ? c->dstPitch : c->WidthInBytes;
  return (R)gpuemu_copy(to + c->dstY * tp + c->dstXInBytes, from + c->srcY * fp + c->srcXInBytes, c->WidthInBytes, c->Height, tp, fp, kDefault, what);
}
}  // namespace
#include "names.inc"

extern "C" {
R gpuemu_driver_missing(const char* name) { gpuemu_unsupported(name); return CUDA_ERROR_NOT_SUPPORTED; }
// ------------------------------------------------------------------ device and context
R cuInit(unsigned) { return kOk; }
R cuDriverGetVersion(int* v) { *v = CUDA_VERSION; return kOk; }
R cuDeviceGet(CUdevice* d, int n) { *d = 0; return n ? CUDA_ERROR_INVALID_DEVICE : kOk; }
R cuDeviceGetCount(int* n) { *n = 1; return kOk; }
R cuDeviceGetName(char* text, int n, CUdevice) { snprintf(text, n, "gpuemu-flow sm_%d (emulated)", gpuemu_architecture()); return kOk; }
R cuDeviceGetUuid(CUuuid* u, CUdevice) { memcpy(u->bytes, "gpuemu-flow-0000", 16); return kOk; }
R cuDeviceTotalMem(size_t* n, CUdevice) { size_t left; gpuemu_room(&left, n); return kOk; }
R cuDeviceGetAttribute(int* v, CUdevice_attribute a, CUdevice) { bool known; *v = attribute(a, &known); return known ? kOk : kBad; }
R cuDeviceComputeCapability(int* major, int* minor, CUdevice) { *major = gpuemu_architecture() / 10; *minor = gpuemu_architecture() % 10; return kOk; }
R cuDeviceCanAccessPeer(int* v, CUdevice, CUdevice) { *v = 0; return kOk; }
R cuDevicePrimaryCtxRetain(CUcontext* c, CUdevice) { *c = the_context(); return kOk; }
R cuDevicePrimaryCtxRelease(CUdevice) { return kOk; }
R cuDevicePrimaryCtxReset(CUdevice) { gpuemu_reset(); return kOk; }
R cuDevicePrimaryCtxSetFlags(CUdevice, unsigned) { return kOk; }
R cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) { *flags = 0; *active = 1; return kOk; }
R cuCtxCreate_v2(CUcontext* c, unsigned, CUdevice) { stack_.push_back(*c = the_context()); return kOk; }
#if CUDA_VERSION >= 13000
R cuCtxCreate(CUcontext* c, CUctxCreateParams*, unsigned, CUdevice) { stack_.push_back(*c = the_context()); return kOk; }
#endif
R cuCtxDestroy(CUcontext) { if (!stack_.empty()) stack_.pop_back(); return kOk; }
R cuCtxPushCurrent(CUcontext c) { stack_.push_back(c); return kOk; }
R cuCtxPopCurrent(CUcontext* c) { if (stack_.empty()) return CUDA_ERROR_INVALID_CONTEXT; if (c) *c = stack_.back(); stack_.pop_back(); return kOk; }
R cuCtxSetCurrent(CUcontext c) { stack_.clear(); if (c) stack_.push_back(c); return kOk; }
R cuCtxGetCurrent(CUcontext* c) { *c = stack_.empty() ? nullptr : stack_.back(); return kOk; }
R cuCtxGetDevice(CUdevice* d) { *d = 0; return kOk; }
R cuCtxGetDevice_v2(CUdevice* d, CUcontext) { *d = 0; return kOk; }
R cuCtxGetFlags(unsigned* f) { *f = 0; return kOk; }
R cuCtxGetApiVersion(CUcontext, unsigned* v) { *v = CUDA_VERSION; return kOk; }
R cuCtxSynchronize(void) { gpuemu_synchronise(); return status(); }
R cuCtxSetLimit(CUlimit, size_t) { return kOk; }
R cuCtxGetLimit(size_t* v, CUlimit) { *v = 8 << 20; return kOk; }
R cuCtxSetCacheConfig(CUfunc_cache) { return kOk; }
R cuCtxGetStreamPriorityRange(int* low, int* high) { if (low) *low = 0; if (high) *high = -5; return kOk; }
// ------------------------------------------------------------------ modules and functions
R cuModuleLoadData(CUmodule* m, const void* image) { *m = (CUmodule)load(image); return *m ? kOk : CUDA_ERROR_NO_BINARY_FOR_GPU; }
R cuModuleLoadDataEx(CUmodule* m, const void* image, unsigned, CUjit_option*, void**) { return cuModuleLoadData(m, image); }
R cuModuleLoadFatBinary(CUmodule* m, const void* image) { return cuModuleLoadData(m, image); }
R cuModuleLoad(CUmodule* m, const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  std::stringstream text;
  text << file.rdbuf();
  return cuModuleLoadData(m, text.str().c_str());
}
R cuModuleUnload(CUmodule m) { gpuemu_unload((GpuModule*)m); return kOk; }
R cuModuleGetFunction(CUfunction* f, CUmodule m, const char* name) {
  GpuKernel* k = gpuemu_kernel((GpuModule*)m, name);
  *f = (CUfunction)k;
  return k ? kOk : CUDA_ERROR_NOT_FOUND;
}
R cuModuleGetGlobal(CUdeviceptr* p, size_t* n, CUmodule m, const char* name) {
  GpuVariable* v = gpuemu_variable((GpuModule*)m, name);
  if (!v) return CUDA_ERROR_NOT_FOUND;
  if (p) *p = (CUdeviceptr)v->address;
  if (n) *n = v->size;
  return kOk;
}
R cuLibraryLoadData(CUlibrary* l, const void* code, CUjit_option*, void**, unsigned, CUlibraryOption*, void**, unsigned) { return cuModuleLoadData((CUmodule*)l, code); }
R cuLibraryUnload(CUlibrary l) { return cuModuleUnload((CUmodule)l); }
R cuLibraryGetKernel(CUkernel* k, CUlibrary l, const char* name) { return cuModuleGetFunction((CUfunction*)k, (CUmodule)l, name); }
R cuLibraryGetModule(CUmodule* m, CUlibrary l) { *m = (CUmodule)l; return kOk; }
R cuLibraryGetGlobal(CUdeviceptr* p, size_t* n, CUlibrary l, const char* name) { return cuModuleGetGlobal(p, n, (CUmodule)l, name); }
R cuKernelGetFunction(CUfunction* f, CUkernel k) { *f = (CUfunction)k; return kOk; }
R cuFuncGetName(const char** name, CUfunction f) { *name = ((GpuKernel*)f)->name; return kOk; }
R cuFuncGetAttribute(int* v, CUfunction_attribute a, CUfunction f) {
  auto* k = (GpuKernel*)f;
  switch (a) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *v = k->threads; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *v = k->shared; break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *v = k->local; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *v = k->registers; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *v = gpuemu_architecture(); break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *v = std::max(48 << 10, (int)k->dynamic); break;
    default: *v = 0;
  }
  return kOk;
}
R cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int v) {
  auto* k = (GpuKernel*)f;
  if (a != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return kOk;
  if (v < 0 || v + (int)k->shared > optin()) return kBad;
  k->dynamic = v;
  return kOk;
}
R cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return kOk; }
R cuKernelGetAttribute(int* v, CUfunction_attribute a, CUkernel k, CUdevice) { return cuFuncGetAttribute(v, a, (CUfunction)k); }
R cuKernelSetAttribute(CUfunction_attribute a, int v, CUkernel k, CUdevice) { return cuFuncSetAttribute((CUfunction)k, a, v); }
R cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, CUfunction f, int threads, size_t shared) { *n = occupancy((GpuKernel*)f, threads, shared); return kOk; }
R cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, CUfunction f, int threads, size_t shared, unsigned) { *n = occupancy((GpuKernel*)f, threads, shared); return kOk; }
R cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream, void** arguments, void** extra) {
  uint32_t grid[] = {gx, gy, gz}, block[] = {bx, by, bz}, alone[] = {0, 0, 0};
  return launch((GpuKernel*)f, grid, block, alone, shared, false, arguments, extra);
}
R cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream, void** arguments) {
  uint32_t grid[] = {gx, gy, gz}, block[] = {bx, by, bz}, alone[] = {0, 0, 0};
  return launch((GpuKernel*)f, grid, block, alone, shared, true, arguments, nullptr);
}
R cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction f, void** arguments, void** extra) {
  uint32_t grid[] = {c->gridDimX, c->gridDimY, c->gridDimZ}, block[] = {c->blockDimX, c->blockDimY, c->blockDimZ}, cluster[] = {0, 0, 0};
  bool cooperative = false;
  for (unsigned i = 0; i < c->numAttrs; i++) {
    auto& v = c->attrs[i].value;
    if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) { cluster[0] = v.clusterDim.x; cluster[1] = v.clusterDim.y; cluster[2] = v.clusterDim.z; }
    if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) cooperative = v.cooperative;
  }
  return launch((GpuKernel*)f, grid, block, cluster, c->sharedMemBytes, cooperative, arguments, extra);
}
R cuLaunchHostFunc(CUstream, CUhostFn f, void* a) { f(a); return kOk; }
// ------------------------------------------------------------------ linking: of one PTX text, which stays what it is
R cuLinkCreate(unsigned, CUjit_option*, void**, CUlinkState* s) { *s = (CUlinkState) new std::string; return kOk; }
R cuLinkAddData(CUlinkState s, CUjitInputType kind, void* data, size_t n, const char*, unsigned, CUjit_option*, void**) {
  auto* text = (std::string*)s;
  if (kind != CU_JIT_INPUT_PTX || !text->empty()) { gpuemu_unsupported("cuLinkAddData of more than one PTX text"); return CUDA_ERROR_NOT_SUPPORTED; }
  text->assign((const char*)data, strnlen((const char*)data, n));
  return kOk;
}
R cuLinkComplete(CUlinkState s, void** made, size_t* n) { *made = &(*(std::string*)s)[0]; *n = ((std::string*)s)->size() + 1; return kOk; }
R cuLinkDestroy(CUlinkState s) { delete (std::string*)s; return kOk; }
// ------------------------------------------------------------------ memory
R cuMemAlloc(CUdeviceptr* p, size_t n) { if (!n) return kBad; return made(*(void**)p = gpuemu_allocate(n, kUnwritten, 0, "cuMemAlloc")); }
R cuMemAllocAsync(CUdeviceptr* p, size_t n, CUstream) { return made(*(void**)p = gpuemu_allocate(n, kUnwritten, 0, "cuMemAllocAsync")); }
R cuMemAllocFromPoolAsync(CUdeviceptr* p, size_t n, CUmemoryPool, CUstream s) { return cuMemAllocAsync(p, n, s); }
R cuDeviceGetMemPool(CUmemoryPool* p, CUdevice) { *p = (CUmemoryPool)&context_; return kOk; }
R cuDeviceGetDefaultMemPool(CUmemoryPool* p, CUdevice d) { return cuDeviceGetMemPool(p, d); }
R cuDeviceSetMemPool(CUdevice, CUmemoryPool) { return kOk; }
R cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute, void*) { return kOk; }
R cuMemPoolGetAttribute(CUmemoryPool, CUmemPool_attribute a, void* v) { if (a < CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) *(int*)v = 1; else *(cuuint64_t*)v = 0; return kOk; }
R cuMemPoolTrimTo(CUmemoryPool, size_t) { return kOk; }
R cuMemAllocManaged(CUdeviceptr* p, size_t n, unsigned) { return made(*(void**)p = gpuemu_allocate(n, kWritten, kHostVisible, "cuMemAllocManaged")); }
R cuMemAllocHost(void** p, size_t n) { return made(*p = gpuemu_allocate(n, kWritten, kHostVisible, "cuMemAllocHost")); }
R cuMemHostAlloc(void** p, size_t n, unsigned) { return made(*p = gpuemu_allocate(n, kWritten, kHostVisible, "cuMemHostAlloc")); }
R cuMemHostGetDevicePointer(CUdeviceptr* d, void* h, unsigned) { *d = (CUdeviceptr)h; return gpuemu_find(h, nullptr) ? CUDA_ERROR_NOT_SUPPORTED : kOk; }
R cuMemHostRegister(void*, size_t, unsigned) { return kOk; }
R cuMemHostUnregister(void*) { return kOk; }
R cuMemAllocPitch(CUdeviceptr* p, size_t* pitch, size_t w, size_t h, unsigned) { *pitch = pitched(w); return made(*(void**)p = gpuemu_allocate(*pitch * h, kUnwritten, 0, "cuMemAllocPitch")); }
R cuMemFree(CUdeviceptr p) { gpuemu_synchronise(); return (R)gpuemu_free(at(p), "cuMemFree"); }
R cuMemFreeAsync(CUdeviceptr p, CUstream) { return (R)gpuemu_free(at(p), "cuMemFreeAsync"); }
R cuMemFreeHost(void* p) { return (R)gpuemu_free(p, "cuMemFreeHost"); }
R cuMemGetInfo(size_t* left, size_t* total) { gpuemu_room(left, total); return kOk; }
R cuMemGetAddressRange(CUdeviceptr* p, size_t* n, CUdeviceptr d) {
  GpuBlock b;
  if (gpuemu_find(at(d), &b)) return CUDA_ERROR_NOT_FOUND;
  if (p) *p = kBase + b.start;
  if (n) *n = b.size;
  return kOk;
}
R cuPointerGetAttribute(void* v, CUpointer_attribute a, CUdeviceptr p) {
  GpuBlock b;
  bool mine = !gpuemu_find(at(p), &b);
  switch (a) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext*)v = mine ? the_context() : nullptr; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: if (!mine) return kBad; *(unsigned*)v = b.flags & kHostVisible ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: if (!mine) return kBad; *(CUdeviceptr*)v = p; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned*)v = mine && b.flags & kHostVisible; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int*)v = 0; break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
  return kOk;
}
R cuMemcpy(CUdeviceptr t, CUdeviceptr f, size_t n) { return copy(at(t), at(f), n, kDefault, "cuMemcpy"); }
R cuMemcpyAsync(CUdeviceptr t, CUdeviceptr f, size_t n, CUstream) { return copy(at(t), at(f), n, kDefault, "cuMemcpyAsync", false); }
R cuMemcpyHtoD(CUdeviceptr t, const void* f, size_t n) { return copy(at(t), f, n, kHostToDevice, "cuMemcpyHtoD"); }
R cuMemcpyHtoDAsync(CUdeviceptr t, const void* f, size_t n, CUstream) { return copy(at(t), f, n, kHostToDevice, "cuMemcpyHtoDAsync", false); }
R cuMemcpyDtoH(void* t, CUdeviceptr f, size_t n) { return copy(t, at(f), n, kDeviceToHost, "cuMemcpyDtoH"); }
R cuMemcpyDtoHAsync(void* t, CUdeviceptr f, size_t n, CUstream) { return copy(t, at(f), n, kDeviceToHost, "cuMemcpyDtoHAsync", false); }
R cuMemcpyDtoD(CUdeviceptr t, CUdeviceptr f, size_t n) { return copy(at(t), at(f), n, kDeviceToDevice, "cuMemcpyDtoD"); }
R cuMemcpyDtoDAsync(CUdeviceptr t, CUdeviceptr f, size_t n, CUstream) { return copy(at(t), at(f), n, kDeviceToDevice, "cuMemcpyDtoDAsync", false); }
R cuMemcpy2D(const CUDA_MEMCPY2D* c) { return two_dimensions(c, "cuMemcpy2D"); }
R cuMemcpy2DUnaligned(const CUDA_MEMCPY2D* c) { return two_dimensions(c, "cuMemcpy2DUnaligned"); }
R cuMemcpy2DAsync(const CUDA_MEMCPY2D* c, CUstream) { return two_dimensions(c, "cuMemcpy2DAsync"); }
R cuMemsetD8(CUdeviceptr p, unsigned char v, size_t n) { return fill(p, v, n, 1, n, "cuMemsetD8"); }
R cuMemsetD16(CUdeviceptr p, unsigned short v, size_t n) { return fill(p, v, n, 1, n, "cuMemsetD16"); }
R cuMemsetD32(CUdeviceptr p, unsigned v, size_t n) { return fill(p, v, n, 1, n, "cuMemsetD32"); }
R cuMemsetD8Async(CUdeviceptr p, unsigned char v, size_t n, CUstream) { return fill(p, v, n, 1, n, "cuMemsetD8Async"); }
R cuMemsetD16Async(CUdeviceptr p, unsigned short v, size_t n, CUstream) { return fill(p, v, n, 1, n, "cuMemsetD16Async"); }
R cuMemsetD32Async(CUdeviceptr p, unsigned v, size_t n, CUstream) { return fill(p, v, n, 1, n, "cuMemsetD32Async"); }
R cuMemsetD2D8(CUdeviceptr p, size_t pitch, unsigned char v, size_t w, size_t h) { return fill(p, v, w, h, pitch, "cuMemsetD2D8"); }
R cuMemsetD2D32(CUdeviceptr p, size_t pitch, unsigned v, size_t w, size_t h) { return fill(p, v, w, h, pitch, "cuMemsetD2D32"); }
// ------------------------------------------------------------------ streams, events, errors
R cuStreamCreateWithPriority(CUstream* s, unsigned flags, int priority) { *s = (CUstream) new Stream{flags, priority}; gpuemu_handle(*s, 1); return kOk; }
R cuStreamCreate(CUstream* s, unsigned flags) { return cuStreamCreateWithPriority(s, flags, 0); }
R cuStreamDestroy(CUstream s) { return gpuemu_handle(s, -1) ? kOk : CUDA_ERROR_INVALID_HANDLE; }
R cuStreamSynchronize(CUstream) { gpuemu_synchronise(); return status(); }
R cuStreamQuery(CUstream) { return status(); }
R cuStreamWaitEvent(CUstream, CUevent, unsigned) { return kOk; }
R cuStreamGetCtx(CUstream, CUcontext* c) { *c = the_context(); return kOk; }
R cuStreamGetFlags(CUstream s, unsigned* f) { *f = (uint64_t)s <= 2 ? 0 : ((Stream*)s)->flags; return kOk; }
R cuStreamGetPriority(CUstream s, int* p) { *p = (uint64_t)s <= 2 ? 0 : ((Stream*)s)->priority; return kOk; }
R cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* s) { *s = CU_STREAM_CAPTURE_STATUS_NONE; return kOk; }
R cuEventCreate(CUevent* e, unsigned flags) { *e = (CUevent) new Event{-1, !(flags & CU_EVENT_DISABLE_TIMING)}; gpuemu_handle(*e, 1); return kOk; }
R cuEventDestroy(CUevent e) { return gpuemu_handle(e, -1) ? kOk : CUDA_ERROR_INVALID_HANDLE; }
R cuEventRecord(CUevent e, CUstream) { if (!gpuemu_handle(e, 0)) return CUDA_ERROR_INVALID_HANDLE; ((Event*)e)->at = now(); return status(); }
R cuEventSynchronize(CUevent) { gpuemu_synchronise(); return status(); }
R cuEventQuery(CUevent) { return status(); }
R cuEventElapsedTime(float* ms, CUevent a, CUevent b) {
  auto *from = (Event*)a, *to = (Event*)b;
  if (!gpuemu_handle(a, 0) || !gpuemu_handle(b, 0) || from->at < 0 || to->at < 0) return CUDA_ERROR_INVALID_HANDLE;
  *ms = std::max((float)(to->at - from->at), 0.001f);
  return kOk;
}
R cuGetErrorName(R e, const char** name) {
  static thread_local std::string text;
  for (auto& n : names_) if (n.code == (int)e) { text = n.name; *name = text.c_str(); return kOk; }
  *name = nullptr;
  return kBad;
}
R cuGetErrorString(R e, const char** said) {
  for (auto& n : strings_) if (n.code == (int)e) { *said = n.text; return kOk; }
  return cuGetErrorName(e, said);
}
R cuProfilerStart(void) { return kOk; }
R cuProfilerStop(void) { return kOk; }
R cuGetProcAddress_v2(const char* name, void** found, int, cuuint64_t, CUdriverProcAddressQueryResult* why) {
  static void* self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  *found = nullptr;
  for (const char* version : {"_v4", "_v3", "_v2", ""})
    if (!*found) *found = dlsym(self, (std::string(name) + version).c_str());
  if (why) *why = *found ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *found ? kOk : CUDA_ERROR_NOT_FOUND;
}
#undef cuGetProcAddress
R cuGetProcAddress(const char* name, void** found, int version, cuuint64_t flags) { return cuGetProcAddress_v2(name, found, version, flags, nullptr); }
R cuGetExportTable(const void** table, const CUuuid*) {  // NVRTC asks, and does without; NVIDIA's runtime, linked statically, does not
  Dl_info who{};
  const char* file = dladdr(__builtin_return_address(0), &who) && who.dli_fname ? who.dli_fname : "a library";
  if (!strstr(file, "libnv")) gpuemu_unsupported((std::string("the static CUDA runtime inside of ") + file + ", which nvcc -cudart shared leaves out,").c_str());
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}
}
