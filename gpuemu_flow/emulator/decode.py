"""Decode a parsed PTX function into a `KernelProgram`: read operands, inline device functions."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from msgspec.structs import replace

from gpuemu_flow.emulator.clusters import largest_cluster, required_cluster
from gpuemu_flow.emulator.errors import UnsupportedError, fix_of, unsupported
from gpuemu_flow.emulator.ir import (
    STACK,
    GlobalVariable,
    Immediate,
    Inverted,
    KernelProgram,
    MemoryOperand,
    MemoryRegion,
    Operand,
    OperandGroup,
    Register,
    Sink,
    Special,
    Step,
    Symbol,
    TensorPlace,
)
from gpuemu_flow.emulator.layout import (
    align_up,
    check_size,
    function_addresses,
    header_lists,
    initial_value,
    lay_out_parameters,
    taken_addresses,
)
from gpuemu_flow.lint.ptx.model import (
    TYPE_BYTES,
    Body,
    Function,
    Instruction,
    Opcode,
    parse_address,
    parse_integer,
    split_operands,
)
from gpuemu_flow.lint.ptx.parser import read_body

MAX_STEPS = 200_000
"""Largest number of steps of one kernel, with its device functions inlined."""

SYSTEM_CALLS = frozenset({"vprintf", "__assertfail"})
"""Functions that the driver provides on a GPU and that the emulator implements."""

SHARED_GUARD = 64
"""Bytes between shared variables, so that an access past the end of a variable is found."""

MAX_CALL_DEPTH = 32

STACK_BYTES = 8192
"""Largest number of bytes of a thread's local memory that ``alloca`` may take."""


def decode_program(function: Function) -> KernelProgram:
    """Decode a kernel. Raises UnsupportedError for text that is not PTX, and for a kernel that
    cannot be decoded. Instructions that the emulator lacks are found later, by `check_program`."""
    return _Decoder(function).decode()


def is_cuda_header(file: str) -> bool:
    return "/include/" in file and ("cuda" in file or "/nvidia/" in file or "/cccl/" in file)


def _is_of_language(file: str) -> bool:
    return is_cuda_header(file) or "/triton/language/" in file


class _Frame:
    """The registers, variables and parameters, by name, of one function that is being decoded."""

    def __init__(self, body: Body, symbols: dict[str, Symbol]) -> None:
        self.body = body
        self.symbols = symbols
        self.registers: dict[tuple[int, str], Register] = {}
        self.operands: dict[tuple[int, str], Operand] = {}
        self.starts: list[int] = []
        self.pending: list[tuple[int, tuple[int, ...]]] = []
        self.returns: list[int] = []
        self.single: list[dict[str, str]] = []
        self.ranged: list[dict[str, tuple[int, str]]] = []
        for scope in body.scopes:
            self.single.append(
                {r.name: r.type for r in scope.registers if r.size is None and r.lanes == 1}
            )
            self.ranged.append(
                {r.name: (r.size, r.type) for r in scope.registers if r.size is not None}
            )

    def declared(self, name: str, scope: int) -> tuple[int, str] | None:
        """Find the declaration of the register that an instruction in `scope` calls `name`."""
        stem = name.rstrip("0123456789")
        while scope >= 0:
            if name in self.single[scope]:
                return scope, self.single[scope][name]
            for cut in range(len(stem), len(name)):
                found = self.ranged[scope].get(name[:cut])
                if found is not None and len(name) - cut < 10 and int(name[cut:]) < found[0]:
                    return scope, found[1]
            scope = self.body.scopes[scope].parent
        return None


class _Decoder:
    def __init__(self, function: Function) -> None:
        self._function = function
        self._module = function.module
        self._functions = {f.name: f for f in self._module.functions if not f.is_entry}
        self._addresses = function_addresses(self._module)
        self._program = KernelProgram(function.name, self._module)
        self._module_symbols: dict[str, Symbol] = {}
        self._shared_names: dict[str, Symbol] = {}
        self._global_numbers: dict[str, int] = {}
        self._unreadable: dict[int, UnsupportedError] = {}
        self._stack: list[str] = []
        self._calls = 0

    def decode(self) -> KernelProgram:
        program, function = self._program, self._function
        program.required_threads = function.bounds.max_threads if function.bounds.required else 0
        program.max_threads = function.bounds.max_threads
        program.required_cluster = required_cluster(function)
        program.largest_cluster = largest_cluster(function)
        program.parameters, program.parameter_bytes = lay_out_parameters(function)
        program.replicates = ".ptr .global" in function.header or any(
            v.name == "global_smem" for v in self._module.variables
        )
        self._place_globals()
        symbols = {p.name: Symbol("param", p.offset) for p in program.parameters}
        frame = self._frame(function, symbols)
        for index in frame.returns:
            program.steps[index] = replace(program.steps[index], opcode=Opcode("exit"))
        # A label may stand behind the last instruction, and a call may be the last one.
        program.steps.append(
            Step(Opcode("exit"), (), None, False, (), function.offset, None, "exit")
        )
        if any(step.opcode.base == "alloca" for step in program.steps):
            offset = align_up(program.local_bytes, 128)
            program.local.append(MemoryRegion(STACK, offset, STACK_BYTES))
            program.local_bytes = offset + STACK_BYTES
        program.dynamic_offset = align_up(program.shared_bytes, 1024)
        return program

    def _declined(self, message: str, hint: str, offset: int) -> Exception:
        source = self._module.source
        return unsupported(message, hint, source.file, source.line_of(offset))

    def _place_globals(self) -> None:
        variables = [v for v in self._module.variables if v.space in ("global", "const")]
        variables = [v for v in variables if not v.external]
        self._global_numbers = {v.name: n for n, v in enumerate(variables)}
        for number, variable in enumerate(variables):
            try:
                made = initial_value(variable, self._module, self._global_numbers)
            except UnsupportedError as error:  # matters only to kernels that use the variable
                self._unreadable[number] = error
                made = GlobalVariable(variable.name, 0, b"", constant=True)
            self._program.globals.append(made)

    def _frame(self, function: Function, symbols: dict[str, Symbol]) -> _Frame:
        if function.name in self._stack or len(self._stack) >= MAX_CALL_DEPTH:
            raise self._declined(
                f"{function.name} calls itself", "recursion cannot be run", function.offset
            )
        self._stack.append(function.name)
        body = read_body(function)
        if body.problems:
            problem = body.problems[0]
            raise unsupported(
                f"{problem.slug}: {problem.message}", problem.hint, problem.file, problem.line
            )
        frame = _Frame(body, dict(symbols))
        self._place_variables(frame)
        for instruction in body.instructions:
            frame.starts.append(len(self._program.steps))
            self._instruction(instruction, frame)
            if len(self._program.steps) > MAX_STEPS:
                raise self._declined(
                    f"{self._function.name} has more than {MAX_STEPS} steps with its functions",
                    "compile fewer device functions into it",
                    function.offset,
                )
        frame.starts.append(len(self._program.steps))
        steps = self._program.steps
        for index, targets in frame.pending:
            steps[index] = replace(steps[index], targets=tuple(frame.starts[t] for t in targets))
        self._stack.pop()
        return frame

    def _place_variables(self, frame: _Frame) -> None:
        program = self._program
        widest: dict[str, tuple[int, int]] = {}
        for variable in frame.body.variables:
            align = variable.align or TYPE_BYTES.get(variable.type, 1)
            if variable.space == "shared":
                self._shared(variable.name, check_size(variable, self._module), align)
                frame.symbols[variable.name] = self._shared_names[variable.name]
            elif variable.space in ("local", "param"):
                size, old = check_size(variable, self._module), widest.get(variable.name, (0, 1))
                widest[variable.name] = (max(size, old[0]), max(align, old[1]))
            elif variable.space in ("global", "const"):
                number = len(program.globals)
                self._global_numbers[variable.name] = number
                program.globals.append(initial_value(variable, self._module, self._global_numbers))
                frame.symbols[variable.name] = Symbol("global", number)
        for name, (size, align) in widest.items():
            offset = align_up(program.local_bytes, max(align, 8))
            program.local.append(MemoryRegion(name, offset, size))
            program.local_bytes = offset + size
            frame.symbols[name] = Symbol("local", offset)
        if program.local_bytes > 1 << 20:
            raise self._declined(
                "a thread needs more than 1 MiB of local memory", "", self._function.offset
            )

    def _shared(self, name: str, size: int, align: int) -> None:
        program = self._program
        if name in self._shared_names:
            return
        start = program.shared_bytes + (SHARED_GUARD if program.shared else 0)
        offset = align_up(start, max(align, 16))
        program.shared.append(MemoryRegion(name, offset, size))
        program.shared_bytes = offset + size
        self._shared_names[name] = Symbol("shared", offset)
        if program.shared_bytes > 1 << 20:
            raise self._declined("more than 1 MiB of shared memory", "", self._function.offset)

    def _module_symbol(self, name: str) -> Symbol | None:
        number = self._global_numbers.get(name)
        if number is not None:
            if number in self._unreadable:
                raise self._unreadable[number]
            return Symbol("global", number)
        if name in self._shared_names:
            return self._shared_names[name]
        for variable in self._module.variables:
            if variable.name == name and variable.space == "shared":
                if variable.external or variable.size_bytes in (None, 0):
                    return Symbol("dynamic", 0)
                align = variable.align or TYPE_BYTES.get(variable.type, 1)
                self._shared(name, check_size(variable, self._module), align)
                return self._shared_names[name]
        return None

    def _lookup(self, name: str, scope: int, frame: _Frame) -> Register | Symbol | None:
        found = frame.declared(name, scope)
        if found is not None:
            key = (found[0], name)
            register = frame.registers.get(key)
            if register is None:
                register = Register(len(self._program.register_types), found[1])
                frame.registers[key] = register
                self._program.register_types.append(found[1])
                self._program.register_names.append(name)
            return register
        symbol = frame.symbols.get(name) or self._module_symbols.get(name)
        if symbol is None:
            symbol = self._module_symbol(name)
            if symbol is not None:
                self._module_symbols[name] = symbol
        return symbol

    def _instruction(self, instruction: Instruction, frame: _Frame) -> None:
        opcode = instruction.opcode
        guard, negated = None, False
        if instruction.predicate is not None:
            name, negated = instruction.predicate
            found = self._lookup(name, instruction.scope, frame)
            if not isinstance(found, Register) or found.type != "pred":
                raise self._declined(f"the guard {name!r} is no predicate", "", instruction.offset)
            guard = found
        if opcode.base == "call":
            self._call(instruction, frame, guard, negated)
            return
        targets: tuple[int, ...] = ()
        operands: tuple[Operand, ...] = ()
        if opcode.is_branch:
            targets, operands = self._branch(instruction, frame)
        else:
            operands = tuple(
                self._operand(text, instruction, frame) for text in instruction.operands
            )
        index = self._emit(instruction, frame, opcode, operands, guard, negated)
        if targets:
            frame.pending.append((index, targets))
        if opcode.base == "ret":
            frame.returns.append(index)

    def _emit(
        self,
        instruction: Instruction,
        frame: _Frame,
        opcode: Opcode,
        operands: tuple[Operand, ...],
        guard: Register | None,
        negated: bool,
    ) -> int:
        location, headers = self._own_line(frame.body, instruction)
        text = f"{instruction.opcode.text} {' '.join(instruction.text.split())}".strip()
        self._program.steps.append(
            Step(
                opcode,
                operands,
                guard,
                negated,
                (),
                instruction.offset,
                location,
                text[:160],
                headers=headers,
            )
        )
        return len(self._program.steps) - 1

    def _own_line(self, body: Body, instruction: Instruction) -> tuple[tuple[int, int] | None, str]:
        """Return an instruction's file and line; in the language's own files, the caller's, and the
        names of these."""
        location = body.location_of(instruction)
        if location is None:
            return None, ""
        found, seen = location, {}
        while _is_of_language(file := self._module.files.get(found.file, "")) and found not in seen:
            seen[found] = file
            call = found.inlined_at
            if call is None:
                return (location.file, location.line), " ".join(seen.values())
            if not _is_of_language(self._module.files.get(call[0], "")):
                return call[:2], " ".join(seen.values())
            found = next((one for one in body.locations if one[:3] == call), found)
        return (found.file, found.line), " ".join(seen.values())

    def _operand(self, text: str, instruction: Instruction, frame: _Frame) -> Operand:
        key = (instruction.scope, text)
        known = frame.operands.get(key)
        if known is not None:
            return known

        def lookup(name: str) -> Register | Symbol | None:
            return self._lookup(name, instruction.scope, frame)

        operand = decode_operand(text, lookup)
        if operand is None and text.strip() in self._addresses:
            operand = Immediate(self._addresses[text.strip()], "int")
        if operand is None:
            raise self._declined(
                f"{instruction.opcode.text}: the operand {' '.join(text.split())[:60]!r} cannot "
                "be run",
                fix_of(instruction.opcode),
                instruction.offset,
            )
        frame.operands[key] = operand
        return operand

    def _branch(
        self, instruction: Instruction, frame: _Frame
    ) -> tuple[tuple[int, ...], tuple[Operand, ...]]:
        body, scope = frame.body, instruction.scope
        texts = instruction.operands
        operands: tuple[Operand, ...] = ()
        names: tuple[str, ...] = ()
        if instruction.opcode.base == "bra" and len(texts) == 1:
            names = (texts[0],)
        elif instruction.opcode.base == "brx" and len(texts) == 2:
            operands = (self._operand(texts[0], instruction, frame),)
            names = body.resolve_branch_targets(texts[1], scope) or ()
        found = [body.resolve_label(name, scope) for name in names]
        if not found or None in found:
            raise self._declined(
                f"{instruction.opcode.text} goes to a label that does not exist",
                "",
                instruction.offset,
            )
        return tuple(t for t in found if t is not None), operands

    def _call(
        self, instruction: Instruction, frame: _Frame, guard: Register | None, negated: bool
    ) -> None:
        texts = instruction.operands
        lists = [[n.strip() for n in t.strip("()").split(",") if n.strip()] for t in texts]
        results = lists.pop(0) if texts and texts[0].startswith("(") else []
        name = lists.pop(0)[0] if lists and lists[0] else ""
        arguments = lists.pop(0) if lists else []
        symbols = []
        for text in (*results, *arguments):
            operand = self._operand(text, instruction, frame)
            if not isinstance(operand, Symbol):
                raise self._declined(
                    f"call: the argument {text!r} is no .param variable", "", instruction.offset
                )
            symbols.append(operand)
        name = self._module.aliases.get(name, name)
        if name in SYSTEM_CALLS:
            opcode = Opcode(f"call.{name}")
            self._emit(instruction, frame, opcode, tuple(symbols), guard, negated)
            return
        function = self._functions.get(name)
        pointer = None if function else self._lookup(name, instruction.scope, frame)
        if isinstance(pointer, Register):
            shape = (len(results), len(arguments))
            self._call_through(instruction, frame, pointer, symbols, shape, guard, negated)
            return
        if function is None:
            raise self._declined(
                f"call of {name[:60]!r}, which has no body in this file",
                "give the PTX that defines it, too (nvcc -rdc=true); functions of the device "
                "runtime, such as malloc, cannot be run",
                instruction.offset,
            )
        self._inline(instruction, frame, function, symbols, guard, negated)

    def _call_through(
        self,
        instruction: Instruction,
        frame: _Frame,
        pointer: Register,
        symbols: list[Symbol],
        shape: tuple[int, int],
        guard: Register | None,
        negated: bool,
    ) -> None:
        """Call the function that a register points to: compare with each that it may be."""
        program, steps = self._program, self._program.steps
        skips, ends = [], []
        if guard is not None:
            ends.append(self._emit(instruction, frame, Opcode("bra"), (), guard, not negated))
        flag = Register(len(program.register_types), "pred")
        program.register_types.append("pred")
        program.register_names.append("%callee")
        for name in sorted(taken_addresses(self._module)):
            function = self._functions[name]
            taken = tuple(map(len, header_lists(function)))
            if taken != shape or name in self._stack:
                continue
            address = Immediate(self._addresses[name], "int")
            compare = (flag, pointer, address)
            self._emit(instruction, frame, Opcode("setp.eq.u64"), compare, None, False)
            skips.append(self._emit(instruction, frame, Opcode("bra"), (), flag, True))
            self._inline(instruction, frame, function, symbols, None, False)
            ends.append(self._emit(instruction, frame, Opcode("bra"), (), None, False))
            steps[skips[-1]] = replace(steps[skips[-1]], targets=(len(steps),))
        self._emit(instruction, frame, Opcode("trap"), (), None, False)
        for index in ends:
            steps[index] = replace(steps[index], targets=(len(steps),))

    def _inline(
        self,
        instruction: Instruction,
        frame: _Frame,
        function: Function,
        symbols: list[Symbol],
        guard: Register | None,
        negated: bool,
    ) -> None:
        returned, taken = header_lists(function)
        formals = [*returned, *taken]
        if len(formals) != len(symbols) or any(v.space != "param" for v in formals):
            raise self._declined(
                f"call of {function.name} with {len(symbols)} of {len(formals)} arguments",
                "",
                instruction.offset,
            )
        steps = self._program.steps
        skip = -1
        if guard is not None:
            skip = self._emit(instruction, frame, Opcode("bra"), (), guard, not negated)
        called = self._frame(function, {v.name: s for v, s in zip(formals, symbols, strict=True)})
        end = len(steps)
        for index in called.returns:
            steps[index] = replace(steps[index], opcode=Opcode("bra"), targets=(end,))
        if skip >= 0:
            steps[skip] = replace(steps[skip], targets=(end,))


# Decode the text of one operand into a typed operand.


SPECIAL_REGISTERS = frozenset(
    {
        *(f"{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"),
        *(f"{name}.{axis}" for name in ("clusterid", "nclusterid") for axis in "xyz"),
        *(f"{name}.{axis}" for name in ("cluster_ctaid", "cluster_nctaid") for axis in "xyz"),
        "laneid", "warpid", "nwarpid", "smid", "nsmid", "gridid",
        "cluster_ctarank", "cluster_nctarank", "is_explicit_cluster",
        "lanemask_eq", "lanemask_le", "lanemask_lt", "lanemask_ge", "lanemask_gt",
        "clock", "clock_hi", "clock64", "globaltimer", "globaltimer_lo", "globaltimer_hi",
        "total_smem_size", "aggr_smem_size", "dynamic_smem_size", "envreg1", "envreg2",
    }
)  # fmt: skip
"""Special registers that the emulator implements (PTX ISA, "Special Registers")."""

Lookup = Callable[[str], "Register | Symbol | None"]

_HEX_FLOAT = re.compile(r"0([fFdD])([0-9a-fA-F]{1,16})\Z", re.ASCII)
_DECIMAL_FLOAT = re.compile(r"[+-]?(\d{1,40}\.\d{0,40}|\.\d{1,40})([eE][+-]?\d{1,4})?\Z", re.ASCII)
_SUM = re.compile(r"([\w$%.]+)\s*\+\s*(-?\w+)\Z", re.ASCII)


def decode_operand(text: str, lookup: Lookup) -> Operand | None:
    text = text.strip()
    if text.startswith("{"):
        return _group(split_operands(text[1:].rstrip().removesuffix("}")), lookup)
    if text.startswith("["):
        return _memory(text, lookup)
    if "|" in text:
        return _group(tuple(part.strip() for part in text.split("|")), lookup)
    if text.startswith("!"):
        found = lookup(text[1:].strip())
        return Inverted(found) if isinstance(found, Register) else None
    return _simple(text, lookup)


def _group(parts: tuple[str, ...], lookup: Lookup) -> OperandGroup | None:
    items = []
    for part in parts:
        item = _simple(part, lookup)
        if item is None:
            return None
        items.append(item)
    return OperandGroup(tuple(items)) if items else None


def _memory(text: str, lookup: Lookup) -> MemoryOperand | TensorPlace | None:
    parts = split_operands(text[1:-1]) if "{" in text and text.endswith("]") else ()
    if len(parts) == 2:
        place, corner = _memory(f"[{parts[0]}]", lookup), decode_operand(parts[1], lookup)
        if isinstance(place, MemoryOperand) and isinstance(corner, OperandGroup):
            return TensorPlace(place, corner.items)
        return None
    address = parse_address(text)
    if address is None or not text.endswith("]"):
        return None
    base = _simple(address.base, lookup)
    if isinstance(base, (Register, Immediate, Symbol)):
        return MemoryOperand(base, address.displacement)
    return None


def _simple(text: str, lookup: Lookup) -> Operand | None:
    if text == "_":
        return Sink()
    if text == "WARP_SZ":
        return Immediate(32)
    if text[:1].isdigit() or text[:1] in "+-.":
        return _number(text)
    found = lookup(text)
    if found is not None:
        return found
    if text.startswith("%") and text[1:] in SPECIAL_REGISTERS:
        return Special(text[1:])
    return _sum(text, lookup)


def _sum(text: str, lookup: Lookup) -> Operand | None:
    match = _SUM.match(text)
    if match is None:
        return None
    found, added = lookup(match.group(1)), parse_integer(match.group(2))
    if not isinstance(found, Symbol) or added is None:
        return None
    return Symbol(found.space, found.offset, found.displacement + added)


def _number(text: str) -> Immediate | None:
    match = _HEX_FLOAT.match(text)
    if match is not None:
        kind = "f32" if match.group(1) in "fF" else "f64"
        bits = int(match.group(2), 16)
        return Immediate(bits & (0xFFFFFFFF if kind == "f32" else 0xFFFFFFFFFFFFFFFF), kind)
    if _DECIMAL_FLOAT.match(text):
        return Immediate(struct.unpack("<Q", struct.pack("<d", float(text)))[0], "f64")
    value = parse_integer(text)
    return None if value is None else Immediate(value & 0xFFFFFFFFFFFFFFFF)
