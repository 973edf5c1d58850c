"""C code that runs the threads of a block as `BlockMachine` does.

Threads that have reached the same segment form a group. The group at the segment with the lowest
number usually runs next.
"""

from __future__ import annotations

FALLS, JUMPS, BRANCHES, ENDS, MAY_END, TRAPS, TABLE, BARRIER = range(8)
"""Ways in which a segment of code ends; generated C holds these numbers."""

DONE, AGAIN, SPENT, NO_MEMORY = range(4)
"""Return values of the C function ``run``: done, repeat with numpy, budget spent, no memory."""

RUNTIME = r"""
static void leave(St *s, uint32_t t) { s->pc[t] = INT32_MAX; }
static void release(St *s) {
  uint32_t alive = 0;
  for (uint32_t t = 0; t < s->threads; t++) alive += s->pc[t] != INT32_MAX;
  for (uint32_t name = 0; name < 16; name++) {
    uint32_t here = 0, most = 0, total = 0; int set = 0;
    for (uint32_t t = 0; t < s->threads; t++) {
      if (!s->waits[t] || s->bar_name[t] != name) continue;
      here++; total += s->vote[t];
      if (s->bar_wanted[t] != UINT32_MAX) {
        set = 1; if (s->bar_wanted[t] > most) most = s->bar_wanted[t];
      }
    }
    if (!here) continue;
    uint32_t present = here + s->arrived[name], wanted = set ? most : alive + s->arrived[name];
    if (present < wanted) continue;
    s->arrived[name] = 0;
    uint32_t warps = 0; int lowest = INT32_MAX;
    for (uint32_t t = 0; t < s->threads; t++) {
      if (!s->waits[t] || s->bar_name[t] != name) continue;
      warps |= 1u << (t >> 5);
      if (s->bar_at[t] < lowest) lowest = s->bar_at[t];
    }
    join_some(s, warps, s->known[name]);
    memset(s->known[name], 0, sizeof s->known[name]);
    for (uint32_t t = 0; t < s->threads; t++) {
      if (!s->waits[t] || s->bar_name[t] != name) continue;
      if (s->a->sync && s->bar_at[t] != lowest && PLAIN[s->bar_at[t]] && !FREE[s->bar_at[t]])
        s->err |= 1;
      int at = s->bar_at[t], op = REDUCES[at];
      if (op) give(s, at, t, op == 1 ? total : op == 2 ? total == here : total != 0);
      s->waits[t] = 0; s->pc[t] = s->bar_block[t];
    }
  }
}
static int barrier(St *s, int b, const int32_t *act, int n) {
  if (ARRIVES[b]) {
    uint32_t warps = 0, name = s->bar_name[act[0]];
    for (int j = 0; j < n; j++) {
      warps |= 1u << (act[j] >> 5);
      if (s->bar_name[act[j]] != name || name > 15) { s->err |= 1; return 0; }
    }
    come_by(s, warps, s->known[name]);
  }
  for (int j = 0; j < n; j++) {
    uint32_t t = act[j];
    if (s->bar_name[t] > 15) { s->err |= 1; return 0; }
    if (ARRIVES[b]) { s->arrived[s->bar_name[t]]++; s->pc[t] = b + 1; continue; }
    s->waits[t] = 1; s->bar_at[t] = b; s->bar_block[t] = b + 1;
  }
  release(s);
  return 1;
}
static int table(St *s, int b, const int32_t *act, int n) {
  for (int j = 0; j < n; j++) {
    uint32_t t = act[j], x = s->sel[t];
    if (x >= (uint32_t)LENGTHS[b]) { s->err |= 1; return 0; }
    s->pc[t] = TARGETS[FIRSTS[b] + x];
  }
  return 1;
}
static int whole_warp(St *s, uint32_t t) {
  for (uint32_t u = t & ~31u; u < (t | 31u) + 1 && u < s->threads; u++)
    if (s->pc[u] != INT32_MAX && (s->pc[u] != s->pc[t] || s->waits[u])) return 0;
  return 1;
}
static int whole_group(St *s, int p) {
  for (uint32_t t = 0; t < s->threads; t++)
    if (s->pc[t] == p && !s->waits[t] && !whole_warp(s, t)) return 0;
  return 1;
}
static int another(St *s, int b, int turn) {
  int after = INT32_MAX, first = INT32_MAX, seen = -1, whole = 0;
  for (uint32_t t = 0; t < s->threads; t++) {
    int p = s->pc[t];
    if (p == INT32_MAX || s->waits[t] || p == b) continue;
    if (COLLECTIVE[p] && p != seen) { seen = p; whole = whole_group(s, p); }
    if (COLLECTIVE[p] && !whole) continue;
    if (p < first) first = p;
    if (p > turn && p < after) after = p;
  }
  return after != INT32_MAX ? after : first != INT32_MAX ? first : b;
}
static int block(St *s) {
  Args *a = s->a;
  int alone = 0, count = 0, last = -1, rounds = 0, waiting = 0, turn = -1;
  for (uint32_t t = 0; t < s->threads; t++) { s->pc[t] = 0; s->live[count++] = t; }
  for (;;) {
    int b = alone, n = count; const int32_t *act = s->live;
    if (alone < 0) {
      int alive = 0, groups = 0; b = INT32_MAX; waiting = 0;
      for (uint32_t t = 0; t < s->threads; t++) {
        if (s->pc[t] == INT32_MAX) continue;
        alive++;
        if (s->waits[t]) { waiting++; continue; }
        if (s->pc[t] < b) { groups += b != INT32_MAX; b = s->pc[t]; }
        else if (s->pc[t] > b) groups++;
      }
      if (!alive) return 0;
      if (b == INT32_MAX) { s->err |= 1; return 0; }
      if (groups && WAITS[b] && b <= last && ++rounds % 64 == 0) turn = b = another(s, b, turn);
      n = 0;
      for (uint32_t t = 0; t < s->threads; t++)
        if (s->pc[t] == b && !s->waits[t]) s->act[n++] = t;
      act = s->act;
      if (n == alive) {
        memcpy(s->live, s->act, n * sizeof *act); act = s->live; count = n; alone = b;
      }
    }
    last = b;
    a->executed += (int64_t)LENGTH[b] * n;
    a->spent += (int64_t)LENGTH[b] * (n < 32 ? 32 : n) + 8;
    if (a->spent > a->budget) return 1;
    s->together = alone >= 0;
    if (RACES && STORES[b]) next_mark(s);
    RUN[b](s, act, n);
    if (RARE(s->err)) { if (!a->lenient || OBJECTING || s->err & 2) return 0; s->err = 0; }
    int kind = KIND[b];
    if (kind == 7 && alone >= 0 && PLAIN[b]) {
      int same = 1;
      for (int j = 0; j < n; j++) same &= s->bar_name[act[j]] == s->bar_name[act[0]];
      if (same) { join_all(s); alone = b + 1; continue; }
    }
    if (kind == 3 && alone >= 0) return 0;
    if (alone >= 0 && (kind == 0 || kind == 1)) { alone = kind == 0 ? b + 1 : TARGET[b]; continue; }
    if (alone >= 0 && (kind == 2 || kind == 4)) {
      int taken = 0;
      for (int j = 0; j < n; j++) taken += s->cond[act[j]];
      if (taken == 0) { alone = b + 1; continue; }
      if (taken == n && kind == 4) return 0;
      if (taken == n) { alone = TARGET[b]; continue; }
    }
    if (alone >= 0) for (int j = 0; j < n; j++) s->pc[act[j]] = b;
    alone = -1;
    switch (kind) {
      case 0: for (int j = 0; j < n; j++) s->pc[act[j]] = b + 1; break;
      case 1: for (int j = 0; j < n; j++) s->pc[act[j]] = TARGET[b]; break;
      case 2:
        for (int j = 0; j < n; j++) s->pc[act[j]] = s->cond[act[j]] ? TARGET[b] : b + 1;
        break;
      case 3: case 4:
        for (int j = 0; j < n; j++) {
          if (kind == 3 || s->cond[act[j]]) leave(s, act[j]); else s->pc[act[j]] = b + 1;
        }
        release(s);
        break;
      case 5: s->err |= 1; return 0;
      case 6: if (!table(s, b, act, n)) return 0; break;
      default: if (!barrier(s, b, act, n)) return 0; break;
    }
  }
}
__attribute__((visibility("default"))) int run(Args *a, int64_t first, int64_t last);
int run(Args *a, int64_t first, int64_t last) {
  St *s = calloc(1, sizeof(St));
  RF *f = calloc(1, sizeof(RF));
  uint32_t width = (a->threads + 31) / 32 * 32;
  Cell *cells = RACES ? calloc((a->scap >> GRAIN) + 16, sizeof(Cell)) : 0;
  uint32_t *quiet = RACES ? calloc((a->scap >> GRAIN) + 16, sizeof *quiet) : 0;
  uint32_t *marks = RACES ? calloc((a->scap >> GRAIN) + 16, sizeof *marks) : 0;
  struct Later *later = OBJECTING ? calloc(1, sizeof *later) : 0;
  Copy *copies = COPYING ? calloc((size_t)width * COPIES, sizeof(Copy)) : 0;
  int status = 3;
  if (!s || !f || (COPYING && !copies) || (RACES && (!cells || !quiet || !marks))) goto out;
  if (a->threads > MT || (OBJECTING && !later)) goto out;
  status = 0;
  s->a = a; s->f = f; s->copies = copies; s->cells = cells; s->quiet = quiet; s->later = later;
  s->marks = marks; s->threads = a->threads; s->width = width;
  s->shared_end = a->scap - 64; s->stamps = UINT32_MAX - 4096;
  s->epoch = a->age;
  for (uint32_t w = 0; w < 33 * 33; w++) s->clock[w / 33][w % 33] = a->age;
  for (uint32_t t = 0; t < width; t++) {
    s->tx[t] = t % a->nt[0]; s->ty[t] = t / a->nt[0] % a->nt[1];
    s->tz[t] = t / (a->nt[0] * a->nt[1]) % a->nt[2];
  }
  for (int64_t at = first; at < last && !status; at++) {
    uint64_t id = (uint64_t)a->ids[at];
    s->linear = (uint32_t)id;
    s->cta[0] = (uint32_t)(id % a->nc[0]); s->cta[1] = (uint32_t)(id / a->nc[0] % a->nc[1]);
    s->cta[2] = (uint32_t)(id / ((uint64_t)a->nc[0] * a->nc[1]));
    memset(a->sm, 0xA5, a->scap); memcpy(a->ss, a->template, a->scap);
    if (a->lbytes) {
      for (uint32_t t = 0; t < width; t++) {
        memset(a->lm + a->lcap * t, 0xA5, a->lbytes);
        memset(a->ls + a->lcap * t, a->unwritten, a->lbytes);
      }
    }
    memset(s->waits, 0, sizeof s->waits); memset(s->arrived, 0, sizeof s->arrived);
    memset(s->carry, 0, sizeof s->carry);
    if (COPYING) { memset(s->group, 0, sizeof s->group); memset(s->pending, 0, sizeof s->pending); }
    for (uint32_t t = 0; t < width; t++) s->stack[t] = STACK_START;
    if (OBJECTING) {
      memset(later->groups, 0, sizeof later->groups);
      later->fruitless = later->count = later->pending = 0;
    }
    clear(f); join_all(s);
    status = block(s) ? 2 : s->err ? 1 : 0;
    if (s->err) a->failed = (int64_t)id;
  }
  a->age = s->epoch;
  for (uint32_t w = 0; w < 33; w++) if (s->clock[w][w] > a->age) a->age = s->clock[w][w];
  a->age++;
out:
  free(later); free(cells); free(quiet); free(marks); free(copies);
  free(f); free(s);
  return status;
}
"""
