// Stands for libcudart: one GPU whose calls have all ended when they return. Each function of the
// real library that is not here is a weak stub, which says its name and returns cudaErrorNotSupported.
#define __CUDA_API_VERSION_INTERNAL
#include "device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {
std::recursive_mutex& lock_ = *new std::recursive_mutex;  // what is global is never destroyed: see core.cpp
#define GUARD std::lock_guard<std::recursive_mutex> guard_(lock_)
typedef cudaError_t Error;
thread_local Error last_ = cudaSuccess;

Error fail(int e) { if (e) last_ = (Error)e; return (Error)e; }
#define HEALTHY do { if (int e_ = gpuemu_status()) return fail(e_); } while (0)

// ------------------------------------------------------------------ modules of nvcc's host code
struct Binary {
  std::vector<const void*> images; std::vector<size_t> sizes;
  GpuModule* module = nullptr;
  bool tried = false;
};
struct Variable { Binary* binary; std::string name; size_t size; void** managed; GpuVariable* found; };
struct Entry { Binary* binary; std::string name; GpuKernel* kernel; bool known; };
std::map<const void*, Variable>& variables_ = *new std::map<const void*, Variable>;
std::map<const void*, Entry>& entries_ = *new std::map<const void*, Entry>;

void add_image(Binary* b, const void* data) {  // a fat binary says how large it is
  b->images.push_back(data);
  b->sizes.push_back(((const uint64_t*)data)[1] + ((const uint16_t*)data)[3]);
}
void load(Binary* b) {
  if (b->tried) return;
  b->tried = true;
  b->module = gpuemu_load(b->images.data(), b->sizes.data(), b->images.size());
  for (auto& [_, v] : variables_)
    if (b->module && v.binary == b && (v.found = gpuemu_variable(b->module, v.name.c_str())) && v.managed) {
      *v.managed = v.found->address;
      gpuemu_share(v.found->address);
    }
}
GpuVariable* variable(const void* host) {
  auto it = variables_.find(host);
  if (it == variables_.end()) return nullptr;
  load(it->second.binary);
  if (!it->second.found && it->second.binary->module)
    it->second.found = gpuemu_variable(it->second.binary->module, it->second.name.c_str());
  return it->second.found;
}
GpuKernel* kernel(const void* host) {
  auto it = entries_.find(host);
  if (it == entries_.end()) return nullptr;
  Entry& e = it->second;
  if (!e.known) {
    load(e.binary);
    e.known = true;
    e.kernel = e.binary->module ? gpuemu_kernel(e.binary->module, e.name.c_str()) : nullptr;
  }
  return e.kernel;
}

Error launch(const void* host, dim3 g, dim3 b, void** arguments, size_t shared, dim3 cluster, bool cooperative) {
  GUARD;
  HEALTHY;
  GpuKernel* k = kernel(host);
  if (!k) {
    auto it = entries_.find(host);
    if (it != entries_.end()) gpuemu_problem((it->second.name + " could not be loaded, and was launched").c_str());
    return fail(it != entries_.end() && !it->second.binary->module ? cudaErrorNoKernelImageForDevice : cudaErrorInvalidDeviceFunction);
  }
  std::vector<char> block(k->bytes + 1);
  gpuemu_pack(k, arguments, block.data());
  uint32_t grid[] = {g.x, g.y, g.z}, threads[] = {b.x, b.y, b.z}, together[] = {cluster.x, cluster.y, cluster.z};
  return fail(gpuemu_launch(k, grid, threads, together, shared, cooperative, block.data()));
}

struct Pending { dim3 grid, block; size_t shared; cudaStream_t stream; };
thread_local std::vector<Pending> pending_;

cudaDeviceProp properties() {
  int cc = gpuemu_architecture();
  cudaDeviceProp p;
  memset(&p, 0, sizeof p);
  snprintf(p.name, sizeof p.name, "gpuemu-flow sm_%d (emulated)", cc);
  memcpy(p.uuid.bytes, "gpuemu-flow-0000", 16);
  p.major = cc / 10; p.minor = cc % 10;
  size_t left;
  gpuemu_room(&left, &p.totalGlobalMem);
  p.sharedMemPerBlock = 48 << 10; p.sharedMemPerBlockOptin = optin();
  p.sharedMemPerMultiprocessor = optin() + 1024; p.reservedSharedMemPerBlock = 1024;
  p.regsPerBlock = p.regsPerMultiprocessor = 65536; p.warpSize = 32; p.memPitch = 0x7fffffff;
  p.maxThreadsPerBlock = 1024; p.maxThreadsPerMultiProcessor = threads_of_processor(); p.maxBlocksPerMultiProcessor = 32;
  p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024; p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = 0x7fffffff; p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.totalConstMem = 65536; p.multiProcessorCount = kProcessors; p.l2CacheSize = 40 << 20;
  p.textureAlignment = p.surfaceAlignment = 512; p.texturePitchAlignment = 32;
  p.canMapHostMemory = p.concurrentKernels = p.unifiedAddressing = p.managedMemory = p.concurrentManagedAccess = 1;
  p.cooperativeLaunch = p.streamPrioritiesSupported = p.globalL1CacheSupported = p.localL1CacheSupported = 1;
  p.computePreemptionSupported = p.hostRegisterSupported = p.memoryPoolsSupported = 1;
  p.clusterLaunch = cc >= 90; p.asyncEngineCount = 2; p.memoryBusWidth = 5120; p.pciBusID = 1;
#if CUDART_VERSION < 13000
  p.clockRate = 1410000; p.memoryClockRate = 1215000; p.kernelExecTimeoutEnabled = 0; p.computeMode = 0; p.cooperativeMultiDeviceLaunch = 0;
  p.deviceOverlap = 1;
#endif
  return p;
}
bool is_stream(cudaStream_t s) { return (uint64_t)s <= 2 || gpuemu_handle(s, 0); }
#define STREAM(s) do { if (!is_stream(s)) return fail(cudaErrorInvalidResourceHandle); } while (0)

Error allocate(void** p, size_t n, int state, uint32_t flags, const char* what) {
  GUARD;
  HEALTHY;
  if (!p) return fail(cudaErrorInvalidValue);
  *p = nullptr;
  if (!n) return cudaSuccess;
  *p = gpuemu_allocate(n, state, flags, what);
  return *p ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}
Error copy(void* to, const void* from, size_t n, int kind, const char* what, bool waits = true) {
  GUARD;
  if (waits) gpuemu_synchronise();
  return fail(gpuemu_copy(to, from, n, 1, n, n, kind, what));
}
Error copy2(void* to, size_t tp, const void* from, size_t fp, size_t w, size_t h, int kind, const char* what) {
  GUARD;
  gpuemu_synchronise();
  return fail(gpuemu_copy(to, from, w, h, tp, fp, kind, what));
}
Error fill(void* to, int value, size_t width, size_t height, size_t pitch, const char* what) {
  uint8_t item = (uint8_t)value;
  return fail(gpuemu_fill(to, &item, 1, width, height, pitch, what));
}
Error to_symbol(const void* s, const void* f, size_t n, size_t o, int kind, const char* what) {
  GUARD;
  GpuVariable* v = variable(s);
  return v ? copy((char*)v->address + o, f, n, kind, what) : fail(cudaErrorInvalidSymbol);
}
Error from_symbol(void* t, const void* s, size_t n, size_t o, int kind, const char* what) {
  GUARD;
  GpuVariable* v = variable(s);
  return v ? copy(t, (char*)v->address + o, n, kind, what) : fail(cudaErrorInvalidSymbol);
}
Error copy3(const cudaMemcpy3DParms* p, const char* what) {
  GUARD;
  if (!p || p->srcArray || p->dstArray) { gpuemu_unsupported("cudaMemcpy3D of an array"); return fail(cudaErrorNotSupported); }
  for (size_t z = 0; z < p->extent.depth; z++) {
    auto at = [&](const cudaPitchedPtr& q, const cudaPos& o) { return (char*)q.ptr + ((o.z + z) * q.ysize + o.y) * q.pitch + o.x; };
    if (int e = gpuemu_copy(at(p->dstPtr, p->dstPos), at(p->srcPtr, p->srcPos), p->extent.width, p->extent.height, p->dstPtr.pitch,
                            p->srcPtr.pitch, p->kind, what)) return fail(e);
  }
  return cudaSuccess;
}
}  // namespace

#include "names.inc"  // error names: made from the headers of the CUDA version at hand

extern "C" {
Error gpuemu_missing(const char* name) { gpuemu_unsupported(name); return fail(cudaErrorNotSupported); }
// ------------------------------------------------------------------ registration and launches
void** __cudaRegisterFatBinary(void* wrapper) {
  GUARD;
  struct Wrapper { int magic, version; const void* data; const void* const* linked; }* w = (Wrapper*)wrapper;
  auto* b = new Binary;
  if (w->version == 2 && w->linked)  // nvcc -rdc=true: what was linked lies beside the linked machine code
    for (const void* const* one = w->linked; *one; one++) add_image(b, *one);
  else add_image(b, w->data);
  return (void**)b;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void** h, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
  GUARD;
  entries_[host] = {(Binary*)h, name, nullptr, false};
}
void __cudaRegisterVar(void** h, char* host, char*, const char* name, int, size_t size, int, int) {
  GUARD;
  variables_[host] = {(Binary*)h, name, size, nullptr, nullptr};
}
void __cudaRegisterManagedVar(void** h, void** host, char*, const char* name, int, size_t size, int, int) {
  GUARD;
  variables_[host] = {(Binary*)h, name, size, host, nullptr};
}
char __cudaInitModule(void** h) { GUARD; load((Binary*)h); return 1; }
unsigned __cudaPushCallConfiguration(dim3 g, dim3 b, size_t s, cudaStream_t t) { pending_.push_back({g, b, s, t}); return 0; }
Error __cudaPopCallConfiguration(dim3* g, dim3* b, size_t* s, void* t) {
  if (pending_.empty()) return fail(cudaErrorMissingConfiguration);
  auto p = pending_.back();
  pending_.pop_back();
  *g = p.grid; *b = p.block; *s = p.shared; *(cudaStream_t*)t = p.stream;
  return cudaSuccess;
}
Error __cudaGetKernel(cudaKernel_t* k, const void* f) { *k = (cudaKernel_t)f; return cudaSuccess; }
Error cudaLaunchKernel(const void* f, dim3 g, dim3 b, void** a, size_t s, cudaStream_t t) { STREAM(t); return launch(f, g, b, a, s, dim3(0, 0, 0), false); }
Error __cudaLaunchKernel(cudaKernel_t k, dim3 g, dim3 b, void** a, size_t s, cudaStream_t t) { STREAM(t); return launch((const void*)k, g, b, a, s, dim3(0, 0, 0), false); }
Error __cudaLaunchKernel_ptsz(cudaKernel_t k, dim3 g, dim3 b, void** a, size_t s, cudaStream_t t) { return __cudaLaunchKernel(k, g, b, a, s, t); }
Error cudaLaunchCooperativeKernel(const void* f, dim3 g, dim3 b, void** a, size_t s, cudaStream_t t) {
  STREAM(t);
  GpuKernel* k = kernel(f);
  if (k && (uint64_t)g.x * g.y * g.z > (uint64_t)occupancy(k, b.x * b.y * b.z, s) * kProcessors) return fail(cudaErrorCooperativeLaunchTooLarge);
  return launch(f, g, b, a, s, dim3(0, 0, 0), true);
}
Error cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* f, void** a) {
  dim3 cluster(0, 0, 0);
  bool cooperative = false;
  for (unsigned i = 0; i < c->numAttrs; i++) {
    if (c->attrs[i].id == cudaLaunchAttributeClusterDimension) { auto& d = c->attrs[i].val.clusterDim; cluster = dim3(d.x, d.y, d.z); }
    if (c->attrs[i].id == cudaLaunchAttributeCooperative) cooperative = c->attrs[i].val.cooperative;
  }
  return launch(f, c->gridDim, c->blockDim, a, c->dynamicSmemBytes, cluster, cooperative);
}
// ------------------------------------------------------------------ memory
Error cudaMalloc(void** p, size_t n) { return allocate(p, n, kUnwritten, 0, "cudaMalloc"); }
Error cudaMallocAsync(void** p, size_t n, cudaStream_t) { return allocate(p, n, kUnwritten, 0, "cudaMallocAsync"); }
Error cudaMallocManaged(void** p, size_t n, unsigned) { return allocate(p, n, kWritten, kHostVisible, "cudaMallocManaged"); }
Error cudaMallocHost(void** p, size_t n) { return allocate(p, n, kWritten, kHostVisible, "cudaMallocHost"); }
Error cudaHostAlloc(void** p, size_t n, unsigned) { return allocate(p, n, kWritten, kHostVisible, "cudaHostAlloc"); }
Error cudaMallocPitch(void** p, size_t* pitch, size_t w, size_t h) { *pitch = pitched(w); return allocate(p, *pitch * h, kUnwritten, 0, "cudaMallocPitch"); }
Error cudaMalloc3D(cudaPitchedPtr* p, cudaExtent e) {
  p->pitch = pitched(e.width); p->xsize = e.width; p->ysize = e.height;
  return allocate(&p->ptr, p->pitch * e.height * e.depth, kUnwritten, 0, "cudaMalloc3D");
}
Error cudaFree(void* p) { GUARD; HEALTHY; gpuemu_synchronise(); return fail(gpuemu_free(p, "cudaFree")); }
Error cudaFreeAsync(void* p, cudaStream_t) { GUARD; HEALTHY; return fail(gpuemu_free(p, "cudaFreeAsync")); }
Error cudaFreeHost(void* p) { GUARD; HEALTHY; return fail(gpuemu_free(p, "cudaFreeHost")); }
Error cudaMemcpy(void* t, const void* f, size_t n, cudaMemcpyKind k) { return copy(t, f, n, k, "cudaMemcpy"); }
Error cudaMemcpyAsync(void* t, const void* f, size_t n, cudaMemcpyKind k, cudaStream_t s) { STREAM(s); return copy(t, f, n, k, "cudaMemcpyAsync", false); }
Error cudaMemcpyPeer(void* t, int, const void* f, int, size_t n) { return copy(t, f, n, kDeviceToDevice, "cudaMemcpyPeer"); }
Error cudaMemcpyPeerAsync(void* t, int, const void* f, int, size_t n, cudaStream_t) { return copy(t, f, n, kDeviceToDevice, "cudaMemcpyPeerAsync", false); }
Error cudaMemcpy2D(void* t, size_t tp, const void* f, size_t fp, size_t w, size_t h, cudaMemcpyKind k) { return copy2(t, tp, f, fp, w, h, k, "cudaMemcpy2D"); }
Error cudaMemcpy2DAsync(void* t, size_t tp, const void* f, size_t fp, size_t w, size_t h, cudaMemcpyKind k, cudaStream_t) { return copy2(t, tp, f, fp, w, h, k, "cudaMemcpy2DAsync"); }
Error cudaMemcpy3D(const cudaMemcpy3DParms* p) { gpuemu_synchronise(); return copy3(p, "cudaMemcpy3D"); }
Error cudaMemcpy3DAsync(const cudaMemcpy3DParms* p, cudaStream_t) { return copy3(p, "cudaMemcpy3DAsync"); }
Error cudaMemset(void* p, int v, size_t n) { return fill(p, v, n, 1, n, "cudaMemset"); }
Error cudaMemsetAsync(void* p, int v, size_t n, cudaStream_t) { return fill(p, v, n, 1, n, "cudaMemsetAsync"); }
Error cudaMemset2D(void* p, size_t pitch, int v, size_t w, size_t h) { return fill(p, v, w, h, pitch, "cudaMemset2D"); }
Error cudaMemset2DAsync(void* p, size_t pitch, int v, size_t w, size_t h, cudaStream_t) { return fill(p, v, w, h, pitch, "cudaMemset2DAsync"); }
Error cudaMemset3D(cudaPitchedPtr p, int v, cudaExtent e) {
  for (size_t z = 0; z < e.depth; z++) if (Error bad = fill((char*)p.ptr + z * p.ysize * p.pitch, v, e.width, e.height, p.pitch, "cudaMemset3D")) return bad;
  return cudaSuccess;
}
Error cudaMemset3DAsync(cudaPitchedPtr p, int v, cudaExtent e, cudaStream_t) { return cudaMemset3D(p, v, e); }
Error cudaMemcpyToSymbol(const void* s, const void* f, size_t n, size_t o, cudaMemcpyKind k) { return to_symbol(s, f, n, o, k, "cudaMemcpyToSymbol"); }
Error cudaMemcpyToSymbolAsync(const void* s, const void* f, size_t n, size_t o, cudaMemcpyKind k, cudaStream_t) { return to_symbol(s, f, n, o, k, "cudaMemcpyToSymbolAsync"); }
Error cudaMemcpyFromSymbol(void* t, const void* s, size_t n, size_t o, cudaMemcpyKind k) { return from_symbol(t, s, n, o, k, "cudaMemcpyFromSymbol"); }
Error cudaMemcpyFromSymbolAsync(void* t, const void* s, size_t n, size_t o, cudaMemcpyKind k, cudaStream_t) { return from_symbol(t, s, n, o, k, "cudaMemcpyFromSymbolAsync"); }
Error cudaGetSymbolAddress(void** p, const void* s) { GUARD; auto* v = variable(s); if (!v) return fail(cudaErrorInvalidSymbol); *p = v->address; return cudaSuccess; }
Error cudaGetSymbolSize(size_t* n, const void* s) { GUARD; auto* v = variable(s); if (!v) return fail(cudaErrorInvalidSymbol); *n = v->size; return cudaSuccess; }
Error cudaMemGetInfo(size_t* left, size_t* total) { gpuemu_room(left, total); return cudaSuccess; }
Error cudaHostGetDevicePointer(void** d, void* h, unsigned) {
  if (gpuemu_find(h, nullptr)) return gpuemu_missing("cudaHostGetDevicePointer of memory that cudaHostRegister pinned");
  *d = h;
  return cudaSuccess;
}
Error cudaHostGetFlags(unsigned* f, void*) { *f = cudaHostAllocMapped; return cudaSuccess; }
Error cudaHostRegister(void* p, size_t n, unsigned) { return p && n ? cudaSuccess : fail(cudaErrorInvalidValue); }
Error cudaHostUnregister(void*) { return cudaSuccess; }
#if CUDART_VERSION >= 13000
Error cudaMemPrefetchAsync(const void*, size_t, cudaMemLocation, unsigned, cudaStream_t) { return cudaSuccess; }
Error cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, cudaMemLocation) { return cudaSuccess; }
#else
Error cudaMemPrefetchAsync(const void*, size_t, int, cudaStream_t) { return cudaSuccess; }
#if CUDART_VERSION >= 12020
Error cudaMemPrefetchAsync_v2(const void*, size_t, cudaMemLocation, unsigned, cudaStream_t) { return cudaSuccess; }
Error cudaMemAdvise_v2(const void*, size_t, cudaMemoryAdvise, cudaMemLocation) { return cudaSuccess; }
#endif
Error cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, int) { return cudaSuccess; }
Error cudaGetDeviceProperties_v2(cudaDeviceProp* p, int d) { if (d) return fail(cudaErrorInvalidDevice); *p = properties(); return cudaSuccess; }
#endif
Error cudaStreamAttachMemAsync(cudaStream_t, void*, size_t, unsigned) { return cudaSuccess; }
Error cudaDeviceGetDefaultMemPool(cudaMemPool_t* p, int) { *p = (cudaMemPool_t)1; return cudaSuccess; }
Error cudaDeviceGetMemPool(cudaMemPool_t* p, int) { *p = (cudaMemPool_t)1; return cudaSuccess; }
Error cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
Error cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* v) { *(uint64_t*)v = 0; return cudaSuccess; }
Error cudaMemPoolCreate(cudaMemPool_t* p, const cudaMemPoolProps*) { *p = (cudaMemPool_t)1; return cudaSuccess; }
Error cudaMemPoolDestroy(cudaMemPool_t) { return cudaSuccess; }
Error cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) { return cudaSuccess; }
Error cudaDeviceSetMemPool(int, cudaMemPool_t) { return cudaSuccess; }
Error cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }
Error cudaMallocFromPoolAsync(void** p, size_t n, cudaMemPool_t, cudaStream_t) { return allocate(p, n, kUnwritten, 0, "cudaMallocFromPoolAsync"); }
Error cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
  memset(a, 0, sizeof *a);
  GpuBlock b;
  bool mine = !gpuemu_find(p, &b), shared = mine && b.flags & kHostVisible;
  a->type = !mine ? cudaMemoryTypeUnregistered : shared ? cudaMemoryTypeManaged : cudaMemoryTypeDevice;
  a->devicePointer = mine ? (void*)p : nullptr;
  a->hostPointer = !mine || shared ? (void*)p : nullptr;
  return cudaSuccess;
}
// ------------------------------------------------------------------ the device
Error cudaGetDeviceCount(int* n) { *n = 1; return cudaSuccess; }
Error cudaGetDevice(int* d) { *d = 0; return cudaSuccess; }
Error cudaSetDevice(int d) { return d ? fail(cudaErrorInvalidDevice) : cudaSuccess; }
Error cudaInitDevice(int d, unsigned, unsigned) { return cudaSetDevice(d); }
Error cudaSetValidDevices(int*, int) { return cudaSuccess; }
Error cudaChooseDevice(int* d, const cudaDeviceProp*) { *d = 0; return cudaSuccess; }
Error cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
Error cudaGetDeviceFlags(unsigned* f) { *f = 0; return cudaSuccess; }
Error cudaGetDeviceProperties(cudaDeviceProp* p, int d) { if (d) return fail(cudaErrorInvalidDevice); *p = properties(); return cudaSuccess; }
Error cudaDeviceGetAttribute(int* v, cudaDeviceAttr a, int d) {
  bool known;
  if (d) return fail(cudaErrorInvalidDevice);
  *v = attribute(a, &known);
  return known ? cudaSuccess : fail(cudaErrorInvalidValue);
}
Error cudaDeviceSynchronize(void) { gpuemu_synchronise(); return fail(gpuemu_status()); }
Error cudaDeviceReset(void) { gpuemu_synchronise(); gpuemu_reset(); last_ = cudaSuccess; return cudaSuccess; }
Error cudaDeviceSetLimit(cudaLimit, size_t) { return cudaSuccess; }
Error cudaDeviceGetLimit(size_t* v, cudaLimit which) { *v = which == cudaLimitStackSize ? 1024 : which == cudaLimitPrintfFifoSize ? 1 << 20 : 8 << 20; return cudaSuccess; }
Error cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
Error cudaDeviceGetCacheConfig(cudaFuncCache* c) { *c = cudaFuncCachePreferNone; return cudaSuccess; }
Error cudaDeviceSetSharedMemConfig(cudaSharedMemConfig) { return cudaSuccess; }
Error cudaDeviceCanAccessPeer(int* v, int, int) { *v = 0; return cudaSuccess; }
Error cudaDeviceGetStreamPriorityRange(int* a, int* b) { if (a) *a = 0; if (b) *b = -5; return cudaSuccess; }
Error cudaDeviceGetPCIBusId(char* text, int n, int) { snprintf(text, n, "0000:01:00.0"); return cudaSuccess; }
Error cudaRuntimeGetVersion(int* v) { *v = CUDART_VERSION; return cudaSuccess; }
Error cudaDriverGetVersion(int* v) { *v = CUDART_VERSION; return cudaSuccess; }
Error cudaProfilerStart(void) { return cudaSuccess; }
Error cudaProfilerStop(void) { return cudaSuccess; }
// ------------------------------------------------------------------ errors
Error cudaGetLastError(void) { Error e = last_; last_ = (Error)gpuemu_status(); return e; }
Error cudaPeekAtLastError(void) { return last_; }
const char* cudaGetErrorName(Error e) { for (auto& n : names_) if (n.code == e) return n.name; return "unrecognized error code"; }
const char* cudaGetErrorString(Error e) {
  for (auto& n : strings_) if (n.code == e) return n.text;
  for (auto& n : names_) if (n.code == e) return n.name;
  return "unrecognized error code";
}
// ------------------------------------------------------------------ functions
Error cudaFuncSetAttribute(const void* f, cudaFuncAttribute a, int v) {
  GUARD;
  GpuKernel* k = kernel(f);
  if (!k) return fail(cudaErrorInvalidDeviceFunction);
  if (a == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (v < 0 || v + (int)k->shared > optin()) return fail(cudaErrorInvalidValue);
    k->dynamic = v;
  }
  return cudaSuccess;
}
Error cudaFuncSetCacheConfig(const void*, cudaFuncCache) { return cudaSuccess; }
Error cudaFuncSetSharedMemConfig(const void*, cudaSharedMemConfig) { return cudaSuccess; }
Error cudaFuncGetName(const char** name, const void* f) { GUARD; auto it = entries_.find(f); if (it == entries_.end()) return fail(cudaErrorInvalidDeviceFunction); *name = it->second.name.c_str(); return cudaSuccess; }
Error cudaFuncGetAttributes(cudaFuncAttributes* a, const void* f) {
  GUARD;
  GpuKernel* k = kernel(f);
  if (!k) return fail(cudaErrorInvalidDeviceFunction);
  memset(a, 0, sizeof *a);
  a->sharedSizeBytes = k->shared; a->localSizeBytes = k->local; a->maxThreadsPerBlock = k->threads; a->numRegs = k->registers;
  a->maxDynamicSharedSizeBytes = std::max(48 << 10, (int)k->dynamic); a->ptxVersion = a->binaryVersion = gpuemu_architecture();
  return cudaSuccess;
}
Error cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, const void* f, int threads, size_t shared, unsigned) {
  GUARD;
  GpuKernel* k = kernel(f);
  if (!k) return fail(cudaErrorInvalidDeviceFunction);
  *n = occupancy(k, threads, shared);
  return cudaSuccess;
}
Error cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, const void* f, int t, size_t s) { return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(n, f, t, s, 0); }
Error cudaOccupancyAvailableDynamicSMemPerBlock(size_t* n, const void* f, int blocks, int) {
  GUARD;
  GpuKernel* k = kernel(f);
  if (!k) return fail(cudaErrorInvalidDeviceFunction);
  int each = (optin() + 1024) / std::max(1, blocks) - 1024 - (int)k->shared;
  *n = std::max(0, std::min(each, 48 << 10));
  return cudaSuccess;
}
// ------------------------------------------------------------------ streams and events
Error cudaStreamCreateWithPriority(cudaStream_t* s, unsigned flags, int priority) {
  GUARD;
  *s = (cudaStream_t) new Stream{flags, priority};
  gpuemu_handle(*s, 1);
  return cudaSuccess;
}
Error cudaStreamCreate(cudaStream_t* s) { return cudaStreamCreateWithPriority(s, 0, 0); }
Error cudaStreamCreateWithFlags(cudaStream_t* s, unsigned f) { return cudaStreamCreateWithPriority(s, f, 0); }
Error cudaStreamDestroy(cudaStream_t s) {
  GUARD;
  return gpuemu_handle(s, -1) ? cudaSuccess : fail(cudaErrorInvalidResourceHandle);
}
Error cudaStreamSynchronize(cudaStream_t s) { STREAM(s); gpuemu_synchronise(); return fail(gpuemu_status()); }
Error cudaStreamQuery(cudaStream_t s) { STREAM(s); return fail(gpuemu_status()); }
Error cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) { STREAM(s); return gpuemu_handle(e, 0) ? cudaSuccess : fail(cudaErrorInvalidResourceHandle); }
Error cudaStreamSetAttribute(cudaStream_t s, cudaStreamAttrID, const cudaStreamAttrValue*) { STREAM(s); return cudaSuccess; }
Error cudaStreamGetAttribute(cudaStream_t s, cudaStreamAttrID, cudaStreamAttrValue* v) { STREAM(s); memset(v, 0, sizeof *v); return cudaSuccess; }
Error cudaStreamCopyAttributes(cudaStream_t, cudaStream_t) { return cudaSuccess; }
Error cudaCtxResetPersistingL2Cache(void) { return cudaSuccess; }
Error cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* s) { *s = cudaStreamCaptureStatusNone; return cudaSuccess; }
Error cudaStreamGetPriority(cudaStream_t s, int* p) { STREAM(s); *p = (uint64_t)s <= 2 ? 0 : ((Stream*)s)->priority; return cudaSuccess; }
Error cudaStreamGetFlags(cudaStream_t s, unsigned* f) { STREAM(s); *f = (uint64_t)s <= 2 ? 0 : ((Stream*)s)->flags; return cudaSuccess; }
Error cudaStreamGetId(cudaStream_t s, unsigned long long* id) { STREAM(s); *id = (unsigned long long)s; return cudaSuccess; }
Error cudaStreamGetDevice(cudaStream_t s, int* d) { STREAM(s); *d = 0; return cudaSuccess; }
Error cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void* a) { STREAM(s); f(a); return cudaSuccess; }
Error cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t f, void* a, unsigned) { STREAM(s); f(s, cudaSuccess, a); return cudaSuccess; }
Error cudaEventCreateWithFlags(cudaEvent_t* e, unsigned flags) {
  GUARD;
  *e = (cudaEvent_t) new Event{-1, !(flags & cudaEventDisableTiming)};
  gpuemu_handle(*e, 1);
  return cudaSuccess;
}
Error cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, 0); }
#define EVENT(e) do { if (!gpuemu_handle(e, 0)) return fail(cudaErrorInvalidResourceHandle); } while (0)
Error cudaEventRecord(cudaEvent_t e, cudaStream_t s) { EVENT(e); STREAM(s); ((Event*)e)->at = now(); return fail(gpuemu_status()); }
Error cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned) { return cudaEventRecord(e, s); }
Error cudaEventSynchronize(cudaEvent_t e) { EVENT(e); gpuemu_synchronise(); return fail(gpuemu_status()); }
Error cudaEventQuery(cudaEvent_t e) { EVENT(e); return fail(gpuemu_status()); }
Error cudaEventElapsedTime(float* ms, cudaEvent_t a, cudaEvent_t b) {
  EVENT(a); EVENT(b);
  auto *from = (Event*)a, *to = (Event*)b;
  if (from->at < 0 || to->at < 0 || !from->timed || !to->timed) return fail(cudaErrorInvalidResourceHandle);
  *ms = std::max((float)(to->at - from->at), 0.001f);
  return cudaSuccess;
}
Error cudaEventElapsedTime_v2(float* ms, cudaEvent_t a, cudaEvent_t b) { return cudaEventElapsedTime(ms, a, b); }
Error cudaEventDestroy(cudaEvent_t e) {
  GUARD;
  return gpuemu_handle(e, -1) ? cudaSuccess : fail(cudaErrorInvalidResourceHandle);
}
}
