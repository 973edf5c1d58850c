"""C for floating-point arithmetic: exact in every mode, with the NaN patterns of the ISA.

For directed rounding, the processor's rounding mode is changed before an operation and restored
after it. The operands and the result are volatile, so that no compiler moves the operation out from
between the two changes.
"""

from __future__ import annotations

FLOATS = r"""
U float cf(float x) { return x != x ? asf(0x7fffffffu) : x; }
U double cd(double x) { return x != x ? asd(0x7ff8000000000000ull) : x; }
U float flf(float x) {
  return (fau(x) & 0x7f800000u) == 0 ? asf(fau(x) & 0x80000000u) : x;
}
U float satf(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }
U double satd(double x) { return x > 0 ? (x < 1 ? x : 1.0) : 0.0; }
#define MODES(T, S, FMA, SQRT) \
V T add_##S(T x, T y, int m) { volatile T a = x, b = y, r; \
  fesetround(m); r = a + b; fesetround(FE_TONEAREST); return r; } \
V T mul_##S(T x, T y, int m) { volatile T a = x, b = y, r; \
  fesetround(m); r = a * b; fesetround(FE_TONEAREST); return r; } \
V T div_##S(T x, T y, int m) { volatile T a = x, b = y, r; \
  fesetround(m); r = a / b; fesetround(FE_TONEAREST); return r; } \
V T sqrt_##S(T x, int m) { volatile T a = x, r; \
  fesetround(m); r = SQRT(a); fesetround(FE_TONEAREST); return r; } \
V T fma_##S(T x, T y, T z, int m) { volatile T a = x, b = y, c = z, r; \
  fesetround(m); r = FMA(a, b, c); fesetround(FE_TONEAREST); return r; } \
V T from_s_##S(int64_t x, int m) { volatile int64_t a = x; volatile T r; \
  fesetround(m); r = (T)a; fesetround(FE_TONEAREST); return r; } \
V T from_u_##S(uint64_t x, int m) { volatile uint64_t a = x; volatile T r; \
  fesetround(m); r = (T)a; fesetround(FE_TONEAREST); return r; }
MODES(float, f32, fmaf, sqrtf)
MODES(double, f64, fma, sqrt)
V float narrow_f32(double x, int m) { volatile double a = x; volatile float r;
  fesetround(m); r = (float)a; fesetround(FE_TONEAREST); return r; }
U float min_f32(float a, float b) {
  if (a != a) return b;
  if (b != b) return a;
  return a == b ? asf(fau(a) | fau(b)) : a < b ? a : b;
}
U float max_f32(float a, float b) {
  if (a != a) return b;
  if (b != b) return a;
  return a == b ? asf(fau(a) & fau(b)) : a > b ? a : b;
}
U double min_f64(double a, double b) {
  if (a != a) return b;
  if (b != b) return a;
  return a == b ? asd(dau(a) | dau(b)) : a < b ? a : b;
}
U double max_f64(double a, double b) {
  if (a != a) return b;
  if (b != b) return a;
  return a == b ? asd(dau(a) & dau(b)) : a > b ? a : b;
}
#define NAN_FORMS(T, S, NAN_) \
U T minnan_##S(T a, T b) { return a != a || b != b ? NAN_ : min_##S(a, b); } \
U T maxnan_##S(T a, T b) { return a != a || b != b ? NAN_ : max_##S(a, b); }
NAN_FORMS(float, f32, asf(0x7fffffffu))
NAN_FORMS(double, f64, asd(0x7ff8000000000000ull))
U double odd_sum(double a, double b) {
  double x = a + b, t = x - a, e = (a - (x - t)) + (b - t);
  uint64_t bits = dau(x);
  if (e != 0 && !(bits & 1) && x - x == 0 && x != 0)
    bits += (e > 0) == (x > 0) ? 1 : -1;
  return asd(bits);
}
"""

HALVES = r"""
U float h2f_soft(uint16_t h) {
  uint32_t e = h >> 10 & 31, m = h & 1023, s = (uint32_t)(h & 0x8000) << 16;
  if (e == 31) return asf(s | 0x7f800000u | m << 13);
  if (e == 0) return asf(s | fau((float)m * 0x1p-24f));
  return asf(s | (e + 112) << 23 | m << 13);
}
U uint16_t d2h(double x) {
  uint64_t b = dau(x);
  uint16_t s = (uint16_t)(b >> 48 & 0x8000);
  double m = asd(b & 0x7fffffffffffffffull);
  if (x != x) return 0x7fff;
  if (m >= 65520.0) return s | 0x7c00;
  if (m < 0x1p-14) return s | (uint16_t)rint(m * 0x1p24);
  int64_t e = (int64_t)(dau(m) >> 52) - 1023;
  uint64_t q = (dau(m) & 0xfffffffffffffull) | 0x10000000000000ull;
  uint64_t k = q >> 42, rest = q & 0x3ffffffffffull, half = 0x20000000000ull;
  k += rest > half || (rest == half && (k & 1));
  return (uint16_t)(s | (uint16_t)(((uint64_t)(e + 14) << 10) + k));
}
#ifdef __F16C__
typedef short v8hi __attribute__((vector_size(16)));
typedef float v4sf __attribute__((vector_size(16)));
U float h2f(uint16_t h) {
  v8hi x = {(short)h, 0, 0, 0, 0, 0, 0, 0};
  return ((v4sf)__builtin_ia32_vcvtph2ps(x))[0];
}
U uint16_t f2h(float x) {
  v4sf v = {x, 0, 0, 0};
  return x != x ? 0x7fff : (uint16_t)((v8hi)__builtin_ia32_vcvtps2ph(v, 0))[0];
}
#else
U float h2f(uint16_t h) { return h2f_soft(h); }
U uint16_t f2h(float x) { return d2h((double)x); }
#endif
U float flhf(uint16_t h) { return h2f(h & 0x7c00 ? h : h & 0x8000); }
V uint16_t d2h_mode(double x, int m) {
  uint16_t h = d2h(x);
  if (m == FE_TONEAREST || x != x) return h;
  double back = (double)h2f(h);
  int low = back < x, high = back > x;
  if (m == FE_UPWARD && low) return h == 0x8000 ? 0x0001 : h & 0x8000 ? h - 1 : h + 1;
  if (m == FE_DOWNWARD && high) return h == 0 ? 0x8001 : h & 0x8000 ? h + 1 : h - 1;
  if (m == FE_TOWARDZERO && (x < 0 ? low : high)) return h - 1;
  return h;
}
U uint16_t flh(uint16_t h) { return (h & 0x7c00) == 0 ? h & 0x8000 : h; }
U uint16_t sath(uint16_t h) { float x = h2f(h); return x > 0 ? (x < 1 ? h : 0x3c00) : 0; }
U uint16_t reluh(uint16_t h) { return h2f(h) < 0 ? 0 : h; }
U uint16_t add_h(uint16_t a, uint16_t b) { return f2h(h2f(a) + h2f(b)); }
U uint16_t sub_h(uint16_t a, uint16_t b) { return f2h(h2f(a) - h2f(b)); }
U uint16_t mul_h(uint16_t a, uint16_t b) { return f2h(h2f(a) * h2f(b)); }
U uint16_t fma_h(uint16_t a, uint16_t b, uint16_t c) {
  return d2h(odd_sum((double)h2f(a) * (double)h2f(b), (double)h2f(c)));
}
U float b2f(uint16_t b) { return asf((uint32_t)b << 16); }
U uint16_t f2b(float x, int m) {
  uint32_t u = fau(x), r = u >> 16;
  if (x != x) return 0x7fff;
  if (m == FE_TONEAREST) return (uint16_t)((u + 0x7fff + (r & 1)) >> 16);
  int away = m == FE_UPWARD ? !(u >> 31) : m == FE_DOWNWARD ? u >> 31 : 0;
  return (uint16_t)(r + ((u & 0xffff) != 0 && away && x - x == 0));
}
U uint16_t d2b(double x, int m) {
  float f = (float)x;
  if (x != x) return 0x7fff;
  if (x - x == 0 && (double)f != x) {
    uint32_t u = fau(f);
    if (fabs((double)f) > fabs(x)) u -= 1;
    f = asf(u | 1);
  }
  return f2b(f, m);
}
U uint16_t relub(uint16_t b) { return b2f(b) < 0 ? 0 : b; }
#define WB(x) ((double)b2f(x))
U uint16_t add_b(uint16_t a, uint16_t b) { return d2b(odd_sum(WB(a), WB(b)), FE_TONEAREST); }
U uint16_t sub_b(uint16_t a, uint16_t b) { return d2b(odd_sum(WB(a), -WB(b)), FE_TONEAREST); }
U uint16_t mul_b(uint16_t a, uint16_t b) { return d2b(WB(a) * WB(b), FE_TONEAREST); }
U uint16_t fma_b(uint16_t a, uint16_t b, uint16_t c) {
  return d2b(odd_sum(WB(a) * WB(b), WB(c)), FE_TONEAREST);
}
#define EXTREME(N) \
U uint16_t N##_h(uint16_t a, uint16_t b) { return f2h(N##_f32(h2f(a), h2f(b))); } \
U uint16_t N##_b(uint16_t a, uint16_t b) { return f2b(N##_f32(b2f(a), b2f(b)), FE_TONEAREST); }
EXTREME(min) EXTREME(max) EXTREME(minnan) EXTREME(maxnan)
U uint16_t ex2_h(uint16_t a) { return d2h(exp2((double)h2f(a))); }
U uint16_t tanh_h(uint16_t a) { return d2h(tanh((double)h2f(a))); }
U uint16_t ex2_b(uint16_t a) { return d2b(exp2(WB(a)), FE_TONEAREST); }
U uint16_t tanh_b(uint16_t a) { return d2b(tanh(WB(a)), FE_TONEAREST); }
U uint32_t pack(uint16_t lower, uint16_t upper) { return lower | (uint32_t)upper << 16; }
#define LO(x) ((uint16_t)(x))
#define HI(x) ((uint16_t)((x) >> 16))
U double fp8(uint8_t x, int four) {
  int e = four ? x >> 3 & 15 : x >> 2 & 31, f = four ? x & 7 : x & 3;
  double v;
  if (four && (x & 127) == 127) return asd(0x7ff8000000000000ull);
  if (!four && e == 31) v = f ? asd(0x7ff8000000000000ull) : asd(0x7ff0000000000000ull);
  else if (e == 0) v = f * (four ? 0x1p-9 : 0x1p-16);
  else v = ldexp(1 + f * (four ? 0.125 : 0.25), e - (four ? 7 : 15));
  return x & 128 ? -v : v;
}
V uint8_t to_fp8(double x, int four, int relu) {
  int low = 0, high = four ? 126 : 123;
  double m = fabs(x), most = four ? 448.0 : 57344.0, up, down;
  if (x != x) return 0x7f;
  if (relu && x < 0) return 0;
  if (m > most) m = most;
  while (low < high) {
    int middle = (low + high) / 2;
    if (fp8((uint8_t)middle, four) < m) low = middle + 1; else high = middle;
  }
  up = fp8((uint8_t)low, four) - m;
  down = low ? m - fp8((uint8_t)(low - 1), four) : up;
  if (up != 0 && (down < up || (down == up && low % 2))) low--;
  return (uint8_t)(low | (dau(x) >> 63 ? 128 : 0));
}
#define NARROW(x, y, four, relu) \
  ((uint16_t)(to_fp8((double)(y), four, relu) | (uint32_t)to_fp8((double)(x), four, relu) << 8))
#define WIDEN(x, four) pack(d2h(fp8((uint8_t)(x), four)), d2h(fp8((uint8_t)((x) >> 8), four)))
U uint32_t tf32(float x, int m) {
  uint32_t u = fau(x), r = u;
  if (x != x) return 0x7fffffffu;
  if (x - x != 0) return u;
  if (m == 1) r = u + 0x1000;
  else if (m == 0) r = u + 0xfff + (u >> 13 & 1);
  return r & 0xffffe000u;
}
#define TO_INTEGER(T, S, LOW, HIGH, LEAST, MOST, MISS) \
U T to_##S(double w) { \
  return w != w ? (T)(MISS) : w >= HIGH ? (T)(MOST) : w <= LOW ? (T)(LEAST) : (T)w; }
TO_INTEGER(int8_t, s8, -128.0, 127.0, INT8_MIN, INT8_MAX, 0)
TO_INTEGER(uint8_t, u8, 0.0, 255.0, 0, UINT8_MAX, 0)
TO_INTEGER(int16_t, s16, -32768.0, 32767.0, INT16_MIN, INT16_MAX, 0)
TO_INTEGER(uint16_t, u16, 0.0, 65535.0, 0, UINT16_MAX, 0)
TO_INTEGER(int32_t, s32, -0x1p31, 2147483647.0, INT32_MIN, INT32_MAX, 0)
TO_INTEGER(uint32_t, u32, 0.0, 4294967295.0, 0, UINT32_MAX, 0)
TO_INTEGER(int64_t, s64, -0x1p63, 0x1p63, INT64_MIN, INT64_MAX, INT64_MIN)
TO_INTEGER(uint64_t, u64, 0.0, 0x1p64, 0, UINT64_MAX, 0x8000000000000000ull)
"""


# C that detects possible races and missing threads; numpy decides whether they are real.


RACES = r"""
#define CELLS(n) ((n) > 1 << GRAIN ? (n) >> GRAIN : 1)
#define COLD static __attribute__((noinline, unused, cold))
#define MANY 0xFFFFu
#define ANY_WARP 255u
#define SEVERAL 0xFFFFFFFEu
#define ATOMICS 0xFFFFFFFDu
U int unordered(St *s, uint32_t t, uint32_t who, uint32_t when) {
  return when >= s->clock[t >> 5][who >> 5];
}
U int is_apart(St *s, uint32_t t, const Write *w) {
  return !w->who || w->who == t + 1 || w->epoch != s->epoch ||
         (w->who != MANY && !unordered(s, t, w->who - 1, w->when));
}
U void against_writer(St *s, uint32_t t, Cell *x) {
  if (!is_apart(s, t, &x->weak) || (!s->strong && !is_apart(s, t, &x->strong))) s->err |= 1;
}
U void note_read(St *s, uint32_t t, Cell *x) {
  uint32_t now = s->clock[t >> 5][t >> 5];
  if (!x->reader || x->read_epoch != s->epoch) {
    x->reader = t + 1; x->read_epoch = s->epoch; x->read_strong = s->strong; x->readers = 0;
  } else {
    if (!x->readers && x->reader != t + 1) { x->readers = 1; x->read_warp = (x->reader - 1) >> 5; }
    if (x->readers && x->read_warp != t >> 5) x->read_warp = ANY_WARP;
    x->read_strong &= s->strong;
  }
  x->read_when = now;
}
U int is_quiet(St *s, uint32_t t, uint64_t o, unsigned n) {
  const uint32_t *q = s->quiet + (o >> GRAIN);
  uint64_t all = s->stamp[32], own = s->stamp[t >> 5], a = 0, b = 0;
  if (n <= 1 << GRAIN) return *q == (uint32_t)all || *q == (uint32_t)own;
  for (unsigned k = 0; k < n >> GRAIN; k += 2) {
    uint64_t x; memcpy(&x, q + k, 8); a |= x ^ all; b |= x ^ own;
  }
  return !a || !b;
}
U void first_read(St *s, uint32_t t, uint64_t c) {
  Cell *x = s->cells + c;
  against_writer(s, t, x);
  note_read(s, t, x);
  if (x->readers && !x->read_strong && x->weak.epoch != s->epoch && x->strong.epoch != s->epoch &&
      readable(s->a->ss + (c << GRAIN), 1 << GRAIN))
    s->quiet[c] = (uint32_t)s->stamp[x->read_warp == ANY_WARP ? 32 : t >> 5];
}
V void shared_read(St *s, uint32_t t, uint64_t o, unsigned n) {
  for (uint64_t c = o >> GRAIN; c <= (o + n - 1) >> GRAIN; c++)
    if (!is_quiet(s, t, c << GRAIN, 1 << GRAIN)) first_read(s, t, c);
}
COLD uint64_t loud_read(St *s, uint32_t t, uint64_t a, unsigned n) {
  uint64_t o = at_load(s, s->a->ss, s->a->scap, a, n);
  shared_read(s, t, o, n);
  return o;
}
V void shared_write(St *s, uint32_t t, uint64_t o, unsigned n) {
  for (uint64_t c = o >> GRAIN; c <= (o + n - 1) >> GRAIN; c++) {
    Cell *x = s->cells + c;
    s->quiet[c] = 0;
    against_writer(s, t, x);
    if (x->reader && x->read_epoch == s->epoch && !(s->strong && x->read_strong)) {
      if (x->readers) {
        if (x->read_warp == ANY_WARP || unordered(s, t, x->read_warp << 5, x->read_when))
          s->err |= 1;
      } else if (x->reader != t + 1 && unordered(s, t, x->reader - 1, x->read_when)) s->err |= 1;
    }
    Write *w = s->strong ? &x->strong : &x->weak;
    w->who = t + 1; w->when = s->clock[t >> 5][t >> 5]; w->epoch = s->epoch;
  }
}
V void shared_same(St *s, uint32_t t, uint64_t o, unsigned n) {
  for (uint64_t c = o >> GRAIN; c <= (o + n - 1) >> GRAIN; c++) {
    Cell *x = s->cells + c;
    s->quiet[c] = 0;
    if (!is_apart(s, t, &x->weak)) x->weak.who = MANY;
    if (!is_apart(s, t, &x->strong)) x->strong.who = MANY;
    note_read(s, t, x);
  }
}
U void meet(St *s, uint32_t t, uint32_t *marks, unsigned n, const uint8_t *p, const uint8_t *b) {
  for (unsigned k = 0; k < CELLS(n); k++) {
    uint32_t x = marks[k] ^ (s->a->mark | t << 1);
    int other = differs(p + (k << GRAIN), b + (k << GRAIN), 1 << GRAIN);
    if (x >> (s->strong ? 6 : 11)) marks[k] = s->a->mark | t << 1;
    else if (!(x >> 1)) marks[k] |= (uint32_t)other;
    else if (other || x & 1) s->err |= 1;
  }
}
V void next_mark(St *s) {
  s->a->mark += 1 << 11;
  if (s->a->mark) return;
  memset(s->a->marks, 0, ((s->a->gcap >> GRAIN) + 64) * sizeof *s->marks);
  memset(s->marks, 0, ((s->a->scap >> GRAIN) + 16) * sizeof *s->marks);
  s->a->mark = 1 << 11;
}
/* The last access to each cell of global memory: kind, thread from 1, and its warp's clock; if
   several threads of a warp made it, SOME and the warp, and if several warps did, the last number
   and the block's clock. A thread's read keeps its own store. */
#define KEPT 0u
#define READ 1u
#define WROTE 2u
#define STRONG 3u
#define SOME 1056u
V void inner_other(St *s, uint32_t t, uint64_t *x, uint64_t now, unsigned kind) {
  uint32_t was = *x & 3, who = *x >> 2 & 2047, when = (uint32_t)(*x >> 32), mine = t >> 5;
  uint32_t warp = who < SOME ? (who - 1) >> 5 : who - SOME;
  int late = warp == 33 ? when == s->epoch : unordered(s, t, warp << 5, when);
  if (!late) { *x = now; return; }
  if (was == READ ? kind >= WROTE : was == WROTE || kind != STRONG) {
    if (kind != KEPT) s->err |= 1;
  } else if (warp == mine) *x = now >> 32 << 32 | (SOME + warp) << 2 | was;
  else *x = (uint64_t)s->epoch << 32 | (SOME + 33) << 2 | was;
}
U void inner(St *s, uint32_t t, uint64_t o, unsigned n, unsigned kind) {
  uint64_t now = (uint64_t)s->clock[t >> 5][t >> 5] << 32 | (t + 1) << 2 | (kind ? kind : READ);
  for (unsigned k = 0; k < CELLS(n); k++) {
    uint64_t *x = s->a->inner + (o >> GRAIN) + k;
    if (!*x) *x = now;
    else if ((*x >> 2 & 2047) != t + 1) inner_other(s, t, x, now, kind);
    else if (kind > READ || *x >> 32 != now >> 32) *x = now;
  }
}
V void global_first(St *s, uint32_t *x) {
  if (!*x) *x = (s->linear + 1) << 1;
  else if (*x == ATOMICS || *x & 1) s->err |= 1;
  else *x = SEVERAL;
}
U void global_read(St *s, uint64_t o, unsigned n) {
  uint32_t me = (s->linear + 1) << 1 | 1;
  for (unsigned k = 0; k < CELLS(n); k++) {
    uint32_t *x = s->a->owners + (o >> GRAIN) + k;
    if ((*x | 1) != me && *x != SEVERAL) global_first(s, x);
  }
}
U void global_write(St *s, uint64_t o, unsigned n) {
  uint32_t me = (s->linear + 1) << 1 | 1;
  for (unsigned k = 0; k < CELLS(n); k++) {
    uint32_t *x = s->a->owners + (o >> GRAIN) + k;
    if (!*x || (*x | 1) == me) *x = me;
    else s->err |= 1;
  }
}
V void global_update(St *s, uint64_t o, unsigned n) {
  uint32_t me = (s->linear + 1) << 1 | 1;
  for (unsigned k = 0; k < CELLS(n); k++) {
    uint32_t *x = s->a->owners + (o >> GRAIN) + k;
    if (!*x) *x = ATOMICS;
    else if (*x != ATOMICS && (*x | 1) != me) s->err |= 1;
    else if (*x != ATOMICS) *x = me;
  }
}
U void restamp(St *s, uint32_t w) { s->stamp[w] = ++s->stamps * 0x100000001ull; }
V void spare_stamps(St *s) {
  if (s->stamps < UINT32_MAX - 66) return;
  memset(s->quiet, 0, ((s->a->scap >> GRAIN) + 16) * sizeof *s->quiet);
  s->stamps = 0;
  for (uint32_t w = 0; w < 33; w++) restamp(s, w);
}
V void tick(St *s, uint32_t w) {
  if (!RACES) return;
  s->clock[w][w]++;
  spare_stamps(s); restamp(s, w);
}
V void join_all(St *s) {
  uint32_t warps = s->width / 32;
  if (!RACES) return;
  s->epoch++;
  spare_stamps(s);
  for (uint32_t w = 0; w < 33; w++) restamp(s, w);
  for (uint32_t v = 0; v < warps; v++) {
    uint32_t most = ++s->clock[v][v];
    for (uint32_t w = 0; w < warps; w++) if (s->clock[w][v] > most) most = s->clock[w][v];
    for (uint32_t w = 0; w < warps; w++) s->clock[w][v] = most;
  }
}
V void join_some(St *s, uint32_t chosen, const uint32_t *known) {
  uint32_t warps = s->width / 32, all = warps == 32 ? UINT32_MAX : (1u << warps) - 1;
  if (!RACES) return;
  if (chosen == all) { join_all(s); return; }
  for (uint32_t w = 0; w < warps; w++) if (chosen >> w & 1) tick(s, w);
  for (uint32_t v = 0; v < warps; v++) {
    uint32_t most = known[v];
    for (uint32_t w = 0; w < warps; w++)
      if (chosen >> w & 1 && s->clock[w][v] > most) most = s->clock[w][v];
    for (uint32_t w = 0; w < warps; w++) if (chosen >> w & 1) s->clock[w][v] = most;
  }
}
V void come_by(St *s, uint32_t chosen, uint32_t *known) {
  if (!RACES) return;
  for (uint32_t w = 0; w < s->width / 32; w++) {
    if (!(chosen >> w & 1)) continue;
    tick(s, w);
    for (uint32_t v = 0; v < s->width / 32; v++)
      if (s->clock[w][v] > known[v]) known[v] = s->clock[w][v];
  }
}
V uint32_t living(St *s, uint32_t w) {
  uint32_t found = 0;
  for (uint32_t l = 0; l < 32 && w + l < s->threads; l++)
    found |= (uint32_t)(s->pc[w + l] != INT32_MAX) << l;
  return found;
}
V void members(St *s, const uint32_t *given, uint32_t mask, uint32_t alive) {
  if (!s->a->sync) return;
  for (int l = 0; l < 32; l++)
    if (mask >> l & 1 && (!(given[l] >> l & 1) || given[l] & alive & ~mask)) s->err |= 1;
}
"""
