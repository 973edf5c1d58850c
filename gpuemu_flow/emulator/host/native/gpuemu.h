// The core of the imaginary GPU, for the libraries that stand for NVIDIA's: libcudart (runtime.cpp)
// and libcuda (driver.cpp). It owns the device's memory; kernels are run by a process of
// gpuemu-flow at the other end of a socket (session.py), which maps the same memory.
//
// The device's memory is one sparse memfd that is mapped at a fixed address, so that a device address
// is an address of this process: host code may form pointers and store them in memory. One shadow
// byte per byte says whether it is allocated and written; it lives as long as the allocation.
#pragma once
#include <cstddef>
#include <cstdint>

constexpr uint64_t kBase = 0x600000000000ull;           // GLOBAL_BASE of gpuemu_flow/emulator/memory.py
constexpr uint64_t kData = 1ull << 35;                  // bytes of the device; sparse
constexpr uint64_t kShadowAt = kBase + (1ull << 37);

enum GpuState : uint8_t { kFree = 0, kUnwritten = 1, kWritten = 2, kReadOnly = 3 };
enum GpuFlags : uint32_t { kConstant = 1, kHostVisible = 2, kVariable = 4 };
enum GpuKind : int { kHostToHost = 0, kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3, kDefault = 4 };
enum GpuResult : int { kDone = 0, kInvalidValue = 1, kNoMemory = 2, kNotInitialised = 3, kInvalidImage = 200,
  kNotFound = 500, kIllegalAddress = 700, kOutOfResources = 701, kTimeout = 702, kAssert = 710, kFailed = 719,
  kNotPermitted = 800, kNotSupported = 801, kInvalidConfiguration = 9, kUnknown = 999 };

struct GpuBlock { uint64_t start, size; uint32_t flags; };   // `start` counts from kBase
struct GpuModule;
struct GpuKernel {
  GpuModule* module; const char* name; const char* problem;  // why it cannot be run; null if it can
  uint32_t count, bytes; const uint32_t *offsets, *sizes;    // its parameters
  uint32_t shared, local, threads, registers;                // static shared, local bytes; most threads
  uint32_t dynamic;                                          // most dynamic shared memory that was asked for
};
struct GpuVariable { const char* name; void* address; size_t size; int constant; };

extern "C" {
// Memory. `what` names the call in messages, such as "cudaMalloc". The result is null without room.
void* gpuemu_allocate(size_t size, int state, uint32_t flags, const char* what);
int gpuemu_free(void* address, const char* what);
void gpuemu_share(void* address);                            // lets the host use an allocation directly
void gpuemu_share_all(void);
void* gpuemu_host(const void* address);                      // where a library of ours may read and write it
int gpuemu_find(const void* address, GpuBlock* block);       // 0 if the address lies in an allocation
int gpuemu_copy(void* to, const void* from, size_t width, size_t height, size_t to_pitch, size_t from_pitch, int kind, const char* what);
int gpuemu_fill(void* to, const void* item, size_t item_size, size_t width, size_t height, size_t pitch, const char* what);
void gpuemu_mark(void* address, size_t size, int state);
size_t gpuemu_unwritten(const void* address, size_t size, size_t* first);
void gpuemu_room(size_t* left, size_t* total);
// Modules: PTX text or a fat binary, or several of them to link. Null, and a message, if none can be read.
GpuModule* gpuemu_load(const void* const* images, const size_t* sizes, size_t count);
void gpuemu_unload(GpuModule* module);
GpuKernel* gpuemu_kernel(GpuModule* module, const char* name);
GpuVariable* gpuemu_variable(GpuModule* module, const char* name);
GpuVariable* gpuemu_variables(GpuModule* module, size_t* count);
// Launches end before the call returns. `cooperative` lets blocks wait for each other.
int gpuemu_launch(GpuKernel* kernel, const uint32_t grid[3], const uint32_t block[3], const uint32_t cluster[3],
                  size_t shared, int cooperative, const void* parameters);
void gpuemu_pack(GpuKernel* kernel, void** arguments, void* parameters);
int gpuemu_status(void);                                     // the error of an earlier launch, which stays
void gpuemu_reset(void);
void gpuemu_synchronise(void);                               // shows what kernels printed
int gpuemu_handle(void* handle, int action);                 // of streams and events: 1 adds, 0 asks, -1 removes
// A mistake of the host's code: `check` and `rule` as in gpuemu_flow's findings.
void gpuemu_finding(const char* check, const char* rule, const char* words);
void gpuemu_finding_at(const char* check, const char* rule, const char* place, const char* words);  // place: FILE:LINE
void gpuemu_unsupported(const char* name);                   // says once that a function is missing
void gpuemu_problem(const char* text);                       // why something could not be run
// What was found since the last time, as session.py writes it; the device is healthy again.
const char* gpuemu_report(size_t* size);
void gpuemu_source(const char* name, const char* place);     // FILE:LINE of the text that is compiled under a name
int gpuemu_architecture(void);                               // 80 for sm_80
void gpuemu_rename(void* address, uint32_t item, const char* name);
}
