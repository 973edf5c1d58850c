"""Write the steps of one segment as C, with typed reads of operands and guarded writes of results.

A segment is a piece of a basic block that one thread may execute from end to end before the next
thread begins. Registers that other segments use are stored in arrays, indexed by thread
(``f->r7[t]``); inside of a segment they are C variables.
"""

from __future__ import annotations

import numpy as np

from gpuemu_flow.emulator.ir import (
    Immediate,
    Inverted,
    KernelProgram,
    MemoryOperand,
    Operand,
    Register,
    Sink,
    Special,
    Step,
    Symbol,
)
from gpuemu_flow.emulator.types import BITS, DTYPES, SIZES, is_signed

_PER_THREAD = {"tid.x": "s->tx[t]", "tid.y": "s->ty[t]", "tid.z": "s->tz[t]"}
_LANE_MASKS = {
    "lanemask_eq": "(1u << (t & 31))",
    "lanemask_lt": "((1u << (t & 31)) - 1u)",
    "lanemask_le": "(0xFFFFFFFFu >> (31 - (t & 31)))",
    "lanemask_gt": "(~(0xFFFFFFFFu >> (31 - (t & 31))))",
    "lanemask_ge": "(~((1u << (t & 31)) - 1u))",
}
_SPECIALS = {
    **_PER_THREAD,
    **_LANE_MASKS,
    "laneid": "(t & 31)",
    "warpid": "(t >> 5)",
    "nwarpid": "((s->threads + 31) / 32)",
    "smid": "(s->linear % 108)",
    "nsmid": "108u",
    "gridid": "1u",
    "dynamic_smem_size": "s->a->dyn",
    "total_smem_size": "s->a->total",
    "aggr_smem_size": "s->a->total",
    "is_explicit_cluster": "0u",
    "cluster_ctarank": "0u",
    "cluster_nctarank": "1u",
    **{
        f"{name}.{axis}": f"{place}[{k}]"
        for k, axis in enumerate("xyz")
        for name, place in (
            ("ntid", "s->a->nt"), ("nctaid", "s->a->nc"), ("ctaid", "s->cta"),
            ("clusterid", "s->cta"), ("nclusterid", "s->a->nc"),
        )
    },
    **{f"cluster_ctaid.{axis}": "0u" for axis in "xyz"},
    **{f"cluster_nctaid.{axis}": "1u" for axis in "xyz"},
}  # fmt: skip


class LackingError(Exception):
    """Raised for something that the back end does not support; the text names it."""


class SegmentWriter:
    """Writes the steps of one segment."""

    def __init__(self, program: KernelProgram) -> None:
        self._program = program
        self.lines: list[str] = []
        self.read_first: set[int] = set()
        self.written: set[int] = set()
        self._sure: set[int] = set()
        self.parameter_bytes = program.parameter_bytes
        self.is_polling = False
        self._temporaries = 0

    def do(self, line: str) -> None:
        self.lines.append(line)

    def temporary(self, kind: str, expression: str) -> str:
        name = f"v{self._temporaries}"
        self._temporaries += 1
        self.do(f"{kind} {name} = {expression};")
        return name

    def register(self, number: int) -> str:
        if number not in self._sure:
            self.read_first.add(number)
        return f"r{number}"

    def read(self, operand: Operand, type_name: str) -> str:
        """Write the C expression that reads an operand as a value of a PTX type."""
        if isinstance(operand, Register):
            return self._read_register(operand, type_name)
        if isinstance(operand, Immediate):
            return immediate(operand, type_name)
        if isinstance(operand, Inverted):
            return f"(!{self._read_register(operand.register, 'pred')})"
        if isinstance(operand, Special):
            found = _SPECIALS.get(operand.name)
            if found is None:
                raise LackingError(f"%{operand.name}")
            return _narrowed(found, 4, type_name)
        if isinstance(operand, Symbol):
            return _narrowed(self.symbol(operand), 8, type_name)
        raise LackingError("an operand of this form")

    def _read_register(self, register: Register, type_name: str) -> str:
        return _narrowed(self.register(register.number), SIZES[register.type], type_name)

    def symbol(self, operand: Symbol) -> str:
        if operand.space == "global":
            moved = operand.displacement & 0xFFFFFFFFFFFFFFFF
            return f"(s->a->sym[{operand.offset}] + {moved}ull)"
        if operand.space == "param":
            return f"(s->a->par_address + {operand.offset + operand.displacement}ull)"
        offset = operand.offset + operand.displacement
        if operand.space == "dynamic":
            offset += self._program.dynamic_offset
        return f"{offset & 0xFFFFFFFFFFFFFFFF}ull"

    def address(self, operand: MemoryOperand) -> str:
        base, moved = operand.base, operand.displacement
        if isinstance(base, Symbol):
            return self.symbol(Symbol(base.space, base.offset, base.displacement + moved))
        if isinstance(base, Immediate):
            return f"{(base.value + moved) & 0xFFFFFFFFFFFFFFFF}ull"
        name = self.register(base.number)
        if SIZES[base.type] == 4:
            return f"(uint64_t)(uint32_t)({name} + {moved & 0xFFFFFFFF}u)"
        return f"({name} + {moved & 0xFFFFFFFFFFFFFFFF}ull)"

    def guard(self, step: Step) -> str:
        if step.guard is None:
            return ""
        name = self.register(step.guard.number)
        return f"!{name}" if step.negated else name

    def write(self, operand: Operand, value: str, type_name: str, guard: str = "") -> None:
        """Add an assignment of a value to a register; an empty `guard` means no condition."""
        if isinstance(operand, Sink):
            self.do(f"(void)({value});")
            return
        if not isinstance(operand, Register):
            raise LackingError("a result of this form")
        number, size = operand.number, SIZES[operand.type]
        if BITS[operand.type] == "?":
            text = f"(({value}) != 0)"
        elif SIZES[type_name] == size:
            text = as_bits(value, type_name)
        elif is_signed(type_name):
            text = f"({bits_type(size)})(int{8 * size}_t)({c_type(type_name)})({value})"
        else:
            text = f"({bits_type(size)})({as_bits(value, type_name)})"
        if guard:
            self.register(number)  # if the guard is false, the old value is needed
            self.do(f"if ({guard}) r{number} = {text};")
        else:
            self.do(f"r{number} = {text};")
            self._sure.add(number)
        self.written.add(number)


def _narrowed(expression: str, size: int, type_name: str) -> str:
    """Write the C expression that converts a value of `size` bytes to a PTX type."""
    if DTYPES[type_name] == "?":
        return expression
    if SIZES[type_name] != size:
        expression = f"({bits_type(SIZES[type_name])})({expression})"
    return from_bits(expression, type_name)


def immediate(operand: Immediate, type_name: str) -> str:
    code, size = DTYPES[type_name], SIZES[type_name]
    if code == "?":
        return str(int(bool(operand.value)))
    if operand.kind != "int":
        bits = np.array(operand.value, "u4" if operand.kind == "f32" else "u8")
        if bits.itemsize != size:
            if code not in ("f2", "f4", "f8"):
                raise LackingError("a floating-point constant of another type")
            with np.errstate(all="ignore"):
                number = bits.view("f4" if operand.kind == "f32" else "f8").astype(code)
            bits = number.view(f"u{size}")
        value = int(bits)
    else:
        value = operand.value & ((1 << 8 * size) - 1)
    return from_bits(f"{value}{'ull' if size == 8 else 'u'}", type_name)


# C types of PTX types, and conversions between them.


_C = {
    "?": "uint8_t", "u1": "uint8_t", "i1": "int8_t", "u2": "uint16_t", "i2": "int16_t",
    "u4": "uint32_t", "i4": "int32_t", "u8": "uint64_t", "i8": "int64_t",
    "f4": "float", "f8": "double", "f2": "uint16_t",
}  # fmt: skip
"""C type by numpy code; a half is kept as its bits, as not every compiler has a type for it."""

MODES = {
    "rn": "FE_TONEAREST", "rz": "FE_TOWARDZERO", "rm": "FE_DOWNWARD", "rp": "FE_UPWARD",
}  # fmt: skip
INTEGRAL = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


def c_type(type_name: str) -> str:
    """Return the C type in which instructions of a PTX type compute."""
    return _C[DTYPES[type_name]]


def bits_type(size: int) -> str:
    """Return the unsigned C type with this size in bytes."""
    return f"uint{8 * size}_t"


def as_bits(expression: str, type_name: str) -> str:
    code = DTYPES[type_name]
    if code == "f4":
        return f"fau({expression})"
    if code == "f8":
        return f"dau({expression})"
    return f"({bits_type(SIZES[type_name])})({expression})"


def from_bits(expression: str, type_name: str) -> str:
    code = DTYPES[type_name]
    if code == "f4":
        return f"asf({expression})"
    if code == "f8":
        return f"asd({expression})"
    return f"(({_C[code]})({expression}))"


def width(type_name: str) -> int:
    return 8 * SIZES[type_name]


def arithmetic_type(type_name: str) -> str:
    """Return the unsigned C type in which sums of a type wrap correctly."""
    return "uint64_t" if SIZES[type_name] == 8 else "uint32_t"
