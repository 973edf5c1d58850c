"""C for a step that a warp executes together: read each lane, compute, then write each lane."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gpuemu_flow.emulator.effects.checking import items_of
from gpuemu_flow.emulator.effects.matrices import _access as read_access
from gpuemu_flow.emulator.effects.matrices import _count as matrix_count
from gpuemu_flow.emulator.effects.matrices import read_form
from gpuemu_flow.emulator.effects.matrices import read_wmma_product as read_product
from gpuemu_flow.emulator.effects.warps import vote_mode
from gpuemu_flow.emulator.ir import Immediate, KernelProgram, MemoryOperand, Operand, Sink, Step
from gpuemu_flow.emulator.matrices import ELEMENT_BITS
from gpuemu_flow.emulator.native.writer import LackingError, SegmentWriter, bits_type, c_type
from gpuemu_flow.emulator.types import SIZES
from gpuemu_flow.emulator.wmma import FragmentForm

KINDS = {
    "f16": 0, "bf16": 1, "tf32": 2, "s8": 3, "u8": 4, "s4": 5, "u4": 6, "e4m3": 7, "e5m2": 8,
    "f32": 9, "s32": 10, "b1": 11,
}  # fmt: skip
"""Numbers of element types in C."""


class WarpBody:
    """Writer of the C for one step that a warp executes together."""

    def __init__(self, program: KernelProgram) -> None:
        self.program = program
        self.reader, self.writer = SegmentWriter(program), SegmentWriter(program)
        self.arrays: list[str] = []
        self.work: list[str] = []

    def take(self, operand: Operand, type_name: str) -> str:
        """Write code that reads an operand of every lane into an array; return the array's name."""
        name = f"x{len(self.arrays)}"
        self.arrays.append(f"{c_type(type_name)} {name}[32]")
        self.reader.do(f"{name}[l] = {self.reader.read(operand, type_name)};")
        return name

    def take_all(self, name: str, operands: Sequence[Operand]) -> None:
        """Write code that reads several registers of every lane into rows of the array `name`."""
        self.arrays.append(f"uint32_t {name}[{len(operands)}][32]")
        for k, operand in enumerate(operands):
            self.reader.do(f"{name}[{k}][l] = {self.reader.read(operand, 'b32')};")

    def take_address(self, address: Operand) -> str:
        """Write code that reads an address operand of every lane; return the name of the array."""
        assert isinstance(address, MemoryOperand)
        name = f"x{len(self.arrays)}"
        self.arrays.append(f"uint64_t {name}[32]")
        self.reader.do(f"{name}[l] = {self.reader.address(address)};")
        return name

    def give(self, step: Step, values: Sequence[str], types: Sequence[str]) -> None:
        items = items_of(step.operands[0])
        names = [
            self.writer.temporary("uint8_t" if t == "pred" else bits_type(SIZES[t]), v)
            for v, t in zip(values, types, strict=False)
        ]
        for item, name, type_name in zip(items, names, types, strict=False):
            if not isinstance(item, Sink):
                self.writer.write(item, name, type_name)

    def check_members(self, given: str = "") -> None:
        """Write the check that all living threads of each lane's member mask execute the step.
        `given` is the name of the C array with the lanes' masks. If it is empty, every mask
        contains all threads of the warp."""
        if not given:
            self.work.append("uint32_t everyone[32]; memset(everyone, 255, sizeof everyone);")
        self.work.append(f"members(s, {given or 'everyone'}, mask, alive);")


# Steps that the threads of a warp execute together, as C; each step is a separate segment.


# ``wmma`` as C: fragments loaded, multiplied and stored by the threads of a warp.


FRAGMENTS = r"""
U uint64_t element_at(int l, int r, int p, int registers, int per, int count, int columns,
                      uint32_t stride, int by_row, int bits) {
  int n = ((l * registers + r) * per + p) % count, row = n / columns, column = n % columns;
  uint64_t major = by_row ? row : column, minor = by_row ? column : row;
  return (major * stride + minor) * (uint64_t)bits / 8;
}
V void gather(double *out, int count, int kind, int per, int registers, const uint32_t (*x)[32]) {
  for (int l = 0; l < 32; l++) for (int r = 0; r < registers; r++) for (int p = 0; p < per; p++) {
    int n = (l * registers + r) * per + p;
    if (n < count) out[n] = element(x[r][l], kind, p);
  }
}
V void fragments(int m, int n, int k, int differ, const double *a, const double *b,
                 const double *c, double *out) {
  for (int i = 0; i < m; i++) for (int j = 0; j < n; j++) {
    double sum = 0;
    for (int x = 0; x < k; x++) {
      double u = a[i * k + x], v = b[x * n + j];
      sum += differ ? u != v : u * v;
    }
    out[i * n + j] = sum + c[i * n + j];
  }
}
"""


def _kind(form: FragmentForm, step: Step) -> int:
    if form.kind not in KINDS:
        raise LackingError(step.opcode.text)
    return KINDS[form.kind]


def _offset(form: FragmentForm, register: int, place: int, stride: str, by_row: bool) -> str:
    return (
        f"element_at(l, {register}, {place}, {form.registers}, {form.per_register}, "
        f"{form.rows * form.columns}, {form.columns}, {stride}[l], {int(by_row)}, {form.bits})"
    )


def _access(body: WarpBody, step: Step) -> None:
    found = read_access(step)
    assert found is not None
    form, by_row = found
    _kind(form, step)
    loads = step.opcode.segments[1] == "load"
    space = step.opcode.space or "generic"
    where = body.take_address(step.operands[1 if loads else 0])
    least = Immediate(form.columns if by_row else form.rows)
    stride = body.take(step.operands[2] if len(step.operands) == 3 else least, "u32")
    if not loads:
        body.take_all("given", items_of(step.operands[1]))
    size = max(1, form.bits // 8) if form.bits >= 8 else 4
    places = range(1 if form.bits < 8 else form.per_register)
    results = []
    for r in range(form.registers):
        parts = []
        for p in places:
            at = f"{where}[l] + {_offset(form, r, p, stride, by_row)}"
            if loads:
                value = f"(uint32_t)get{size}(ld_{space}(s, t, {at}, {size}))"
                parts.append(f"{value} << {p * form.bits}" if p else value)
            else:
                part = f"(uint{8 * size}_t)(given[{r}][l] >> {p * form.bits})"
                body.writer.do(
                    f"{{ uint8_t b[{size}]; put{size}(b, {part}); "
                    f"wr_{space}(s, t, {at}, {size}, b); }}"
                )
        results.append(" | ".join(parts))
    if loads:
        body.give(step, results, ("b32",) * form.registers)


def _product(body: WarpBody, step: Step) -> None:
    form = read_product(step)
    assert form is not None
    m, n, k = form.a.rows, form.b.columns, form.a.columns
    for name, operand in zip("abc", step.operands[1:], strict=True):
        part: FragmentForm = getattr(form, name)
        body.take_all(name, items_of(operand))
        count = part.rows * part.columns
        body.work.append(
            f"double whole_{name}[{count}]; gather(whole_{name}, {count}, {_kind(part, step)}, "
            f"{part.per_register}, {part.registers}, {name});"
        )
    _kind(form.d, step)
    body.work.append(
        f"double d[{m * n}]; fragments({m}, {n}, {k}, {int(form.bit_operation == 'xor')}, "
        "whole_a, whole_b, whole_c, d);"
    )
    results = []
    for r in range(form.d.registers):
        at = [
            f"d[((l * {form.d.registers} + {r}) * {form.d.per_register} + {p}) % {m * n}]"
            for p in range(form.d.per_register)
        ]
        if form.d.kind == "f16":
            results.append(f"pack(d2h({at[0]}), d2h({at[1]}))")
        elif form.d.kind == "f32":
            results.append(f"fau(cf((float){at[0]}))")
        else:
            results.append(f"whole({at[0]}, {int(form.saturate)})")
    body.give(step, results, ("b32",) * len(results))


def write_fragments(body: WarpBody, step: Step) -> None:
    body.check_members()
    (_product if step.opcode.segments[1] == "mma" else _access)(body, step)


BASES = frozenset(
    {"shfl", "vote", "match", "redux", "activemask", "elect", "ldmatrix", "stmatrix", "mma", "wmma"}
)


def is_collective(step: Step) -> bool:
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
U void voting(const uint32_t *members, uint32_t mask, uint32_t *voters) {
  uint32_t named = 0, differ = 0;
  for (int l = 0; l < 32; l++) named |= (members[l] >> l & 1) << l;
  named &= mask;
  for (int l = 0; l < 32; l++) {
    voters[l] = named;
    if (named >> l & 1) differ |= members[l] ^ members[__builtin_ctz(named)];
  }
  if (differ) for (int l = 0; l < 32; l++) for (int j = 0; j < 32; j++)
    if (members[j] != members[l]) voters[l] &= ~(1u << j);
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
        f"uint32_t voters[32], yes = 0; voting({members}, mask, voters);",
        f"for (int l = 0; l < 32; l++) yes |= (uint32_t)({predicate}[l] != 0) << l;",
    ]
    body.writer.do("uint32_t ours = yes & voters[l];")
    value = {
        "ballot": "ours", "any": "(ours != 0)", "all": "(ours == voters[l])",
        "uni": "(ours == voters[l] || ours == 0)",
    }[mode]  # fmt: skip
    body.give(step, [value], ("b32" if mode == "ballot" else "pred",))


def _match(body: WarpBody, step: Step) -> None:
    words = step.opcode.segments[1:]
    value, members = body.take(step.operands[1], words[2]), body.take(step.operands[2], "u32")
    body.check_members(members)
    body.work.append(f"uint32_t voters[32]; voting({members}, mask, voters);")
    body.writer.do(
        f"uint32_t same = 0; for (int j = 0; j < 32; j++) "
        f"same |= (uint32_t)({value}[j] == {value}[l]) << j; same &= voters[l];"
    )
    found = ["same", "1"] if words[0] == "any" else [
        "(same == voters[l] ? voters[l] : 0)", "(same == voters[l])",
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
    x = f"{value}[j]"
    turn = f"total = ({c_type(kind)})((uint32_t)total {sign} (uint32_t){x})"
    if not sign:
        turn = f"if ({x} {'<' if words[1] == 'min' else '>'} total) total = {x}"
    body.work += [
        f"uint32_t voters[32]; {c_type(kind)} totals[32]; voting({members}, mask, voters);",
        "for (int l = 0; l < 32; l++) {",
        "if (l && voters[l] == voters[l - 1]) { totals[l] = totals[l - 1]; continue; }",
        f"{c_type(kind)} total = ({c_type(kind)}){neutral};",
        f"for (int j = 0; j < 32; j++) if (voters[l] >> j & 1) {{ {turn}; }}",
        "totals[l] = total; }",
    ]
    body.give(step, ["(uint32_t)totals[l]"], ("b32",))


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
    """Write the C of one step that a warp executes together. Raises LackingError if the back end
    lacks the step."""
    body = WarpBody(program)
    guard = body.reader.guard(step)
    if guard:
        body.reader.do(f"if (!({guard})) mask &= ~(1u << l);")
    _WRITERS[step.opcode.base](body, step)
    return Collective(body.reader, body.writer, tuple(body.arrays), tuple(body.work))
