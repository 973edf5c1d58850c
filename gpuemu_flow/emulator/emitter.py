"""Write the Python function of a basic block: read operands, write results, respect guards."""

from __future__ import annotations

from collections.abc import Callable

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
from gpuemu_flow.emulator.polling import is_strong
from gpuemu_flow.emulator.types import BITS, DTYPES, SIZES, Array, is_signed

Bind = Callable[[str, tuple[object, ...], object], str]


class Emitter:
    """Writes the Python function of one basic block."""

    def __init__(
        self, bind: Bind, program: KernelProgram, polling: frozenset[int] = frozenset()
    ) -> None:
        self._bind = bind
        self._polling = polling
        self._program = program
        self.lines: list[str] = []
        self._current: dict[int, tuple[str, str]] = {}
        self._views: dict[tuple[str, str], str] = {}
        self._written: list[int] = []
        self._temporaries = 0
        self.condition = "None"

    @property
    def parameter_bytes(self) -> int:
        return self._program.parameter_bytes

    def is_strong(self, step: Step, index: int) -> bool:
        """Tell whether an access is exempt from race checks against other strong accesses."""
        return index in self._polling or (step.opcode.base != "ld" and is_strong(step))

    # Names

    def temporary(self, expression: str) -> str:
        name = f"v{self._temporaries}"
        self._temporaries += 1
        self.lines.append(f"{name} = {expression}")
        return name

    def do(self, statement: str) -> None:
        self.lines.append(statement)

    def constant(self, value: Array, key: tuple[object, ...]) -> str:
        return self._bind("k", key, value)

    def function(self, function: object, key: str) -> str:
        return self._bind("f", (key,), function)

    # Operands

    def read(self, operand: Operand, type_name: str) -> str:
        if isinstance(operand, Register):
            return self._read_register(operand, type_name)
        if isinstance(operand, Immediate):
            return self.immediate(operand, type_name)
        if isinstance(operand, Inverted):
            return f"(~{self._read_register(operand.register, 'pred')})"
        if isinstance(operand, Special):
            return self._special(operand.name, type_name)
        if isinstance(operand, Symbol):
            return self._convert(self.symbol(operand), "u8", type_name)
        raise TypeError(f"operand {operand!r}")

    def _read_register(self, register: Register, type_name: str) -> str:
        known = self._current.get(register.number)
        if known is None:
            known = (f"R[{register.number}]", BITS[register.type])
        return self._as(known, DTYPES[type_name])

    def _as(self, value: tuple[str, str], dtype: str) -> str:
        name, has = value
        if has == dtype:
            return name
        key = (name, dtype)
        view = self._views.get(key)
        if view is None:
            if np.dtype(has).itemsize == np.dtype(dtype).itemsize and "?" not in (has, dtype):
                view = self.temporary(f"{name}.view({dtype!r})")
            elif dtype == "?" or has == "?":
                view = self.temporary(f"{name}.astype({dtype!r})")
            else:
                bits = f"u{np.dtype(has).itemsize}"
                wide = f"u{np.dtype(dtype).itemsize}"
                raw = name if has == bits else f"{name}.view({bits!r})"
                view = self.temporary(f"{raw}.astype({wide!r}).view({dtype!r})")
            self._views[key] = view
        return view

    def immediate(self, operand: Immediate, type_name: str) -> str:
        dtype = DTYPES[type_name]
        key = (operand.value, operand.kind, dtype)
        value: Array
        if dtype == "?":
            value = np.array([[bool(operand.value)]])
        elif operand.kind == "int":
            size = np.dtype(dtype).itemsize
            value = np.array([[operand.value & ((1 << 8 * size) - 1)]], np.uint64)
            value = value.astype(f"u{size}").view(dtype)
        else:
            bits = np.array([[operand.value]], "u4" if operand.kind == "f32" else "u8")
            number = bits.view("f4" if operand.kind == "f32" else "f8")
            if np.dtype(dtype).itemsize == bits.itemsize:
                value = bits.view(dtype)
            else:
                with np.errstate(all="ignore"):  # the constant may be NaN or too large
                    value = number.astype(dtype)
        return self.constant(value, key)

    def immediate_number(self, value: int, type_name: str) -> str:
        return self.immediate(Immediate(value), type_name)

    def _special(self, name: str, type_name: str) -> str:
        if name.startswith(("clock", "globaltimer")):
            code = "u8" if name in ("clock64", "globaltimer") else "u4"
            return self._convert(self.temporary(f"m.clock({code!r})"), code, type_name)
        return self._convert(f"m.special[{name!r}]", "u4", type_name)

    def _convert(self, expression: str, has: str, type_name: str) -> str:
        dtype = DTYPES[type_name]
        if has == dtype:
            return expression
        same = np.dtype(has).itemsize == np.dtype(dtype).itemsize
        return self.temporary(f"{expression}.{'view' if same else 'astype'}({dtype!r})")

    def symbol(self, operand: Symbol) -> str:
        if operand.space == "global":
            return self.temporary(f"m.symbol({operand.offset}, {operand.displacement})")
        if operand.space == "param":
            return self.temporary(f"m.parameter_address({operand.offset + operand.displacement})")
        offset = operand.offset + operand.displacement
        if operand.space == "dynamic":
            offset += self._program.dynamic_offset
        value = np.array([[offset & 0xFFFFFFFFFFFFFFFF]], np.uint64)
        return self.constant(value, ("address", offset))

    def address(self, operand: MemoryOperand) -> str:
        base, displacement = operand.base, operand.displacement
        if isinstance(base, Symbol):
            moved = Symbol(base.space, base.offset, base.displacement + displacement)
            return self.symbol(moved)
        if isinstance(base, Immediate):
            value = np.array([[(base.value + displacement) & 0xFFFFFFFFFFFFFFFF]], np.uint64)
            return self.constant(value, ("address", int(value[0, 0])))
        if SIZES[base.type] == 4:
            known = self._read_register(base, "u32")
            if displacement:
                added = np.array([[displacement & 0xFFFFFFFF]], np.uint32)
                k = self.constant(added, ("added", displacement, 4))
                known = f"({known} + {k})"
            return self.temporary(f"{known}.astype('u8')")
        name = self._read_register(base, "u64")
        if not displacement:
            return name
        added = np.array([[displacement & 0xFFFFFFFFFFFFFFFF]], np.uint64)
        return self.temporary(f"{name} + {self.constant(added, ('added', displacement, 8))}")

    def write(self, operand: Operand, expression: str, type_name: str, step: Step) -> None:
        if isinstance(operand, Sink):
            self.do(expression)
            return
        assert isinstance(operand, Register)
        value = self.temporary(expression)
        dtype, wanted = DTYPES[type_name], BITS[operand.type]
        if np.dtype(dtype).itemsize != np.dtype(wanted).itemsize or (dtype == "?") != (
            wanted == "?"
        ):
            size = np.dtype(wanted).itemsize
            kind = "i" if is_signed(type_name) else "u"
            if wanted == "?":
                value, dtype = self.temporary(f"{value} != 0"), "?"
            elif dtype[0] == "f":
                raw = f"u{np.dtype(dtype).itemsize}"
                value = self.temporary(f"{value}.view({raw!r}).astype('u{size}')")
                dtype = f"u{size}"
            else:
                value, dtype = self.temporary(f"{value}.astype('{kind}{size}')"), f"{kind}{size}"
        if step.guard is not None:
            old = self._current.get(operand.number, (f"R[{operand.number}]", wanted))
            value = self.temporary(f"where({self.guard(step)}, {value}, {self._as(old, dtype)})")
        self._current[operand.number] = (value, dtype)
        if operand.number not in self._written:
            self._written.append(operand.number)

    def guard(self, step: Step) -> str:
        assert step.guard is not None
        name = self._read_register(step.guard, "pred")
        return f"(~{name})" if step.negated else name

    def mask(self, step: Step) -> str:
        """Return the expression for the mask of active lanes in which a step has an effect."""
        if step.guard is None:
            return "M"
        return self.temporary(f"both(M, {self.guard(step)})")

    def close(self, live_out: frozenset[int], masked: bool) -> list[str]:
        """Write back the registers that later blocks may read; return the lines of the function."""
        condition = self.condition
        if condition != "None":
            condition = self.temporary(condition)
        for number in self._written:
            if number not in live_out:
                continue
            name, dtype = self._current[number]
            bits = "?" if dtype == "?" else f"u{np.dtype(dtype).itemsize}"
            value = self._as((name, dtype), bits)
            merged = f"where(G, {value}, R[{number}])" if masked else value
            self.do(f"R[{number}] = {merged}")
        self.do(f"return {condition}")
        return self.lines
