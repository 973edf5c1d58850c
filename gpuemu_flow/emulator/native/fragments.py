"""``wmma`` as C: fragments loaded, multiplied and stored by the threads of a warp."""

from __future__ import annotations

from gpuemu_flow.emulator.effects.checking import items_of
from gpuemu_flow.emulator.effects.wmma import _access as read_access
from gpuemu_flow.emulator.effects.wmma import read_product
from gpuemu_flow.emulator.ir import Immediate, Step
from gpuemu_flow.emulator.native.warp_body import KINDS, WarpBody
from gpuemu_flow.emulator.native.writer import LackingError
from gpuemu_flow.emulator.wmma import FragmentForm

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
    """Write a ``wmma.load``, ``wmma.mma`` or ``wmma.store``."""
    body.check_members()
    (_product if step.opcode.segments[1] == "mma" else _access)(body, step)
