"""C that every generated file begins with: state, checked memory, integer helpers.

Generated C contains no text from the PTX file, only numbers and names made here. Every access to
emulated memory is checked, in most cases by ``at_load`` or ``at_store``: for an offset that is out
of bounds, misaligned, unwritten or read-only, they set ``err``. A launch that set ``err`` is thrown
away and repeated by numpy, which describes the findings. If the launch is large, numpy describes
those of some of its blocks, and C repeats it and goes on past them (``lenient``): a store that is
not allowed does nothing, and a load gives what is there.
"""

from __future__ import annotations

from gpuemu_flow.emulator.memory import GLOBAL_BASE

MAX_THREADS = 1024

STATE = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include <float.h>
#include <fenv.h>
#if FLT_EVAL_METHOD != 0
#error "floating-point arithmetic with more precision than its type"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "not little-endian"
#endif
#define U static inline __attribute__((always_inline, unused))
#define V static __attribute__((noinline, unused))
#define RARE(x) __builtin_expect(!!(x), 0)
#define MT 1024
#define MW 1056
#define GLOBAL_BASE @BASE@ull
#define SHARED_BASE 0x010000000000ull
#define LOCAL_BASE 0x020000000000ull
#define WINDOW 0x1000000000ull
#define COPIES 512
typedef unsigned __int128 u128;
typedef __int128 s128;
typedef struct {
  uint8_t *g, *gs; uint64_t gcap;
  uint8_t *sm, *ss; const uint8_t *template; uint64_t scap;
  uint8_t *lm, *ls; uint64_t lcap, lbytes;
  const uint8_t *par; const uint64_t *sym; uint64_t par_address;
  const int64_t *ids;
  int64_t spent, executed, budget;
  uint32_t nt[3], nc[3];
  uint32_t threads, dyn, total, unwritten, sync, across;
  uint32_t *owners, *marks; uint64_t *inner;
  uint32_t mark, age;
  uint8_t *pages, *journal; uint32_t *touched; uint64_t *journaled;
  int64_t failed; uint32_t lenient;
} Args;
typedef struct { uint32_t when, epoch; uint16_t who; } Write;
typedef struct {
  Write weak, strong;
  uint32_t read_when, read_epoch;
  uint16_t reader;
  uint8_t read_strong, readers, read_warp;
} Cell;
typedef struct { uint64_t to, from; uint32_t size, taken; int32_t group, live; } Copy;
typedef struct {
  Args *a;
  uint32_t cta[3], linear, threads, width;
  int32_t err, name, wanted_set;
  uint32_t tx[MW], ty[MW], tz[MW];
  uint8_t cond[MW], on[MW], waits[MW], vote[MW];
  uint32_t sel[MW], bar_name[MW], bar_wanted[MW];
  int32_t pc[MW], act[MW], live[MW], bar_block[MW], bar_at[MW];
  int32_t group[MW], pending[MW];
  uint32_t arrived[16];
  uint8_t carry[MW];
  uint32_t clock[33][33], known[16][33], epoch, strong, together;
  uint64_t stack[MW];
  uint64_t stamp[33], shared_end; uint32_t stamps, *quiet, *marks;
  Cell *cells;
  struct Later *later;
  Copy *copies;
  RF *f;
  uint8_t scrap[64];
} St;
""".replace("@BASE@", hex(GLOBAL_BASE))

OFFSETS = r"""
U int readable(const uint8_t *w, unsigned n) {
  if (n == 1) return (w[0] & 2) != 0;
  if (n == 2) { uint16_t x; memcpy(&x, w, 2); return (x & 0x0202u) == 0x0202u; }
  if (n == 4) { uint32_t x; memcpy(&x, w, 4); return (x & 0x02020202u) == 0x02020202u; }
  uint64_t all = 0x0202020202020202ull;
  for (unsigned k = 0; k < n; k += 8) {
    uint64_t x; memcpy(&x, w + k, 8); all &= x;
  }
  return all == 0x0202020202020202ull;
}
V int write_slow(uint8_t *w, unsigned n) {
  for (unsigned k = 0; k < n; k++) if (w[k] != 1 && w[k] != 2) return 0;
  memset(w, 2, n);
  return 1;
}
U int writable(uint8_t *w, unsigned n) {
  if (n == 4) { uint32_t x; memcpy(&x, w, 4); if (x == 0x02020202u) return 1; }
  else if (n == 8) { uint64_t x; memcpy(&x, w, 8); if (x == 0x0202020202020202ull) return 1; }
  return write_slow(w, n);
}
U int differs(const uint8_t *p, const uint8_t *b, unsigned n) {
  if (n == 1) return *p != *b;
  if (n == 2) { uint16_t x, y; memcpy(&x, p, 2); memcpy(&y, b, 2); return x != y; }
  if (n == 4) { uint32_t x, y; memcpy(&x, p, 4); memcpy(&y, b, 4); return x != y; }
  uint64_t any = 0;
  for (unsigned k = 0; k < n; k += 8) {
    uint64_t x, y; memcpy(&x, p + k, 8); memcpy(&y, b + k, 8); any |= x ^ y;
  }
  return any != 0;
}
#define BAD UINT64_MAX
V uint64_t bad_load(St *s, const uint8_t *shadow, uint64_t cap, uint64_t o, unsigned n) {
  s->err |= 1;
  if (cap < n || o > cap - n) return 0;
  for (unsigned k = 0; k < n; k++) if (!shadow[o + k]) return 0;
  return o;
}
U uint64_t at_load(St *s, const uint8_t *shadow, uint64_t cap, uint64_t o, unsigned n) {
  if (RARE(cap < n || o > cap - n || (o & (n - 1)) || !readable(shadow + o, n)))
    return bad_load(s, shadow, cap, o, n);
  return o;
}
U uint64_t at_store(St *s, uint8_t *shadow, uint64_t cap, uint64_t o, unsigned n) {
  if (RARE(cap < n || o > cap - n || (o & (n - 1)) || !writable(shadow + o, n))) {
    s->err |= 1;
    return BAD;
  }
  return o;
}
"""

MEMORY = r"""
V void keep_page(Args *a, uint64_t page) {
  uint8_t *to = a->journal + (*a->journaled << 13);
  memcpy(to, a->g + (page << 12), 4096);
  memcpy(to + 4096, a->gs + (page << 12), 4096);
  a->touched[(*a->journaled)++] = (uint32_t)page;
  a->pages[page] = 1;
}
U void touch(St *s, uint64_t o) {
  if (s->a->pages && o < s->a->gcap && RARE(!s->a->pages[o >> 12])) keep_page(s->a, o >> 12);
}
U uint8_t *ld_global(St *s, uint32_t t, uint64_t a, unsigned n) {
  uint64_t o = at_load(s, s->a->gs, s->a->gcap, a - GLOBAL_BASE, n);
  if (RACES) inner(s, t, o, n, s->strong ? STRONG : READ);
  if (RACES && s->a->across) {
    if (s->strong) global_update(s, o, n); else global_read(s, o, n);
  }
  return s->a->g + o;
}
U void wr_global(St *s, uint32_t t, uint64_t a, unsigned n, const uint8_t *b) {
  touch(s, a - GLOBAL_BASE);
  uint64_t o = at_store(s, s->a->gs, s->a->gcap, a - GLOBAL_BASE, n);
  if (RARE(o == BAD)) return;
  uint8_t *p = s->a->g + o;
  if (RACES && !RARE(s->err))
    inner(s, t, o, n, s->strong ? STRONG : differs(p, b, n) ? WROTE : KEPT);
  if (RACES && s->a->across && !RARE(s->err)) {
    if (s->strong) global_update(s, o, n);
    else if (differs(p, b, n)) global_write(s, o, n);
    else global_read(s, o, n);
  }
  if (RACES && !RARE(s->err)) meet(s, t, s->a->marks + (o >> GRAIN), n, p, b);
  memcpy(p, b, n);
}
U uint8_t *up_global(St *s, uint32_t t, uint64_t a, unsigned n) {
  touch(s, a - GLOBAL_BASE);
  uint64_t o = at_load(s, s->a->gs, s->a->gcap, a - GLOBAL_BASE, n);
  o = at_store(s, s->a->gs, s->a->gcap, o, n);
  if (RARE(o == BAD)) return s->scrap;
  if (RACES && !RARE(s->err)) inner(s, t, o, n, STRONG);
  if (RACES && s->a->across && !RARE(s->err)) global_update(s, o, n);
  return s->a->g + o;
}
U uint8_t *ld_shared(St *s, uint32_t t, uint64_t a, unsigned n) {
  uint64_t o = a;
  if (!RACES) o = at_load(s, s->a->ss, s->a->scap, a, n);
  else if (RARE(a >= s->shared_end || a & (n - 1) || !is_quiet(s, t, a, n)))
    o = loud_read(s, t, a, n);
  return s->a->sm + o;
}
U void wr_shared(St *s, uint32_t t, uint64_t a, unsigned n, const uint8_t *b) {
  uint64_t o = at_store(s, s->a->ss, s->a->scap, a, n);
  if (RARE(o == BAD)) return;
  uint8_t *p = s->a->sm + o;
  if (RACES) {
    if (differs(p, b, n)) shared_write(s, t, o, n); else shared_same(s, t, o, n);
    if (s->strong) meet(s, t, s->marks + (o >> GRAIN), n, p, b);
  }
  memcpy(p, b, n);
}
U uint8_t *up_shared(St *s, uint32_t t, uint64_t a, unsigned n) {
  uint64_t o = at_load(s, s->a->ss, s->a->scap, a, n);
  o = at_store(s, s->a->ss, s->a->scap, o, n);
  if (RARE(o == BAD)) return s->scrap;
  if (RACES) {
    s->strong = 1; shared_read(s, t, o, n); shared_write(s, t, o, n); s->strong = 0;
  }
  return s->a->sm + o;
}
U uint8_t *ld_local(St *s, uint32_t t, uint64_t a, unsigned n) {
  uint64_t base = s->a->lcap * t;
  return s->a->lm + base + at_load(s, s->a->ls + base, s->a->lcap, a, n);
}
U void wr_local(St *s, uint32_t t, uint64_t a, unsigned n, const uint8_t *b) {
  uint64_t base = s->a->lcap * t, o = at_store(s, s->a->ls + base, s->a->lcap, a, n);
  if (o != BAD) memcpy(s->a->lm + base + o, b, n);
}
U uint8_t *up_local(St *s, uint32_t t, uint64_t a, unsigned n) {
  uint64_t base = s->a->lcap * t, o = at_load(s, s->a->ls + base, s->a->lcap, a, n);
  o = at_store(s, s->a->ls + base, s->a->lcap, o, n);
  return o == BAD ? s->scrap : s->a->lm + base + o;
}
V uint8_t *ld_generic(St *s, uint32_t t, uint64_t a, unsigned n) {
  if (a - SHARED_BASE < WINDOW) return ld_shared(s, t, a - SHARED_BASE, n);
  if (a - LOCAL_BASE < WINDOW) return ld_local(s, t, a - LOCAL_BASE, n);
  return ld_global(s, t, a, n);
}
V void wr_generic(St *s, uint32_t t, uint64_t a, unsigned n, const uint8_t *b) {
  if (a - SHARED_BASE < WINDOW) wr_shared(s, t, a - SHARED_BASE, n, b);
  else if (a - LOCAL_BASE < WINDOW) wr_local(s, t, a - LOCAL_BASE, n, b);
  else wr_global(s, t, a, n, b);
}
V uint8_t *up_generic(St *s, uint32_t t, uint64_t a, unsigned n) {
  if (a - SHARED_BASE < WINDOW) return up_shared(s, t, a - SHARED_BASE, n);
  if (a - LOCAL_BASE < WINDOW) return up_local(s, t, a - LOCAL_BASE, n);
  return up_global(s, t, a, n);
}
U uint8_t get1(const uint8_t *p) { return *p; }
U uint16_t get2(const uint8_t *p) { uint16_t x; memcpy(&x, p, 2); return x; }
U uint32_t get4(const uint8_t *p) { uint32_t x; memcpy(&x, p, 4); return x; }
U uint64_t get8(const uint8_t *p) { uint64_t x; memcpy(&x, p, 8); return x; }
U void put1(uint8_t *p, uint8_t x) { *p = x; }
U void put2(uint8_t *p, uint16_t x) { memcpy(p, &x, 2); }
U void put4(uint8_t *p, uint32_t x) { memcpy(p, &x, 4); }
U void put8(uint8_t *p, uint64_t x) { memcpy(p, &x, 8); }
V void start_copy(St *s, uint32_t t, uint64_t to, uint64_t from, uint32_t size, uint32_t taken) {
  if (s->pending[t] >= COPIES) { s->err |= 1; return; }
  Copy *c = s->copies + (uint64_t)t * COPIES + s->pending[t]++;
  c->to = to; c->from = from; c->size = size; c->taken = taken; c->group = s->group[t];
}
V void wait_copies(St *s, uint32_t t, int32_t pending, int everything) {
  Copy *c = s->copies + (uint64_t)t * COPIES;
  int32_t kept = 0, count = s->pending[t];
  for (int32_t k = 0; k < count; k++) {
    if (!everything && c[k].group >= s->group[t] - pending) { c[kept++] = c[k]; continue; }
    for (uint32_t b = 0; b < c[k].size; b += 4) {
      uint32_t x = 0;
      if (c[k].taken > b) x = get4(ld_global(s, t, c[k].from + b, 4));
      uint8_t raw[4]; put4(raw, x); wr_shared(s, t, c[k].to + b, 4, raw);
    }
  }
  s->pending[t] = kept;
}
"""

INTEGERS = r"""
U float asf(uint32_t x) { float f; memcpy(&f, &x, 4); return f; }
U uint32_t fau(float f) { uint32_t x; memcpy(&x, &f, 4); return x; }
U double asd(uint64_t x) { double f; memcpy(&f, &x, 8); return f; }
U uint64_t dau(double f) { uint64_t x; memcpy(&x, &f, 8); return x; }
#define SIGNED_DIVISION(N) \
U int##N##_t div_s##N(int##N##_t a, int##N##_t b) { \
  if (b == 0) return -1; \
  if (b == -1) return (int##N##_t)(0u - (uint##N##_t)a); \
  return (int##N##_t)(a / b); } \
U int##N##_t rem_s##N(int##N##_t a, int##N##_t b) { \
  if (b == 0) return a; \
  if (b == -1) return 0; \
  return (int##N##_t)(a % b); } \
U uint##N##_t div_u##N(uint##N##_t a, uint##N##_t b) { \
  return b ? (uint##N##_t)(a / b) : (uint##N##_t)~(uint##N##_t)0; } \
U uint##N##_t rem_u##N(uint##N##_t a, uint##N##_t b) { return b ? (uint##N##_t)(a % b) : a; } \
U uint##N##_t shl_##N(uint##N##_t a, uint32_t n) { \
  return n >= N ? 0 : (uint##N##_t)(a << n); } \
U uint##N##_t shr_u##N(uint##N##_t a, uint32_t n) { \
  return n >= N ? 0 : (uint##N##_t)(a >> n); } \
U int##N##_t shr_s##N(int##N##_t a, uint32_t n) { \
  uint32_t m = n >= N ? N - 1 : n; \
  return a < 0 ? (int##N##_t)~((uint##N##_t)~(uint##N##_t)a >> m) : (int##N##_t)(a >> m); }
SIGNED_DIVISION(16)
SIGNED_DIVISION(32)
SIGNED_DIVISION(64)
#define FIELDS(N) \
U uint##N##_t ones_##N(uint32_t n) { return shl_##N(1, n) - 1; } \
U uint##N##_t bfe_u##N(uint##N##_t a, uint32_t p, uint32_t l) { \
  return shr_u##N(a, p & 255) & ones_##N(l & 255); } \
U int##N##_t bfe_s##N(int##N##_t v, uint32_t p, uint32_t l) { \
  uint##N##_t a = (uint##N##_t)v, x; \
  p &= 255; l &= 255; \
  if (l == 0) return 0; \
  x = bfe_u##N(a, p, l); \
  uint32_t top = p + l - 1 > N - 1 ? N - 1 : p + l - 1; \
  uint32_t kept = p < N ? N - p : 0; \
  if ((shr_u##N(a, top) & 1) != 0) x |= ~ones_##N(l < kept ? l : kept); \
  return (int##N##_t)x; } \
U uint##N##_t brev_##N(uint##N##_t a) { \
  uint##N##_t r = 0; \
  for (int k = 0; k < N; k++) { r = (uint##N##_t)(r << 1 | (a & 1)); a >>= 1; } \
  return r; }
FIELDS(32)
FIELDS(64)
#define INSERT(N) \
U uint##N##_t bfi_##N(uint##N##_t a, uint##N##_t b, uint32_t p, uint32_t l) { \
  uint##N##_t m = shl_##N(ones_##N(l & 255), p & 255); \
  return (b & ~m) | (shl_##N(a, p & 255) & m); }
INSERT(32)
INSERT(64)
U uint32_t szext(uint32_t a, uint32_t n, int sign) {
  uint32_t low, top;
  if (n >= 32) return a;
  low = a & ones_32(n);
  if (!sign || n == 0) return low;
  top = shl_32(1, n - 1);
  return low & top ? low - (top << 1) : low;
}
U uint32_t clz_32(uint32_t a) { return a ? (uint32_t)__builtin_clz(a) : 32; }
U uint32_t clz_64(uint64_t a) { return a ? (uint32_t)__builtin_clzll(a) : 64; }
U uint32_t funnel(uint32_t a, uint32_t b, uint32_t n, int left) {
  uint64_t pair = (uint64_t)b << 32 | a;
  return left ? (uint32_t)(pair << n >> 32) : (uint32_t)(pair >> n);
}
U int32_t clamp_32(int64_t x) {
  return x > INT32_MAX ? INT32_MAX : x < INT32_MIN ? INT32_MIN : (int32_t)x;
}
U int64_t low24_s32(int32_t a) { return (int64_t)(((uint32_t)a & 0xFFFFFF) ^ 0x800000) - 0x800000; }
U int64_t low24_u32(uint32_t a) { return (int64_t)(a & 0xFFFFFF); }
U uint32_t prmt(uint32_t a, uint32_t b, uint32_t sel) {
  uint64_t pair = (uint64_t)b << 32 | a;
  uint32_t out = 0;
  for (int k = 0; k < 4; k++) {
    uint32_t n = sel >> 4 * k & 15, x = (uint32_t)(pair >> 8 * (n & 7)) & 255;
    if (n & 8) x = x & 128 ? 255 : 0;
    out |= x << 8 * k;
  }
  return out;
}
U int32_t piece(uint32_t w, int bits, int k, int sign) {
  uint32_t x = w >> bits * k & ((1u << bits) - 1), half = 1u << (bits - 1);
  return sign ? (int32_t)(x ^ half) - (int32_t)half : (int32_t)x;
}
U int32_t part_of(uint32_t x, int shift, int bits, int sign) {
  int32_t v = (int32_t)(x >> shift & ((1u << bits) - 1));
  return sign && v >> (bits - 1) ? v - (1 << bits) : v;
}
U uint32_t pairs(int op, int sign, int relu, uint32_t a, uint32_t b) {
  uint32_t out = 0;
  for (int k = 0; k < 32; k += 16) {
    int32_t x = part_of(a, k, 16, sign), y = part_of(b, k, 16, sign);
    int32_t v = op == 0 ? x + y : op == 1 ? (x < y ? x : y) : (x > y ? x : y);
    out |= ((uint32_t)(relu && v < 0 ? 0 : v) & 0xFFFF) << k;
  }
  return out;
}
U uint32_t differences(int lanes, int sign, int sums, uint32_t a, uint32_t b, uint32_t c) {
  uint32_t out = sums ? c : 0;
  for (int bits = 32 / lanes, k = 0; k < 32; k += bits) {
    int32_t d = part_of(a, k, bits, sign) - part_of(b, k, bits, sign);
    uint32_t size = (uint32_t)(d < 0 ? -d : d);
    out += sums ? size : size << k;
  }
  return out;
}
U uint32_t nth_set(uint32_t mask, uint32_t base, int32_t n) {
  int step = n < 0 ? -1 : 1;
  int64_t left = n < 0 ? -(int64_t)n : n;
  for (int64_t at = base; at >= 0 && at < 32; at += step) {
    if (!(mask >> at & 1)) { if (!n) break; continue; }
    if (!n || --left == 0) return (uint32_t)at;
  }
  return 0xFFFFFFFF;
}
U uint32_t dot(uint32_t a, uint32_t b, uint32_t c, int as, int bs, int lanes, int offset) {
  for (int k = 0; k < lanes; k++)
    c += (uint32_t)piece(a, 32 / lanes, k, as) * (uint32_t)piece(b, 8, k + offset, bs);
  return c;
}
"""
