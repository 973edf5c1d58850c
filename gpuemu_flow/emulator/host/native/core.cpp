// Memory of the device, checks of the host's own calls, and the way to the process that runs kernels.
#include "gpuemu.h"

#include <csignal>
#include <execinfo.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {
// What is global is never destroyed: programs free memory after the end of main, and we say goodbye later.
std::recursive_mutex& lock_ = *new std::recursive_mutex;
#define GUARD std::lock_guard<std::recursive_mutex> guard_(lock_)

constexpr uint8_t kPattern = 0xA5;                // PATTERN of gpuemu_flow/emulator/memory.py
constexpr size_t kFilled = 256ull << 20;          // larger allocations stay sparse, without the pattern
constexpr uint64_t kAlign = 512;

[[noreturn]] void die(const std::string& text) {
  fprintf(stderr, "gpuemu-flow: %s\n", text.c_str());
  _exit(70);
}

// ------------------------------------------------------------------ the other process
int memfd_ = -1, socket_ = -1;
pid_t owner_ = 0;
bool lost_ = false;
uint64_t changes_ = 0;                            // of memory, by calls of the host
std::string& notes_ = *new std::string;                               // messages without a reply, sent before the next request

void frame(std::string& to, const std::string& text) {
  uint64_t n = text.size();
  to.append((const char*)&n, 8);
  to += text;
}
bool send_all(const char* p, size_t n) {
  while (n) {
    ssize_t k = send(socket_, p, n, MSG_NOSIGNAL);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) return false;
    p += k; n -= k;
  }
  return true;
}
bool read_all(char* p, size_t n) {
  while (n) {
    ssize_t k = read(socket_, p, n);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) return false;
    p += k; n -= k;
  }
  return true;
}
void note(const std::string& text) {
  if (lost_ || getpid() != owner_) return;
  frame(notes_, text);
  if (notes_.size() > 1 << 16 && !lost_) { lost_ = !send_all(notes_.data(), notes_.size()); notes_.clear(); }
}
std::string ask(const std::string& text) {
  if (lost_ || getpid() != owner_) return "";
  frame(notes_, text);
  bool sent = send_all(notes_.data(), notes_.size());
  notes_.clear();
  uint64_t n = 0;
  std::string reply;
  if (sent && read_all((char*)&n, 8)) { reply.resize(n); if (read_all(&reply[0], n)) return reply; }
  lost_ = true;
  fprintf(stderr, "gpuemu-flow: the process that runs kernels has ended\n");
  return "";
}
std::string sites() {  // return addresses of the callers, from which the other process finds file and line
  void* found[12];
  int n = backtrace(found, 12);
  std::ostringstream text;
  for (int i = 2; i < n; i++) text << " " << (uint64_t)found[i];
  return text.str();
}

struct Printed { std::string text; };
Printed& printed_ = *new Printed;
void show() {
  if (printed_.text.empty()) return;
  fwrite(printed_.text.data(), 1, printed_.text.size(), stdout);
  printed_.text.clear();
}
__attribute__((destructor)) void farewell() {  // after the program's own destructors, which may free memory
  GUARD;
  if (socket_ < 0 || getpid() != owner_) return;
  show();
  fflush(stdout);
  ask("bye\n");
  close(socket_);
  socket_ = -1; lost_ = true;
}

char* alias_ = nullptr;  // the same memory again, for us: at its own address only shared memory is the host's
bool protect_ = true;
void* map(void* at, uint64_t offset, int rights, int fixed) {
  void* p = mmap(at, kData, rights, MAP_SHARED | MAP_NORESERVE | fixed, memfd_, offset);
  if (p == MAP_FAILED || (at && p != at)) die("the addresses of the emulated device are taken, or address space is limited (ulimit -v)");
  return p;
}
bool host_uses_device(uint64_t address, bool writes, uint64_t pc);
void on_fault(int number, siginfo_t* info, void* context) {
  bool writes = false;
  uint64_t pc = 0;
#if defined(__x86_64__)
  auto& registers = ((ucontext_t*)context)->uc_mcontext.gregs;
  writes = registers[REG_ERR] & 2;
  pc = registers[REG_RIP];
#endif
  host_uses_device((uint64_t)info->si_addr, writes, pc);
  signal(number, SIG_DFL);  // it happens again, and ends the program as with a GPU
}
bool forked() { return owner_ && getpid() != owner_; }  // a child shares the memory, and must leave it alone
bool open_device() {
  if (owner_) return getpid() == owner_;  // a forked child has no device, as with CUDA
  const char *path = getenv("GPUEMU_SOCKET"), *given = getenv("GPUEMU_FD");
  if (!path && !given) die("this program's libcudart is gpuemu-flow's; start it by: gpuemu-flow exec PROGRAM");
  memfd_ = memfd_create("gpuemu-device", MFD_CLOEXEC);
  if (memfd_ < 0 || ftruncate(memfd_, 2 * kData)) die("the device's memory cannot be made");
  map((void*)kBase, 0, PROT_NONE, MAP_FIXED_NOREPLACE);
  map((void*)kShadowAt, kData, PROT_READ | PROT_WRITE, MAP_FIXED_NOREPLACE);
  alias_ = (char*)map(nullptr, 0, PROT_READ | PROT_WRITE, 0);
  struct sigaction now{}, ours{};
  ours.sa_sigaction = on_fault;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  if (!sigaction(SIGSEGV, nullptr, &now) && now.sa_handler == SIG_DFL) sigaction(SIGSEGV, &ours, nullptr);
  if (given) {  // a connection that was made before, for a process that may open none
    socket_ = atoi(given);
    fcntl(socket_, F_SETFD, FD_CLOEXEC);
  } else {
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    snprintf(to.sun_path, sizeof to.sun_path, "%s", path);
    socket_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(socket_, (sockaddr*)&to, sizeof to)) die("gpuemu-flow exec does not answer");
  }
  std::string hello = "hello " + std::to_string(getpid()) + " " + std::to_string(kData);
  char space[CMSG_SPACE(sizeof(int))] = {};
  iovec part{&hello[0], hello.size()};
  msghdr message{};
  message.msg_iov = &part; message.msg_iovlen = 1;
  message.msg_control = space; message.msg_controllen = sizeof space;
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET; c->cmsg_type = SCM_RIGHTS; c->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(c), &memfd_, sizeof(int));
  char ready;
  owner_ = getpid();
  if (sendmsg(socket_, &message, MSG_NOSIGNAL) < 0 || !read_all(&ready, 1)) die("gpuemu-flow exec does not answer");
  return true;
}

// ------------------------------------------------------------------ allocations
std::map<uint64_t, GpuBlock>& live_ = *new std::map<uint64_t, GpuBlock>;               // by start
std::multimap<uint64_t, uint64_t>& gaps_ = *new std::multimap<uint64_t, uint64_t>;          // freed room between others: size, start
std::deque<std::pair<uint64_t, uint64_t>>& late_ = *new std::deque<std::pair<uint64_t, uint64_t>>;  // freed lately, and not yet used again: an access to it shows
uint64_t late_room_ = 0;
constexpr uint64_t kLate = 256ull << 20;
std::set<std::string>& said_ = *new std::set<std::string>;  // functions that are missing, and were called
int sticky_ = 0;
uint64_t top_ = 1 << 16, used_ = 0;

// Memory of the device costs this machine twice its size, data and shadow.
uint64_t capacity() {
  static uint64_t found = std::min<uint64_t>(kData / 2, (uint64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) / 4);
  return found;
}
uint64_t aligned(uint64_t n) { return (n + kAlign - 1) & ~(kAlign - 1); }
uint64_t guard_of(uint64_t size) { return aligned(std::min<uint64_t>(std::max<uint64_t>(size, 1 << 16), 1 << 20)); }
uint64_t room_of(uint64_t size) { return aligned(size) + 2 * guard_of(size); }
bool inside(const void* p) { return (uint64_t)p - kBase < kData; }
char* in(const void* p) { return inside(p) ? alias_ + ((uint64_t)p - kBase) : (char*)p; }
void allow(const GpuBlock& b, int rights) {
  if (!protect_) return;
  uint64_t from = b.start & ~4095ull, to = (b.start + b.size + 4095) & ~4095ull;  // guard zones keep others' pages away
  if (mprotect((void*)(kBase + from), to - from, rights)) gpuemu_share_all();     // too many pieces for the system
}
uint8_t* shadow(const void* p) { return (uint8_t*)p - kBase + kShadowAt; }
GpuBlock* find(const void* p) {
  uint64_t at = (uint64_t)p - kBase;
  auto it = live_.upper_bound(at);
  if (it == live_.begin()) return nullptr;
  --it;
  return at < it->second.start + std::max<uint64_t>(it->second.size, 1) ? &it->second : nullptr;
}
GpuBlock* nearest(const void* p) {
  uint64_t at = (uint64_t)p - kBase;
  auto it = live_.upper_bound(at);
  if (it == live_.begin()) return nullptr;
  --it;
  return at < it->second.start + room_of(it->second.size) ? &it->second : nullptr;
}
bool reaches_past(const void* p, size_t n, const GpuBlock* b) { return (uint64_t)p - kBase + n > b->start + b->size; }
std::string named(const GpuBlock* b) { return "{" + std::to_string(b->start) + "}"; }

void tell(const std::string& text) {  // the other process reads where our code is, as long as we are there
  note(text);
  ask("sync\n");
}
void report(const char* check, const char* rule, const std::string& words) {
  tell(std::string("finding ") + check + " " + rule + sites() + "\n" + words);
}
bool host_uses_device(uint64_t address, bool writes, uint64_t pc) {
  if (address - kBase >= kData || getpid() != owner_) return false;
  GpuBlock* b = find((void*)address);
  std::string what = b ? named(b) + ", which is memory of the device" : "memory of the device that is not allocated";
  tell("finding mem host-access " + std::to_string(pc + 1) + sites() + "\nthe host " + (writes ? "writes " : "reads ") + what);
  return true;
}
std::string format(const char* form, ...) {
  char text[512];
  va_list more;
  va_start(more, form);
  vsnprintf(text, sizeof text, form, more);
  va_end(more);
  return text;
}
}  // namespace

extern "C" {
void* gpuemu_allocate(size_t size, int state, uint32_t flags, const char* what) {
  GUARD;
  if (!open_device()) return nullptr;
  uint64_t room = room_of(size), at;
  if (room < size || used_ + size > capacity()) return nullptr;
  auto gap = gaps_.lower_bound(room);
  if (gap != gaps_.end() && gap->first <= 2 * room) {
    at = gap->second;
    uint64_t rest = gap->first - room;
    gaps_.erase(gap);
    if (rest) gaps_.insert({rest, at + room});
  } else {
    if (top_ + room > kData) return nullptr;
    at = top_;
    top_ += room;
  }
  uint64_t start = at + guard_of(size);
  live_[start] = {start, size, flags};
  used_ += size;
  if (flags & kHostVisible) allow(live_[start], PROT_READ | PROT_WRITE);
  if (state == kUnwritten && size < kFilled) memset(alias_ + start, kPattern, size);
  memset((void*)(kShadowAt + start), state, size);
  note("allocate " + std::to_string(start) + " " + std::to_string(size) + " " + std::to_string(flags) + " " + what + (strcmp(what, "tensor") ? sites() : "") + "\n");
  return (void*)(kBase + start);
}
int gpuemu_free(void* p, const char* what) {
  GUARD;
  if (!p) return kDone;
  if (forked()) return kNotInitialised;
  auto it = inside(p) ? live_.find((uint64_t)p - kBase) : live_.end();
  if (it == live_.end() || it->second.flags & kVariable) {
    GpuBlock* b = inside(p) ? find(p) : nullptr;
    if (b && b->start + kBase == (uint64_t)p) report("mem", "invalid-free", std::string(what) + " of the variable " + named(b));
    else if (b) report("mem", "invalid-free", format("%s of an address %llu bytes inside of ", what, (unsigned long long)((uint64_t)p - kBase - b->start)) + named(b));
    else if (inside(p)) report("mem", "double-free", format("%s of <%llu>, which was freed before", what, (unsigned long long)((uint64_t)p - kBase)));
    else report("mem", "invalid-free", format("%s of %p, which is no memory of the device", what, p));
    return kInvalidValue;
  }
  GpuBlock b = it->second;
  memset(shadow(p), kFree, b.size);
  if (b.size >= 1 << 16) {  // give whole pages back
    uint64_t from = (b.start + 4095) & ~4095ull, to = (b.start + b.size) & ~4095ull;
    madvise(alias_ + from, to - from, MADV_REMOVE);
    madvise((void*)(kShadowAt + from), to - from, MADV_REMOVE);
  }
  if (b.flags & kHostVisible) allow(b, PROT_NONE);
  live_.erase(it);
  used_ -= b.size;
  late_.push_back({room_of(b.size), b.start - guard_of(b.size)});
  late_room_ += late_.back().first;
  while (late_room_ > kLate || late_.size() > 4096) {
    late_room_ -= late_.front().first;
    gaps_.insert(late_.front());
    late_.pop_front();
  }
  note("free " + std::to_string(b.start) + (strcmp(what, "tensor") ? sites() : "") + "\n");  // tensors: too many to trace
  return kDone;
}
void gpuemu_share(void* p) {
  GUARD;
  GpuBlock* b = inside(p) ? find(p) : nullptr;
  if (!b || b->flags & kHostVisible) return;
  b->flags |= kHostVisible;
  allow(*b, PROT_READ | PROT_WRITE);
  note("share " + std::to_string(b->start) + "\n");
}
void gpuemu_share_all(void) {
  GUARD;
  if (open_device() && protect_) mprotect((void*)kBase, kData, PROT_READ | PROT_WRITE);
  protect_ = false;
}
void* gpuemu_host(const void* p) { return in(p); }
int gpuemu_find(const void* p, GpuBlock* out) {
  GUARD;
  GpuBlock* b = inside(p) ? find(p) : nullptr;
  if (b && out) *out = *b;
  return b ? 0 : 1;
}
void gpuemu_mark(void* p, size_t n, int state) { changes_++; if (inside(p) && !forked()) memset(shadow(p), state, n); }
size_t gpuemu_unwritten(const void* p, size_t n, size_t* first) {
  if (!inside(p)) return 0;
  uint8_t* at = shadow(p);
  void* found = memchr(at, kUnwritten, n);
  if (!found) return 0;
  size_t from = (uint8_t*)found - at, count = 0;
  for (size_t i = from; i < n; i++) count += at[i] == kUnwritten;
  if (first) *first = from;
  return count;
}
void gpuemu_room(size_t* left, size_t* total) { GUARD; *total = capacity(); *left = capacity() - used_; }

int gpuemu_copy(void* to, const void* from, size_t width, size_t height, size_t to_pitch, size_t from_pitch, int kind, const char* what) {
  GUARD;
  if (int e = gpuemu_status()) return e;
  if (!width || !height) return kDone;
  if (!to || !from) return kInvalidValue;
  if (kind < 0 || kind > kDefault) return 21;  // cudaErrorInvalidMemcpyDirection
  if (height > 1 && (width > to_pitch || width > from_pitch)) return 12;  // cudaErrorInvalidPitchValue
  if (!open_device()) return kNotInitialised;
  size_t to_all = (height - 1) * to_pitch + width, from_all = (height - 1) * from_pitch + width;
  GpuBlock *a = inside(to) ? find(to) : nullptr, *b = inside(from) ? find(from) : nullptr;
  bool device_to = kind == kHostToDevice || kind == kDeviceToDevice, device_from = kind == kDeviceToHost || kind == kDeviceToDevice;
  std::string head = format("%s of %zu bytes ", what, width * height), wrong;
  const char* rule = "out-of-bounds";
  if (inside(to) && !a) wrong = nearest(to) ? "writes outside of " + named(nearest(to)) : "writes where nothing is allocated";
  else if (inside(from) && !b) wrong = nearest(from) ? "reads outside of " + named(nearest(from)) : "reads where nothing is allocated";
  else if (device_to && !a) rule = "wrong-direction", wrong = "goes to a host pointer, but its kind says that it goes to the device";
  else if (device_from && !b) rule = "wrong-direction", wrong = "comes from a host pointer, but its kind says that it comes from the device";
  else if ((kind == kDeviceToHost || kind == kHostToHost) && a && !(a->flags & kHostVisible))
    rule = "wrong-direction", wrong = "goes to device memory, but its kind says that it goes to the host: " + named(a);
  else if ((kind == kHostToDevice || kind == kHostToHost) && b && !(b->flags & kHostVisible))
    rule = "wrong-direction", wrong = "comes from device memory, but its kind says that it comes from the host: " + named(b);
  else if (a && reaches_past(to, to_all, a))
    wrong = format("writes %llu bytes past the end of ", (unsigned long long)((uint64_t)to - kBase + to_all - a->start - a->size)) + named(a);
  else if (b && reaches_past(from, from_all, b))
    wrong = format("reads %llu bytes past the end of ", (unsigned long long)((uint64_t)from - kBase + from_all - b->start - b->size)) + named(b);
  if (!wrong.empty()) {
    report("mem", rule, head + wrong);
    return kInvalidValue;
  }
  size_t bad = 0, where = 0;
  changes_++;
  for (size_t row = 0; row < height; row++) {
    char* t = (char*)to + row * to_pitch;
    const char* f = (const char*)from + row * from_pitch;
    if (b && (!a || kind == kDeviceToHost)) {  // the host reads pinned memory, too, without asking
      size_t first, n = gpuemu_unwritten(f, width, &first);
      if (n && !bad) where = (uint64_t)f - kBase - b->start + first;
      bad += n;
    }
    memmove(in(t), in(f), width);
    if (a && b) memmove(shadow(t), shadow(f), width);
    if (a && (!b || a->flags & kConstant || b->flags & kConstant)) memset(shadow(t), a->flags & kConstant ? kReadOnly : kWritten, width);
  }
  if (bad) tell("unwritten " + std::to_string((uint64_t)from - kBase) + " " + std::to_string(from_all) + sites() + "\n" + head + format("reads %zu bytes that nobody wrote; the first is byte %zu of ", bad, where) + named(b));
  return kDone;
}
int gpuemu_fill(void* to, const void* item, size_t item_size, size_t width, size_t height, size_t pitch, const char* what) {
  GUARD;
  if (int e = gpuemu_status()) return e;
  if (!width || !height) return kDone;
  if (!open_device()) return kNotInitialised;
  GpuBlock* a = inside(to) ? find(to) : nullptr;
  size_t all = (height - 1) * pitch + width;
  if (!a || reaches_past(to, all, a)) {
    std::string wrong = !a ? "writes to an address that is no memory of the device"
        : format("writes %llu bytes past the end of ", (unsigned long long)((uint64_t)to - kBase + all - a->start - a->size)) + named(a);
    report("mem", "out-of-bounds", format("%s of %zu bytes ", what, width * height) + wrong);
    return kInvalidValue;
  }
  changes_++;
  for (size_t row = 0; row < height; row++) {
    char* t = (char*)to + row * pitch;
    if (item_size == 1) memset(in(t), *(const uint8_t*)item, width);
    else for (size_t i = 0; i + item_size <= width; i += item_size) memcpy(in(t) + i, item, item_size);
    memset(shadow(t), a->flags & kConstant ? kReadOnly : kWritten, width);
  }
  return kDone;
}
void gpuemu_rename(void* p, uint32_t item, const char* name) {
  GUARD;
  if (GpuBlock* b = inside(p) ? find(p) : nullptr) note("name " + std::to_string(b->start) + " " + std::to_string(item) + " " + name + "\n");
}
void gpuemu_finding(const char* check, const char* rule, const char* words) { GUARD; if (open_device()) report(check, rule, words); }
void gpuemu_finding_at(const char* check, const char* rule, const char* place, const char* words) {
  GUARD;
  std::string at = place;
  std::replace(at.begin(), at.end(), ' ', '\1');
  if (open_device()) tell(std::string("finding ") + check + " " + rule + (at.empty() ? sites() : " @" + at) + "\n" + words);
}
void gpuemu_unsupported(const char* name) {
  GUARD;
  if (said_.insert(name).second && open_device()) tell(std::string("unsupported ") + name + sites() + "\n");
}
void gpuemu_source(const char* name, const char* place) {
  GUARD;
  if (open_device()) note(std::string("source ") + name + "\n" + place);
}
void gpuemu_problem(const char* text) { GUARD; tell(std::string("problem\n") + text); }
const char* gpuemu_report(size_t* size) {
  GUARD;
  static std::string& reply = *new std::string;
  show();
  fflush(stdout);
  said_.clear();
  sticky_ = 0;
  reply = open_device() ? ask("report\n") : "";
  *size = reply.size();
  return reply.data();
}
int gpuemu_handle(void* handle, int action) {
  GUARD;
  static std::set<void*>& known = *new std::set<void*>;
  if (action > 0) return known.insert(handle).second;
  return action ? known.erase(handle) : known.count(handle);
}
int gpuemu_architecture(void) {
  static int found = [] { const char* given = getenv("GPUEMU_ARCH"); int n = given ? atoi(given) : 0; return n >= 50 ? n : 80; }();
  return found;
}
}

// ------------------------------------------------------------------ modules and launches
struct GpuModule {
  int number;
  std::deque<GpuVariable> variables;
  std::map<std::string, GpuKernel*> kernels;
};
namespace {
int modules_ = 0;

// The reply to `module` and `entry` lists variables that have no memory yet; bind tells where they are.
void bind(GpuModule* m, std::istringstream& lines) {
  std::ostringstream told;
  told << "bind " << m->number << "\n";
  std::string word, name;
  uint64_t size;
  int constant;
  bool any = false;
  while (lines >> word && word == "variable") {
    lines >> name >> size >> constant;
    void* at = gpuemu_allocate(size, kWritten, kVariable | (constant ? kConstant : 0), "variable");
    if (!at) die("the device has no room for the variable " + name);
    memset(in(at), 0, size);
    m->variables.push_back({strdup(name.c_str()), at, (size_t)size, constant});
    told << name << " " << (uint64_t)at << "\n";
    any = true;
  }
  if (any) ask(told.str());
}
}  // namespace

extern "C" {
GpuModule* gpuemu_load(const void* const* images, const size_t* sizes, size_t count) {
  GUARD;
  if (!open_device()) return nullptr;
  auto* m = new GpuModule{modules_++, {}, {}};
  std::string text = "module " + std::to_string(m->number);
  for (size_t i = 0; i < count; i++) text += " " + std::to_string(sizes[i]);
  text += "\n";
  for (size_t i = 0; i < count; i++) text.append((const char*)images[i], sizes[i]);
  std::istringstream lines(ask(text));
  std::string word;
  if (!(lines >> word) || word != "ok") { delete m; return nullptr; }
  bind(m, lines);
  return m;
}
void gpuemu_unload(GpuModule* m) {
  GUARD;
  for (auto& v : m->variables) {
    GpuBlock b;
    if (!gpuemu_find(v.address, &b)) { live_[b.start].flags &= ~(uint32_t)kVariable; gpuemu_free(v.address, "unload"); }
  }
  m->variables.clear();
}
GpuKernel* gpuemu_kernel(GpuModule* m, const char* name) {
  GUARD;
  auto it = m->kernels.find(name);
  if (it != m->kernels.end()) return it->second;
  std::istringstream words(ask("entry " + std::to_string(m->number) + " " + name + "\n"));
  std::string word;
  words >> word;
  auto* k = new GpuKernel{m, strdup(name), nullptr, 0, 0, nullptr, nullptr, 0, 0, 1024, 32, 0};
  if (word == "none") { delete k; return m->kernels[name] = nullptr; }
  if (word != "ok") {
    std::string said;
    std::getline(words >> std::ws, said);
    k->problem = strdup(said.c_str());
    return m->kernels[name] = k;
  }
  words >> k->count >> k->bytes >> k->shared >> k->local >> k->threads;
  auto *offsets = new uint32_t[k->count + 1], *sizes = new uint32_t[k->count + 1];
  for (uint32_t i = 0; i < k->count; i++) words >> offsets[i] >> sizes[i];
  k->offsets = offsets; k->sizes = sizes;
  bind(m, words);
  return m->kernels[name] = k;
}
GpuVariable* gpuemu_variable(GpuModule* m, const char* name) {
  for (auto& v : m->variables) if (!strcmp(v.name, name)) return &v;
  return nullptr;
}
void gpuemu_pack(GpuKernel* k, void** arguments, void* parameters) {
  memset(parameters, 0, k->bytes);
  for (uint32_t i = 0; i < k->count; i++) memcpy((char*)parameters + k->offsets[i], arguments[i], k->sizes[i]);
}
int gpuemu_launch(GpuKernel* k, const uint32_t grid[3], const uint32_t block[3], const uint32_t cluster[3], size_t shared,
                  int cooperative, const void* parameters) {
  GUARD;
  if (sticky_) return sticky_;
  if (k->problem) { gpuemu_problem(k->problem); return sticky_ = kNotSupported; }  // what it would have written is unknown
  uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
  if (!threads || threads > 1024 || threads > k->threads || block[0] > 1024 || block[1] > 1024 || block[2] > 64 || !grid[0] ||
      !grid[1] || !grid[2] || grid[0] > 0x7fffffffu || grid[1] > 65535 || grid[2] > 65535) {
    return threads > k->threads && threads <= 1024 ? kOutOfResources : kInvalidConfiguration;
  }
  if (k->shared + shared > std::max<size_t>(48 << 10, k->dynamic + k->shared)) return kInvalidValue;
  std::ostringstream text;
  text << "launch " << k->module->number << " " << k->name << " " << grid[0] << " " << grid[1] << " " << grid[2] << " " << block[0]
       << " " << block[1] << " " << block[2] << " " << shared << " " << cluster[0] << " " << cluster[1] << " " << cluster[2] << " "
       << changes_ << " " << cooperative << sites() << "\n";
  std::string request = text.str();
  request.append((const char*)parameters, k->bytes);
  std::string reply = ask(request);
  if (reply.empty()) return sticky_ = kUnknown;
  int code = 0, at = 0;
  sscanf(reply.c_str(), "%d%n", &code, &at);
  printed_.text.append(reply, at + 1, std::string::npos);
  if (printed_.text.size() > 1 << 20) show();
  if (code && code != kInvalidConfiguration && code != kInvalidValue) sticky_ = code;
  return code;
}
GpuVariable* gpuemu_variables(GpuModule* m, size_t* count) {  // the first ones, until another kernel is loaded
  static std::vector<GpuVariable>& copy = *new std::vector<GpuVariable>;
  copy.assign(m->variables.begin(), m->variables.end());
  *count = copy.size();
  return copy.data();
}
int gpuemu_status(void) { return sticky_; }
void gpuemu_reset(void) { sticky_ = 0; }
void gpuemu_synchronise(void) { GUARD; show(); }
}
