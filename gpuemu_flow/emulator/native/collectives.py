"""Steps that the threads of a warp execute together, as C; each step is a separate segment."""

from __future__ import annotations

from msgspec import Struct

from gpuemu_flow.emulator.effects.checking import items_of
from gpuemu_flow.emulator.effects.matrices import _count as matrix_count
from gpuemu_flow.emulator.effects.matrices import read_form
from gpuemu_flow.emulator.effects.warps import vote_mode
from gpuemu_flow.emulator.ir import KernelProgram, Step
from gpuemu_flow.emulator.matrices import ELEMENT_BITS
from gpuemu_flow.emulator.native.c_types import c_type
from gpuemu_flow.emulator.native.fragments import write_fragments
from gpuemu_flow.emulator.native.warp_body import KINDS, WarpBody
from gpuemu_flow.emulator.native.writer import LackingError, SegmentWriter

BASES = frozenset(
    {"shfl", "vote", "match", "redux", "activemask", "elect", "ldmatrix", "stmatrix", "mma", "wmma"}
)


def is_collective(step: Step) -> bool:
    """Tell whether the threads of a warp execute a step together."""
    base = step.opcode.base
    return base in BASES or (base in ("bar", "barrier") and "warp" in step.opcode.segments)


HELPERS = r"""
U uint32_t shuffle(int mode, int lane, uint32_t b, uint32_t c, int *inside) {
  int amount = b & 31, clamp = c & 31, seg = c >> 8 & 31, out = ~seg & 31;
  int high = (lane & seg) | (clamp & out), source = (lane & seg) | (amount & out);
  if (mode == 0) source = lane - amount;
  else if (mode == 1) source = lane + amount;
  else if (mode == 2) source = lane ^ amount;
  *inside = mode == 0 ? source >= high : source <= high;
  return (*inside ? source : lane) & 31;
}
U uint32_t voting(const uint32_t *members, uint32_t mask) {
  uint32_t named = 0;
  for (int l = 0; l < 32; l++) named |= (members[l] >> l & 1) << l;
  return named & mask;
}
U double element(uint32_t w, int kind, int j) {
  if (kind == 0) return h2f((uint16_t)(w >> 16 * j));
  if (kind == 1) return b2f((uint16_t)(w >> 16 * j));
  if (kind == 2) return asf(w & 0xffffe000u);
  if (kind == 3) return (int8_t)(w >> 8 * j);
  if (kind == 4) return (uint8_t)(w >> 8 * j);
  if (kind == 5) return (double)((int)(w >> 4 * j & 15 ^ 8) - 8);
  if (kind == 6) return w >> 4 * j & 15;
  if (kind == 7 || kind == 8) return fp8((uint8_t)(w >> 8 * j), kind == 7);
  if (kind == 9) return asf(w);
  if (kind == 10) return (int32_t)w;
  return w >> j & 1;
}
U void multiply(int m, int k, int e, int ka, int kb, int kc, const uint32_t (*a)[32],
                const uint32_t (*b)[32], const uint32_t (*c)[32], double (*out)[32]) {
  double left[16][64], right[8][64];
  int halves = m / 8, count_a = m * k / (32 * e), count_b = 8 * k / (32 * e);
  for (int r = 0; r < count_a; r++) for (int l = 0; l < 32; l++) for (int j = 0; j < e; j++)
    left[(l >> 2) + 8 * (r % halves)][(l & 3) * e + j + 4 * e * (r / halves)] =
      element(a[r][l], ka, j);
  for (int r = 0; r < count_b; r++) for (int l = 0; l < 32; l++) for (int j = 0; j < e; j++)
    right[l >> 2][(l & 3) * e + j + 4 * e * r] = element(b[r][l], kb, j);
  for (int i = 0; i < m / 4; i++) for (int l = 0; l < 32; l++) {
    int row = (l >> 2) + 8 * (i / 2), column = 2 * (l & 3) + i % 2;
    double sum = 0, third = kc == 0 ? (double)h2f((uint16_t)(c[i / 2][l] >> 16 * (i % 2)))
      : kc == 1 ? (double)asf(c[i][l]) : (double)(int32_t)c[i][l];
    for (int x = 0; x < k; x++) sum += left[row][x] * right[column][x];
    out[i][l] = sum + third;
  }
}
V void multiply_bits(int m, int k, int differ, int kc, const uint32_t (*a)[32],
                     const uint32_t (*b)[32], const uint32_t (*c)[32], double (*out)[32]) {
  int halves = m / 8;
  for (int i = 0; i < m / 4; i++) for (int l = 0; l < 32; l++) {
    int row = (l >> 2) + 8 * (i / 2), column = 2 * (l & 3) + i % 2;
    double sum = (int32_t)c[i][l];
    for (int x = 0; x < k / 32; x++) {
      uint32_t u = a[row / 8 + halves * (x / 4)][(row & 7) * 4 + x % 4];
      uint32_t v = b[x / 4][column * 4 + x % 4];
      sum += __builtin_popcount(differ ? u ^ v : u & v);
    }
    out[i][l] = sum;
  }
}
U uint32_t whole(double x, int saturate) {
  int64_t v = (int64_t)x;
  return saturate ? (uint32_t)clamp_32(v) : (uint32_t)(uint64_t)v;
}
"""

_MODES = {"up": 0, "down": 1, "bfly": 2, "idx": 3}


def _shfl(body: WarpBody, step: Step) -> None:
    value, b, c = (body.take(o, "b32") for o in step.operands[1:4])
    body.check_members(body.take(step.operands[4], "u32"))
    mode = _MODES[step.opcode.segments[2]]
    body.writer.do(f"int inside; uint32_t from = shuffle({mode}, l, {b}[l], {c}[l], &inside);")
    body.writer.do("if (s->a->sync && !(mask >> from & 1)) s->err |= 1;")
    body.give(step, [f"{value}[from]", "inside"], ("b32", "pred"))


def _vote(body: WarpBody, step: Step) -> None:
    mode = vote_mode(step)
    predicate, members = body.take(step.operands[1], "pred"), body.take(step.operands[2], "u32")
    body.check_members(members)
    body.work += [
        f"uint32_t voters = voting({members}, mask), yes = 0;",
        f"for (int l = 0; l < 32; l++) yes |= (uint32_t)({predicate}[l] != 0) << l;",
        "yes &= voters;",
    ]
    value = {
        "ballot": "yes", "any": "(yes != 0)", "all": "(yes == voters)",
        "uni": "(yes == voters || yes == 0)",
    }[mode]  # fmt: skip
    body.give(step, [value], ("b32" if mode == "ballot" else "pred",))


def _match(body: WarpBody, step: Step) -> None:
    words = step.opcode.segments[1:]
    value, members = body.take(step.operands[1], words[2]), body.take(step.operands[2], "u32")
    body.check_members(members)
    body.work.append(f"uint32_t voters = voting({members}, mask);")
    body.writer.do(
        f"uint32_t same = 0; for (int j = 0; j < 32; j++) "
        f"same |= (uint32_t)({value}[j] == {value}[l]) << j; same &= voters;"
    )
    found = ["same", "1"] if words[0] == "any" else [
        "(same == voters ? voters : 0)", "(same == voters)",
    ]  # fmt: skip
    body.give(step, found, ("b32", "pred"))


def _redux(body: WarpBody, step: Step) -> None:
    words = step.opcode.segments[1:]
    kind = words[2]
    value, members = body.take(step.operands[1], kind), body.take(step.operands[2], "u32")
    body.check_members(members)
    neutral = {"add": "0", "or": "0", "xor": "0", "and": "-1",
               "min": "INT32_MAX" if kind == "s32" else "UINT32_MAX",
               "max": "INT32_MIN" if kind == "s32" else "0"}[words[1]]  # fmt: skip
    sign = {"add": "+", "or": "|", "xor": "^", "and": "&"}.get(words[1], "")
    x = f"{value}[l]"
    turn = f"total = ({c_type(kind)})((uint32_t)total {sign} (uint32_t){x})"
    if not sign:
        turn = f"if ({x} {'<' if words[1] == 'min' else '>'} total) total = {x}"
    body.work += [
        f"uint32_t voters = voting({members}, mask); {c_type(kind)} total = "
        f"({c_type(kind)}){neutral};",
        f"for (int l = 0; l < 32; l++) if (voters >> l & 1) {{ {turn}; }}",
    ]
    body.give(step, ["(uint32_t)total"], ("b32",))


def _activemask(body: WarpBody, step: Step) -> None:
    body.give(step, ["mask"], ("b32",))


def _elect(body: WarpBody, step: Step) -> None:
    members = body.take(step.operands[1], "u32")
    body.check_members(members)
    body.writer.do(f"uint32_t m = {members}[l], leader = m ? (uint32_t)__builtin_ctz(m) : 0;")
    body.give(step, ["leader", "(leader == (uint32_t)l)"], ("b32", "pred"))


def _matrices(body: WarpBody, step: Step) -> None:
    loads = step.opcode.base == "ldmatrix"
    space, count = step.opcode.space or "generic", matrix_count(step)
    where = body.take_address(step.operands[1 if loads else 0])
    if not loads:
        body.take_all("given", items_of(step.operands[1]))
    trans = "trans" in step.opcode.segments
    results = []
    for k in range(count):
        row = f"{where}[{8 * k} + (l >> 2)] + 4 * (l & 3)"
        halves = [f"{where}[{8 * k} + 2 * (l & 3) + {h}] + 2 * (l >> 2)" for h in (0, 1)]
        if loads and trans:
            parts = [f"get2(ld_{space}(s, t, {h}, 2))" for h in halves]
            results.append(f"(uint32_t){parts[0]} | (uint32_t){parts[1]} << 16")
        elif loads:
            results.append(f"get4(ld_{space}(s, t, {row}, 4))")
        elif trans:
            for h, place in enumerate(halves):
                value = f"(uint16_t)(given[{k}][l] >> {16 * h})"
                body.writer.do(
                    f"{{ uint8_t b[2]; put2(b, {value}); wr_{space}(s, t, {place}, 2, b); }}"
                )
        else:
            body.writer.do(
                f"{{ uint8_t b[4]; put4(b, given[{k}][l]); wr_{space}(s, t, {row}, 4, b); }}"
            )
    if loads:
        body.give(step, results, ("b32",) * count)


_SUMS = {"f16": 0, "f32": 1, "s32": 2}


def _mma(body: WarpBody, step: Step) -> None:
    form = read_form(step)
    if form is None or form.a not in KINDS or form.c not in _SUMS or form.d not in _SUMS:
        raise LackingError(step.opcode.text)
    body.check_members()
    for name, operand in zip("abc", step.operands[1:], strict=True):
        body.take_all(name, items_of(operand))
    e = 32 // ELEMENT_BITS[form.a]
    call = f"multiply({form.m}, {form.k}, {e}, {KINDS[form.a]}, {KINDS[form.b]}, "
    if form.a == "b1":
        call = f"multiply_bits({form.m}, {form.k}, {int(form.bit_operation == 'xor')}, "
    body.work.append(f"double d[{form.m // 4}][32]; {call}{_SUMS[form.c]}, a, b, c, d);")
    results = []
    for k in range(form.registers("d")):
        if form.d == "f16":
            pair = f"d[{2 * k}][l]", f"d[{2 * k + 1}][l]"
            body.writer.do(f"if ({pair[0]} != {pair[0]} || {pair[1]} != {pair[1]}) s->err |= 1;")
            results.append(f"pack(d2h({pair[0]}), d2h({pair[1]}))")
        elif form.d == "f32":
            results.append(f"fau(cf((float)d[{k}][l]))")
        else:
            results.append(f"whole(d[{k}][l], {int(form.saturate)})")
    body.give(step, results, ("b32",) * len(results))


def _warp_barrier(body: WarpBody, step: Step) -> None:
    body.check_members(body.take(step.operands[0], "u32"))
    body.work.append("tick(s, w >> 5);")


_WRITERS = {
    "bar": _warp_barrier, "barrier": _warp_barrier,
    "shfl": _shfl, "vote": _vote, "match": _match, "redux": _redux, "activemask": _activemask,
    "elect": _elect, "ldmatrix": _matrices, "stmatrix": _matrices, "mma": _mma,
    "wmma": write_fragments,
}  # fmt: skip


class Collective(Struct, frozen=True):
    """The parts of the C function for a step that a warp executes together."""

    reader: SegmentWriter
    writer: SegmentWriter
    arrays: tuple[str, ...]
    work: tuple[str, ...]


def write_collective(program: KernelProgram, step: Step) -> Collective:
    """Write the C of one step that a warp executes together.

    Raises
    ------
    LackingError
        If the back end lacks the step.
    """
    body = WarpBody(program)
    guard = body.reader.guard(step)
    if guard:
        body.reader.do(f"if (!({guard})) mask &= ~(1u << l);")
    _WRITERS[step.opcode.base](body, step)
    return Collective(body.reader, body.writer, tuple(body.arrays), tuple(body.work))
