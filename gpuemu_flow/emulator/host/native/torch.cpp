// PyTorch's device "cuda" on the imaginary GPU: the dispatch key CUDA on emulated memory. Its bytes are
// ordinary memory of the process, so that an operator without a kernel for CUDA runs the CPU's kernel on
// an alias of the same bytes; what no kernel and no operator wrote is known by the shadow.
#include "gpuemu.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/impl/CUDAGuardImpl.h>
#include <dlfcn.h>
#include <torch/library.h>

using at::Tensor;
using c10::DispatchKey;
using c10::IValue;

namespace {
// ------------------------------------------------------------------ memory
struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    c10::Device cuda(c10::kCUDA, 0);
    static bool shared = (gpuemu_share_all(), true);  // the CPU's kernels use it
    if (!n || !shared) return {nullptr, nullptr, &drop, cuda};
    void* p = gpuemu_allocate(n, kUnwritten, 0, "tensor");
    TORCH_CHECK_WITH(OutOfMemoryError, p, "CUDA out of memory: the emulated device has no room for ", n, " bytes");
    return {p, p, &drop, cuda};
  }
  static void drop(void* p) { if (p) gpuemu_free(p, "tensor"); }
  c10::DeleterFnPtr raw_deleter() const override { return &drop; }
  void copy_data(void* to, const void* from, size_t n) const override { memcpy(to, from, n); gpuemu_mark(to, n, kWritten); }
} allocator_;

Tensor named(Tensor t) {
  if (t.numel()) {
    std::ostringstream s;
    s << "the " << t.scalar_type() << " tensor (";
    for (int64_t i = 0; i < t.dim(); i++) s << (i ? ", " : "") << t.size(i);
    s << ")";
    gpuemu_rename(t.storage().mutable_data(), t.element_size(), s.str().c_str());
  }
  return t;
}
constexpr c10::DispatchKeySet kCudaKeys(DispatchKey::CUDA);
Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device>,
             std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return named(Tensor(at::detail::empty_generic(size, &allocator_, kCudaKeys, c10::dtype_or_default(dtype), format)));
}
Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<at::Device>, std::optional<bool>) {
  return named(Tensor(at::detail::empty_strided_generic(size, stride, &allocator_, kCudaKeys, c10::dtype_or_default(dtype))));
}

uint8_t* shadow_of(const void* p) { return (uint8_t*)p - kBase + kShadowAt; }
bool on_device(const void* p) { return (uint64_t)p - kBase < kData; }
Tensor shadow_bytes(const Tensor& t) {  // the states of a tensor's elements, as a tensor
  auto item = (int64_t)t.element_size();
  std::vector<int64_t> size(t.sizes().begin(), t.sizes().end()), stride;
  for (auto s : t.strides()) stride.push_back(s * item);
  size.push_back(item);
  stride.push_back(1);
  return at::from_blob(shadow_of(t.data_ptr()), size, stride, at::TensorOptions(at::kByte));
}
void mark_written(const Tensor& t) {
  if (!t.numel() || !on_device(t.const_data_ptr())) return;
  gpuemu_mark(t.data_ptr(), t.is_non_overlapping_and_dense() ? t.numel() * t.element_size() : 0, kWritten);
  if (!t.is_non_overlapping_and_dense()) shadow_bytes(t).fill_(kWritten);
}

// ------------------------------------------------------------------ where the Python program is
std::string python_place() {
  typedef struct Frame Frame;
  static auto ensure = (int (*)())dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
  static auto release = (void (*)(int))dlsym(RTLD_DEFAULT, "PyGILState_Release");
  static auto current = (Frame * (*)()) dlsym(RTLD_DEFAULT, "PyEval_GetFrame");
  static auto back = (Frame * (*)(Frame*)) dlsym(RTLD_DEFAULT, "PyFrame_GetBack");
  static auto code = (void* (*)(Frame*))dlsym(RTLD_DEFAULT, "PyFrame_GetCode");
  static auto line = (int (*)(Frame*))dlsym(RTLD_DEFAULT, "PyFrame_GetLineNumber");
  static auto get = (void* (*)(void*, const char*))dlsym(RTLD_DEFAULT, "PyObject_GetAttrString");
  static auto text = (const char* (*)(void*))dlsym(RTLD_DEFAULT, "PyUnicode_AsUTF8");
  if (!ensure || !current || !back || !code || !line || !get || !text) return "";
  int state = ensure();
  std::string found;
  Frame* frame = current();
  for (int depth = 0; frame && depth < 64; depth++, frame = back(frame)) {  // references leak: a finding is rare
    void* name = get(code(frame), "co_filename");
    const char* file = name ? text(name) : nullptr;
    if (!file || strstr(file, "/torch/") || *file == '<') continue;
    found = std::string(file) + ":" + std::to_string(line(frame));
    break;
  }
  release(state);
  return found;
}

// An operator of PyTorch that reads memory which no kernel and no operator has written.
void check_read(const std::string& op, const Tensor& t) {
  if (!t.defined() || !t.is_cuda() || !t.numel() || t.layout() != at::kStrided || !on_device(t.const_data_ptr())) return;
  if (!t.is_non_overlapping_and_dense()) return;
  size_t first = 0, item = t.element_size(), bad = gpuemu_unwritten(t.const_data_ptr(), t.numel() * item, &first);
  if (!bad) return;
  GpuBlock b{};
  gpuemu_find(t.const_data_ptr(), &b);
  std::ostringstream s;
  s << op << " reads " << (bad + item - 1) / item << " of " << t.numel() << " elements of {" << b.start << "} that nobody wrote; the first is element " << first / item;
  gpuemu_finding_at("init", "never-written", python_place().c_str(), s.str().c_str());
  mark_written(t);  // said once
}

// ------------------------------------------------------------------ operators: the CPU's kernels
Tensor make(c10::Storage storage, DispatchKey key, const Tensor& like) {
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  if (like.is_conj()) made._set_conj(true);
  if (like.is_neg()) made._set_neg(true);
  return made;
}

struct Call {  // the tensors of one call, and their aliases for the CPU
  std::vector<std::pair<c10::Storage, c10::Storage>> storages;
  std::vector<std::pair<Tensor, Tensor>> tensors;

  c10::Storage down(const c10::Storage& s) {
    if (s.device_type() != c10::kCUDA) return s;
    for (auto& [mine, other] : storages) if (mine.is_alias_of(s)) return other;
    storages.emplace_back(s, c10::Storage(c10::Storage::use_byte_size_t(), s.nbytes(), c10::DataPtr(s.mutable_data(), c10::Device(c10::kCPU)),
                                          c10::GetAllocator(c10::kCPU), true));
    return storages.back().second;
  }
  Tensor down(const Tensor& t) {
    if (!t.defined() || !t.is_cuda()) return t;
    TORCH_CHECK(t.layout() == at::kStrided, "gpuemu-flow: only dense tensors are emulated on cuda");
    for (auto& [mine, alias] : tensors) if (mine.is_same(t)) return alias;
    tensors.emplace_back(t, make(down(t.storage()), DispatchKey::CPU, t));
    return tensors.back().second;
  }
  Tensor up(const Tensor& t) {
    if (!t.defined() || !t.is_cpu()) return t;
    for (auto& [mine, alias] : tensors) if (alias.is_same(t)) return mine;
    for (auto& [mine, alias] : storages) if (alias.is_alias_of(t.storage())) return make(mine, DispatchKey::CUDA, t);
    size_t n = t.storage().nbytes();
    c10::Storage fresh(c10::Storage::use_byte_size_t(), n, allocator_.allocate(n), &allocator_, true);
    if (n) { memcpy(fresh.mutable_data(), t.storage().data(), n); gpuemu_mark(fresh.mutable_data(), n, kWritten); }
    storages.emplace_back(fresh, t.storage());  // two results may share one storage
    return named(make(fresh, DispatchKey::CUDA, t));
  }
  void follow(const Tensor& mine, const Tensor& alias) {  // resized, or set to another storage
    c10::Storage now = alias.storage();
    for (auto& [own, other] : storages) {
      if (!other.is_alias_of(now)) continue;
      if (now.data() != own.data()) {
        auto data = allocator_.allocate(now.nbytes());
        if (now.nbytes()) memcpy(data.get(), now.data(), now.nbytes());
        own.set_data_ptr_noswap(std::move(data));
        own.set_nbytes(now.nbytes());
      }
      if (!own.is_alias_of(mine.storage())) mine.unsafeGetTensorImpl()->set_storage_keep_dtype(own);
    }
    if (mine.sizes() != alias.sizes() || mine.strides() != alias.strides() || mine.storage_offset() != alias.storage_offset())
      mine.unsafeGetTensorImpl()->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
  }
};

template <class F> IValue each(const IValue& v, F f) {
  if (v.isTensor()) return f(v.toTensor());
  if (v.isTensorList()) { c10::List<Tensor> out; for (const Tensor& t : v.toTensorVector()) out.push_back(f(t)); return out; }
  if (v.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> out;
    for (const std::optional<Tensor>& t : v.toOptionalTensorList()) out.push_back(t ? std::optional<Tensor>(f(*t)) : std::nullopt);
    return out;
  }
  return v;
}
void by_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  size_t n = schema.arguments().size(), base = stack->size() - n;
  Call call;
  std::vector<Tensor> written;
  bool shape_only = schema.name().rfind("aten::resize", 0) == 0 || schema.name().rfind("aten::set_", 0) == 0;
  bool unread = false;  // as by addmm with beta = 0
  for (size_t i = 0; i < n; i++)
    if (schema.arguments()[i].name() == "beta") unread = (*stack)[base + i].isScalar() && (*stack)[base + i].toScalar().equal(0);
  for (size_t i = 0; i < n; i++) {
    IValue& v = (*stack)[base + i];
    const auto* info = schema.arguments()[i].alias_info();
    if (info && info->isWrite() && !shape_only)
      each(v, [&](const Tensor& t) { if (t.defined() && t.is_cuda()) written.push_back(t); return t; });
    if (!info && !(i == 0 && unread)) each(v, [&](const Tensor& t) { check_read(schema.name(), t); return t; });  // a view only passes memory on
    if (v.isStorage()) v = IValue(call.down(v.toStorage()));
    else if (v.isDevice() && v.toDevice().is_cuda()) v = IValue(c10::Device(c10::kCPU));
    else v = each(v, [&](const Tensor& t) { return call.down(t); });
  }
  { at::AutoDispatchBelowADInplaceOrView below; op.callBoxed(stack); }
  for (size_t i = 0; i < call.tensors.size(); i++) call.follow(call.tensors[i].first, call.tensors[i].second);
  for (auto& t : written) mark_written(t);
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); i++)
    (*stack)[i] = each((*stack)[i], [&](const Tensor& t) { return call.up(t); });
}
int64_t no_fused_attention(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool, std::optional<double>, bool) { return 0; }

Tensor biased(const Tensor& x, const std::optional<Tensor>& bias) { return bias && bias->defined() ? x + *bias : x; }
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& inputs, const Tensor& hidden, const Tensor& cell, const std::optional<Tensor>& input_bias,
                                             const std::optional<Tensor>& hidden_bias) {
  Tensor gates = biased(inputs, input_bias) + biased(hidden, hidden_bias);
  auto g = gates.chunk(4, 1);
  Tensor next = g[1].sigmoid() * cell + g[0].sigmoid() * g[2].tanh();
  return {g[3].sigmoid() * next.tanh(), next, gates};
}
std::tuple<Tensor, Tensor> gru_cell(const Tensor& inputs, const Tensor& hidden, const Tensor& state, const std::optional<Tensor>& input_bias,
                                    const std::optional<Tensor>& hidden_bias) {
  Tensor x = biased(inputs, input_bias), h = biased(hidden, hidden_bias);
  auto i = x.chunk(3, 1), k = h.chunk(3, 1);
  Tensor reset = (k[0] + i[0]).sigmoid(), update = (k[1] + i[1]).sigmoid(), next = (i[2] + k[2] * reset).tanh();
  return {(state - next) * update + next, x};
}

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&by_cpu>()); }
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_fused_sdp_choice", no_fused_attention);
  // Their composite kernels need stubs of the device, or choose kernels by it.
  for (const char* name : {"copy_", "convolution", "convolution_backward", "_convolution"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&by_cpu>());
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_gru_cell", gru_cell);
}
TORCH_LIBRARY_IMPL(aten, AutogradCUDA, m) {  // by operators that have gradients
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_gru_cell", gru_cell);
}

// ------------------------------------------------------------------ hooks and guard
C10_REGISTER_GUARD_IMPL(CUDA, c10::cuda::impl::CUDAGuardImpl);
struct SetAllocator { SetAllocator() { c10::SetAllocator(c10::kCUDA, &allocator_); } } set_allocator_;
thread_local c10::StreamId current_ = 0;
}  // namespace
namespace at {
struct CUDAHooks : CUDAHooksInterface {
  CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  const at::Generator& getDefaultGenerator(at::DeviceIndex) const override { return at::detail::getDefaultCPUGenerator(); }
  at::Generator getNewGenerator(at::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  at::Device getDeviceFromPtr(void*) const override { return at::Device(at::kCUDA, 0); }
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(at::DeviceIndex) const override { return true; }
  at::DeviceIndex current_device() const override { return 0; }
  at::DeviceIndex deviceCount() const override { return 1; }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::kCPU); }
  at::Allocator* getCUDADeviceAllocator() const override { return &allocator_; }
  long versionCUDART() const override { return CUDART_VERSION; }
  std::string showConfig() const override { return "gpuemu-flow: no GPU"; }
  int getNumGPUs() const override { return 1; }
  void deviceSynchronize(at::DeviceIndex) const override { cudaDeviceSynchronize(); }
};
REGISTER_CUDA_HOOKS(CUDAHooks);
}  // namespace at

// ------------------------------------------------------------------ what libc10_cuda and libtorch_cuda export
#define EXPORT __attribute__((visibility("default")))
namespace c10::cuda {
EXPORT DeviceIndex device_count() noexcept { return 1; }
EXPORT DeviceIndex device_count_ensure_non_zero() { return 1; }
EXPORT DeviceIndex current_device() { return 0; }
EXPORT void set_device(DeviceIndex, const bool) {}
EXPORT void device_synchronize() { C10_CUDA_CHECK(cudaDeviceSynchronize()); }
EXPORT void warn_or_error_on_sync() {}
EXPORT cudaError_t GetDeviceCount(int* n) { *n = 1; return cudaSuccess; }
EXPORT cudaError_t GetDevice(DeviceIndex* d) { *d = 0; return cudaSuccess; }
EXPORT cudaError_t SetDevice(DeviceIndex, const bool) { return cudaSuccess; }
EXPORT cudaError_t MaybeSetDevice(DeviceIndex) { return cudaSuccess; }
EXPORT DeviceIndex ExchangeDevice(DeviceIndex) { return 0; }
EXPORT DeviceIndex MaybeExchangeDevice(DeviceIndex) { return 0; }
EXPORT void SetTargetDevice() {}
EXPORT bool hasPrimaryContext(DeviceIndex) { return true; }
EXPORT std::optional<DeviceIndex> getDeviceIndexWithPrimaryContext() { return 0; }
EXPORT std::string get_cuda_error_help(cudaError_t) noexcept { return ""; }
EXPORT const char* get_cuda_check_suffix() noexcept { return ""; }
EXPORT void c10_cuda_check_implementation(const int32_t err, const char* file, const char* function, const uint32_t line, const bool) {
  if (err == cudaSuccess) return;
  (void)cudaGetLastError();
  TORCH_CHECK(false, "CUDA error: ", cudaGetErrorString((cudaError_t)err), " (", file, ":", line, " in ", function, ")");
}
static CUDAStream stream_of(StreamId id) { return CUDAStream(CUDAStream::UNCHECKED, Stream(Stream::UNSAFE, Device(kCUDA, 0), id)); }
EXPORT cudaStream_t CUDAStream::stream() const { return (cudaStream_t)id(); }
EXPORT bool CUDAStream::query() const { return true; }
EXPORT void CUDAStream::synchronize() const { C10_CUDA_CHECK(cudaStreamSynchronize(stream())); }
EXPORT CUDAStream getDefaultCUDAStream(DeviceIndex) { return stream_of(0); }
EXPORT CUDAStream getCurrentCUDAStream(DeviceIndex) { return stream_of(current_); }
EXPORT void setCurrentCUDAStream(CUDAStream s) { current_ = s.id(); }
EXPORT CUDAStream getStreamFromPool(const bool, DeviceIndex) { cudaStream_t s; cudaStreamCreate(&s); return stream_of((StreamId)s); }
EXPORT CUDAStream getStreamFromPool(const int, DeviceIndex) { return getStreamFromPool(false, 0); }
EXPORT CUDAStream getStreamFromExternal(cudaStream_t s, DeviceIndex) { return stream_of((StreamId)s); }
EXPORT std::ostream& operator<<(std::ostream& o, const CUDAStream& s) { return o << s.unwrap(); }
namespace CUDACachingAllocator { EXPORT std::atomic<CUDAAllocator*> allocator{nullptr}; }
}  // namespace c10::cuda
namespace at::cuda {
EXPORT cudaDeviceProp* getCurrentDeviceProperties() { static cudaDeviceProp p = [] { cudaDeviceProp p; cudaGetDeviceProperties(&p, 0); return p; }(); return &p; }
EXPORT cudaDeviceProp* getDeviceProperties(c10::DeviceIndex) { return getCurrentDeviceProperties(); }
EXPORT int warp_size() { return 32; }
EXPORT bool canDeviceAccessPeer(c10::DeviceIndex, c10::DeviceIndex) { return false; }
EXPORT c10::Allocator* getCUDADeviceAllocator() { return &allocator_; }
EXPORT cublasHandle_t getCurrentCUDABlasHandle(bool) { return (cublasHandle_t)&allocator_; }
namespace blas { EXPORT const char* _cublasGetErrorEnum(cublasStatus_t) { return "CUBLAS_STATUS"; } }
namespace solver { EXPORT const char* cusolverGetErrorMessage(cusolverStatus_t) { return "CUSOLVER_STATUS"; } }
}  // namespace at::cuda
extern "C" EXPORT const char* cusparseGetErrorString(cusparseStatus_t) { return "CUSPARSE_STATUS"; }
