"""C that detects possible races and missing threads; numpy decides whether they are real.

A suspicious access sets ``err``. The launch is then repeated with `SharedRaces` and `GlobalRaces`,
which know more ways in which accesses are ordered, and report the findings. So this code may
suspect accesses that are no races, but must not miss a race.

Many loads from shared memory repeat an earlier read. To make them quick, a cell can be ``quiet``
for one warp or for all warps. A load from the cell by such a warp is neither checked for races nor
recorded. A cell becomes quiet only if it is readable, so most loads need no other check. The next
store to the cell ends this state. So does the next synchronisation of the warp or, if the cell is
quiet for all warps, the next barrier of the whole block.

The array ``quiet`` holds a stamp for each cell. A cell is quiet for a warp if this is the current
stamp of the warp, or the current stamp for all warps. A synchronisation replaces the current stamp
by the next number. Before the numbers begin again, the array is cleared, so that no old stamp is
mistaken for a new one. The first number is near the largest one. So the array is cleared in many
launches, and not only in very long ones.

For shared memory, the code records the clocks of warps, as in `SharedRaces`. For each cell, it
records the last writers, and the readers since the last barrier of the whole block (``epoch``).
Threads run one after another here, so a store of the value that a cell already holds counts as a
read: in another order, the store might change the value. For global memory, the code records which
block accessed a cell, and whether several blocks did.

Threads may also conflict if they store to a cell by the same instruction. To detect this, each cell
has a mark for the latest run of a segment (the code of one C function) that stored to the cell. The
mark holds the number of the run, the first thread that stored to the cell in this run, and a flag.
The flag is set if this thread changed the value again later in the run. A store by another thread
in the same run is suspected if its value differs from the cell's, or if the flag is set. No segment
has more than one strong store, and strong stores are compared only with those of the same warp.
Stores to shared memory that are not strong need no marks: if their values differ, they are
suspected anyway.
"""

from __future__ import annotations

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
