"""Steps that the threads of a warp execute together, as C: each is a segment of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuemu_flow.emulator.effects.checking import items_of
from gpuemu_flow.emulator.effects.matrices import _count as matrix_count
from gpuemu_flow.emulator.effects.matrices import read_form
from gpuemu_flow.emulator.ir import Memory, Operand, Program, Sink, Step
from gpuemu_flow.emulator.native.c_types import bits_type, c_type
from gpuemu_flow.emulator.native.writer import LackingError, Writer
from gpuemu_flow.emulator.types import SIZES

BASES = frozenset(
    {"shfl", "vote", "match", "redux", "activemask", "elect", "ldmatrix", "stmatrix", "mma"}
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
  return w >> 4 * j & 15;
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
U uint32_t whole(double x, int saturate) {
  int64_t v = (int64_t)x;
  return saturate ? (uint32_t)clamp_32(v) : (uint32_t)(uint64_t)v;
}
"""

_MODES = {"up": 0, "down": 1, "bfly": 2, "idx": 3}


@dataclass
class _Body:
    """Write a collective as C: read by lane, computed by warp, written by lane."""

    program: Program
    reader: Writer = field(init=False)
    writer: Writer = field(init=False)
    arrays: list[str] = field(default_factory=list)
    work: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reader, self.writer = Writer(self.program), Writer(self.program)

    def take(self, operand: Operand, type_name: str) -> str:
        """Read an operand of every lane; returns the array's name."""
        name = f"x{len(self.arrays)}"
        self.arrays.append(f"{c_type(type_name)} {name}[32]")
        self.reader.do(f"{name}[l] = {self.reader.read(operand, type_name)};")
        return name

    def take_all(self, name: str, operands: Sequence[Operand]) -> None:
        """Read several registers of every lane into rows of one array."""
        self.arrays.append(f"uint32_t {name}[{len(operands)}][32]")
        for k, operand in enumerate(operands):
            self.reader.do(f"{name}[{k}][l] = {self.reader.read(operand, 'b32')};")

    def take_address(self, address: Operand) -> str:
        """Read an address of every lane."""
        assert isinstance(address, Memory)
        name = f"x{len(self.arrays)}"
        self.arrays.append(f"uint64_t {name}[32]")
        self.reader.do(f"{name}[l] = {self.reader.address(address)};")
        return name

    def give(self, step: Step, values: Sequence[str], types: Sequence[str]) -> None:
        """Write results; they may use ``l``."""
        items = items_of(step.operands[0])
        names = [
            self.writer.temporary("uint8_t" if t == "pred" else bits_type(SIZES[t]), v)
            for v, t in zip(values, types, strict=False)
        ]
        for item, name, type_name in zip(items, names, types, strict=False):
            if not isinstance(item, Sink):
                self.writer.write(item, name, type_name)

    def check_members(self, given: str = "") -> None:
        """Look whether the threads come that a member mask names; all of the warp without one."""
        if not given:
            self.work.append("uint32_t everyone[32]; memset(everyone, 255, sizeof everyone);")
        self.work.append(f"members(s, {given or 'everyone'}, mask, alive);")


def _shfl(body: _Body, step: Step) -> None:
    value, b, c = (body.take(o, "b32") for o in step.operands[1:4])
    body.check_members(body.take(step.operands[4], "u32"))
    mode = _MODES[step.opcode.segments[2]]
    body.writer.do(f"int inside; uint32_t from = shuffle({mode}, l, {b}[l], {c}[l], &inside);")
    body.writer.do("if (s->a->sync && !(mask >> from & 1)) s->err = 1;")
    body.give(step, [f"{value}[from]", "inside"], ("b32", "pred"))


def _vote(body: _Body, step: Step) -> None:
    mode = step.opcode.segments[2]
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


def _match(body: _Body, step: Step) -> None:
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


def _redux(body: _Body, step: Step) -> None:
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


def _activemask(body: _Body, step: Step) -> None:
    body.give(step, ["mask"], ("b32",))


def _elect(body: _Body, step: Step) -> None:
    members = body.take(step.operands[1], "u32")
    body.check_members(members)
    body.writer.do(f"uint32_t m = {members}[l], leader = m ? (uint32_t)__builtin_ctz(m) : 0;")
    body.give(step, ["leader", "(leader == (uint32_t)l)"], ("b32", "pred"))


def _matrices(body: _Body, step: Step) -> None:
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


_KINDS = {"f16": 0, "bf16": 1, "tf32": 2, "s8": 3, "u8": 4, "s4": 5, "u4": 6}
_SUMS = {"f16": 0, "f32": 1, "s32": 2}


def _mma(body: _Body, step: Step) -> None:
    form = read_form(step)
    if form is None or form.a not in _KINDS or form.c not in _SUMS or form.d not in _SUMS:
        raise LackingError(step.opcode.text)
    body.check_members()
    for name, operand in zip("abc", step.operands[1:], strict=True):
        body.take_all(name, items_of(operand))
    e = 1 if form.a == "tf32" else 32 // {"s8": 8, "u8": 8, "s4": 4, "u4": 4}.get(form.a, 16)
    body.work.append(
        f"double d[{form.m // 4}][32]; multiply({form.m}, {form.k}, {e}, {_KINDS[form.a]}, "
        f"{_KINDS[form.b]}, {_SUMS[form.c]}, a, b, c, d);"
    )
    results = []
    for k in range(form.registers("d")):
        if form.d == "f16":
            pair = f"d[{2 * k}][l]", f"d[{2 * k + 1}][l]"
            body.writer.do(f"if ({pair[0]} != {pair[0]} || {pair[1]} != {pair[1]}) s->err = 1;")
            results.append(f"pack(d2h({pair[0]}), d2h({pair[1]}))")
        elif form.d == "f32":
            results.append(f"fau(cf((float)d[{k}][l]))")
        else:
            results.append(f"whole(d[{k}][l], {int(form.saturate)})")
    body.give(step, results, ("b32",) * len(results))


def _warp_barrier(body: _Body, step: Step) -> None:
    body.check_members(body.take(step.operands[0], "u32"))
    body.work.append("tick(s, w >> 5);")


_WRITERS = {
    "bar": _warp_barrier, "barrier": _warp_barrier,
    "shfl": _shfl, "vote": _vote, "match": _match, "redux": _redux, "activemask": _activemask,
    "elect": _elect, "ldmatrix": _matrices, "stmatrix": _matrices, "mma": _mma,
}  # fmt: skip


@dataclass(frozen=True)
class Collective:
    """The parts of a collective's function."""

    reader: Writer
    writer: Writer
    arrays: tuple[str, ...]
    work: tuple[str, ...]


def write_collective(program: Program, step: Step) -> Collective:
    """Write one step of a warp.

    Raises
    ------
    LackingError
        For what the back end lacks.
    """
    body = _Body(program)
    guard = body.reader.guard(step)
    if guard:
        body.reader.do(f"if (!({guard})) mask &= ~(1u << l);")
    _WRITERS[step.opcode.base](body, step)
    return Collective(body.reader, body.writer, tuple(body.arrays), tuple(body.work))
