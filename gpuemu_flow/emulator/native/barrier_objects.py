"""``mbarrier`` and ``cp.async.bulk`` as C, with the same effects as `Mbarriers` and `Bulk`."""

from __future__ import annotations

from gpuemu_flow.emulator.effects.barriers import _split as split
from gpuemu_flow.emulator.effects.checking import constant_of
from gpuemu_flow.emulator.effects.copies import _directions as directions_of
from gpuemu_flow.emulator.ir import MemoryOperand, Operand, Step
from gpuemu_flow.emulator.native.writer import LackingError, SegmentWriter

BARRIER_OBJECTS = r"""
#define OBJECTS 64
#define BULKS 1024
typedef struct { uint64_t place; uint32_t known[33]; } Object;
typedef struct {
  uint64_t near, far, place; uint32_t size, t; int64_t group; int into, live, arrives;
} Bulk;
typedef struct Later {
  Object objects[OBJECTS]; Bulk bulks[BULKS];
  int64_t groups[MW], fruitless; int count, pending;
} Later;
U Later *later_of(St *s) { return s->later; }
V Object *object_at(St *s, uint64_t place, int make) {
  Later *x = later_of(s);
  for (int k = 0; k < x->count; k++) if (x->objects[k].place == place) return x->objects + k;
  if (!make) return 0;
  if (x->count == OBJECTS) { s->err |= 1; return 0; }
  memset(x->objects + x->count, 0, sizeof(Object));
  x->objects[x->count].place = place;
  return x->objects + x->count++;
}
U uint64_t object_place(uint64_t a, int generic) { return generic ? a - SHARED_BASE : a; }
V uint64_t object_changed(uint64_t word, int64_t count, int64_t bytes, int64_t dropped) {
  int64_t left = (int64_t)(word & 0xFFFFF) - count, expected = (int64_t)(word >> 20 & 0xFFFFF);
  int64_t awaited = (int64_t)(word >> 40 & 0x1FFFFF) + bytes;
  uint64_t phase = word >> 61;
  if (left < 0) left = 0;
  expected -= dropped; if (expected < 0) expected = 0;
  if (left == 0 && awaited == 1 << 20) { phase = (phase + 1) & 7; left = expected; }
  return ((uint64_t)left & 0xFFFFF) | ((uint64_t)expected & 0xFFFFF) << 20 |
         ((uint64_t)awaited & 0x1FFFFF) << 40 | phase << 61;
}
V uint64_t object_arrive(St *s, uint32_t t, uint64_t o, uint64_t count, int64_t bytes, int drops) {
  later_of(s)->fruitless = 0;
  if (RACES) {
    Object *x = object_at(s, o, 1);
    if (x) come_by(s, 1u << (t >> 5), x->known);
  }
  uint8_t *p = up_shared(s, t, o, 8);
  uint64_t old = get8(p);
  if (s->a->sync && (old & 0xFFFFF) < count) s->err |= 1;
  put8(p, object_changed(old, (int64_t)count, bytes, drops ? (int64_t)count : 0));
  return old;
}
V void object_start(St *s, uint32_t t, uint64_t o, uint32_t count) {
  uint64_t wide = count & 0xFFFFF; uint8_t b[8];
  put8(b, wide | wide << 20 | 1ull << 60);
  wr_shared(s, t, o, 8, b);
}
V void bulk_deliver(St *s, Bulk *x) {
  for (uint32_t k = 0; k < x->size; k += 16) {
    uint64_t near, far;
    if (x->into) {
      far = at_load(s, s->a->gs, s->a->gcap, x->far + k, 16);
      near = at_store(s, s->a->ss, s->a->scap, x->near + k, 16);
      if (RARE(s->err)) return;
      memcpy(s->a->sm + near, s->a->g + far, 16);
    } else {
      near = at_load(s, s->a->ss, s->a->scap, x->near + k, 16);
      touch(s, x->far + k);
      far = at_store(s, s->a->gs, s->a->gcap, x->far + k, 16);
      if (RARE(s->err)) return;
      memcpy(s->a->g + far, s->a->sm + near, 16);
    }
  }
}
V void object_deliver(St *s, uint64_t place) {
  Later *x = later_of(s);
  int kept = 0;
  for (int turn = 0; turn < 2; turn++) for (int k = 0; k < x->pending; k++) {
    Bulk *b = x->bulks + k;
    if (!b->live || b->place != place || b->arrives == turn) continue;
    b->live = 0;
    if (b->arrives) { wait_copies(s, b->t, 0, 1); object_arrive(s, b->t, place, 1, 0, 0); }
    else { bulk_deliver(s, b); object_arrive(s, b->t, place, 0, -(int64_t)b->size, 0); }
  }
  for (int k = 0; k < x->pending; k++) if (x->bulks[k].live) x->bulks[kept++] = x->bulks[k];
  x->pending = kept;
}
V int object_wait(St *s, uint32_t t, uint64_t o, uint64_t awaited, int parity) {
  Later *x = later_of(s);
  for (int turn = 0; turn < 2; turn++) {
    s->strong = 1;
    uint64_t phase = get8(ld_shared(s, t, o, 8)) >> 61;
    s->strong = 0;
    if (parity ? (phase & 1) != (awaited & 1) : phase != awaited >> 61) {
      x->fruitless = 0;
      if (RACES) {
        Object *known = object_at(s, o, 0);
        for (uint32_t v = 0; known && v < s->width / 32; v++)
          if (known->known[v] > s->clock[t >> 5][v]) s->clock[t >> 5][v] = known->known[v];
      }
      return 1;
    }
    if (!turn) object_deliver(s, o);
  }
  x->fruitless += s->together ? 20 : 1;
  if (x->fruitless > 1000000) s->err |= 1;
  return 0;
}
V Bulk *bulk_new(St *s, uint32_t t) {
  Later *x = later_of(s);
  if (x->pending == BULKS) { s->err |= 1; return x->bulks; }
  Bulk *b = x->bulks + x->pending++;
  memset(b, 0, sizeof *b);
  b->t = t; b->live = 1; b->place = UINT64_MAX; b->group = x->groups[t];
  return b;
}
V void bulk_start(St *s, uint32_t t, uint64_t near, uint64_t far, uint32_t size, uint64_t place,
                  int into) {
  uint64_t from = far - GLOBAL_BASE;
  if (size > s->a->scap || near > s->a->scap || (near | from | size) & 15) { s->err |= 1; return; }
  for (uint32_t k = 0; k < size; k++) {
    if (near + k >= s->a->scap || !s->a->ss[near + k] || from + k >= s->a->gcap ||
        (into ? !(s->a->gs[from + k] & 2) : s->a->gs[from + k] - 1u > 1u)) { s->err |= 1; return; }
  }
  Bulk *b = bulk_new(s, t);
  b->near = near; b->far = from; b->size = size; b->into = into;
  if (into) b->place = place;
  if (RACES && size && into) shared_write(s, t, near, size);
  if (RACES && size && !into) shared_read(s, t, near, size);
}
V void bulk_wait(St *s, uint32_t t, int64_t most) {
  Later *x = later_of(s);
  int kept = 0;
  for (int k = 0; k < x->pending; k++) {
    Bulk *b = x->bulks + k;
    if (b->place == UINT64_MAX && b->t == t && b->group < x->groups[t] - most) bulk_deliver(s, b);
    else x->bulks[kept++] = *b;
  }
  x->pending = kept;
}
V void copies_arrive(St *s, uint32_t t, uint64_t o, int increment) {
  if (increment) { uint8_t *p = up_shared(s, t, o, 8); put8(p, get8(p) + 1); }
  Bulk *b = bulk_new(s, t);
  b->place = o; b->arrives = 1;
}
"""


def _place(writer: SegmentWriter, step: Step, operand: Operand) -> str:
    assert isinstance(operand, MemoryOperand)
    generic = step.opcode.space not in ("shared",)
    return f"object_place({writer.address(operand)}, {int(generic)})"


def _under(guard: str, text: str) -> str:
    return f"if ({guard}) {{ {text} }}" if guard else text


def write_object(writer: SegmentWriter, step: Step) -> None:
    words, guard = step.opcode.segments, writer.guard(step)
    member = words[1]
    result, address, rest = split(step)
    if member == "inval":
        return
    where = _place(writer, step, address)
    if member == "init":
        count = writer.read(rest[0], "u32")
        writer.do(_under(guard, f"object_start(s, t, {where}, {count});"))
        return
    if member in ("test_wait", "try_wait"):
        parity = "parity" in words
        awaited = writer.read(rest[0], "u32" if parity else "b64")
        kind, call = "uint8_t", f"object_wait(s, t, {where}, {awaited}, {int(parity)})"
    else:
        count, awaited = "1", "0"
        if member in ("expect_tx", "complete_tx"):
            count = "0"
        if rest and ("expect_tx" in words or member == "complete_tx"):
            sign = "-" if member == "complete_tx" else ""
            awaited = f"{sign}(int64_t)({writer.read(rest[0], 'u32')})"
        elif rest:
            count = writer.read(rest[0], "u32")
        drops = int(member == "arrive_drop")
        kind = "uint64_t"
        call = f"object_arrive(s, t, {where}, {count}, {awaited}, {drops})"
    value = writer.temporary(kind, "0")
    writer.do(_under(guard, f"{value} = {call};"))
    if result is not None:
        writer.write(result, value, "pred" if kind == "uint8_t" else "b64", guard)


def write_bulk(writer: SegmentWriter, step: Step) -> None:
    """Write one ``cp.async.bulk`` instruction, or ``cp.async.mbarrier.arrive``. Raises LackingError
    for reductions, copies by tensor maps, and copies to other blocks."""
    words, guard = step.opcode.segments[1:], writer.guard(step)
    operands = step.operands
    if words[:2] == ("async", "mbarrier"):
        where = _place(writer, step, operands[0])
        increment = int("noinc" not in words)
        writer.do(_under(guard, f"copies_arrive(s, t, {where}, {increment});"))
    elif words[2:] == ("commit_group",):
        writer.do(_under(guard, "later_of(s)->groups[t]++;"))
    elif words[2:3] == ("wait_group",):
        writer.do(_under(guard, f"bulk_wait(s, t, {constant_of(operands[0])});"))
    elif words[:2] != ("async", "bulk") or (
        {"tensor", "prefetch", "multicast::cluster"} & set(words) or "global" not in words
    ):
        raise LackingError(step.opcode.text)
    else:
        into = directions_of(step)[0] == "shared"
        near, far = operands[:2] if into else (operands[1], operands[0])
        assert isinstance(near, MemoryOperand) and isinstance(far, MemoryOperand)
        place = "UINT64_MAX"
        if into:
            there = operands[3]
            assert isinstance(there, MemoryOperand)
            place = writer.address(there)
        size = writer.read(operands[2], "u32")
        writer.do(_under(
            guard,
            f"bulk_start(s, t, {writer.address(near)}, {writer.address(far)}, {size}, {place}, "
            f"{int(into)});",
        ))  # fmt: skip
