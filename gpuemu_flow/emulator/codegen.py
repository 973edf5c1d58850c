"""Generate Python code for each basic block; the code contains no text from the PTX file."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuemu_flow.emulator.blocks import ENDS_THREADS, Blocks
from gpuemu_flow.emulator.effects import find_effect
from gpuemu_flow.emulator.effects.checking import operand_problem, result_problem
from gpuemu_flow.emulator.emitter import Emitter
from gpuemu_flow.emulator.errors import fix_of, unsupported
from gpuemu_flow.emulator.forms import find_form
from gpuemu_flow.emulator.ir import (
    Immediate,
    KernelProgram,
    Operand,
    Register,
    Sink,
    Step,
)
from gpuemu_flow.emulator.machine import BlockFunction
from gpuemu_flow.emulator.polling import polling_loads
from gpuemu_flow.emulator.types import Array, OpcodeForm


class Code:
    """The Python functions of a program's basic blocks, each compiled on first use."""

    def __init__(self, program: KernelProgram, blocks: Blocks) -> None:
        self._program = program
        self._blocks = blocks
        self._polling = polling_loads(program, blocks)
        self._functions: dict[tuple[int, bool], BlockFunction] = {}
        self.names: dict[str, Any] = {"where": np.where, "both": both}
        self._known: dict[tuple[object, ...], str] = {}

    def __call__(self, block: int, masked: bool) -> BlockFunction:
        """Return the function of a basic block; if `masked`, it changes only active lanes."""
        key = (block, masked)
        found = self._functions.get(key)
        if found is None:
            found = self._functions[key] = self._compile(block, masked)
        return found

    def _compile(self, block: int, masked: bool) -> BlockFunction:
        emitter = Emitter(self.bind, self._program, self._polling)
        start, end = self._blocks.starts[block], self._blocks.ends[block]
        for index in range(start, end):
            _write_step(emitter, self._program, index)
        lines = emitter.close(self._blocks.live_out[block], masked)
        source = "def block(m, R, M, G):\n " + "\n ".join(lines) + "\n"
        scope: dict[str, Any] = {}
        code = compile(source, f"<block {block} of {self._program.name}>", "exec")
        exec(code, self.names, scope)  # noqa: S102 - the text holds names made here alone
        function: BlockFunction = scope["block"]
        return function

    def bind(self, prefix: str, key: tuple[object, ...], value: object) -> str:
        whole = (prefix, *key)
        name = self._known.get(whole)
        if name is None:
            name = f"{prefix}{len(self._known)}"
            self._known[whole] = name
            self.names[name] = value
        return name


def both(mask: Array | None, predicate: Array) -> Array:
    return predicate if mask is None else mask & predicate


def _write_step(emitter: Emitter, program: KernelProgram, index: int) -> None:
    step = program.steps[index]
    base = step.opcode.base
    if base == "brx":
        emitter.condition = emitter.read(step.operands[0], "u32")
        return
    if step.opcode.is_branch or base in ENDS_THREADS:
        if step.guard is not None:
            emitter.condition = emitter.guard(step)
        return
    form = find_form(step.opcode)
    if form is not None:
        _write_form(emitter, form, step)
        return
    effect = find_effect(step.opcode)
    assert effect is not None, step.opcode
    effect.emit(emitter, step, index)


def _write_form(emitter: Emitter, form: OpcodeForm, step: Step) -> None:
    operands = step.operands[1:]
    if form.table:
        table = operands[-1]
        assert isinstance(table, Immediate)
        made = form.function(table.value & 255)
        function = emitter.function(made, f"{step.opcode.text} {table.value}")
        operands = operands[:-1]
    else:
        function = emitter.function(form.function, step.opcode.text)
    values = [emitter.read(o, t) for o, t in zip(operands, form.sources, strict=True)]
    emitter.write(step.operands[0], f"{function}({', '.join(values)})", form.result, step)


def check_program(program: KernelProgram) -> None:
    source = program.module.source
    for step in program.steps:
        reason = why_not(step)
        if reason:
            raise unsupported(
                f"{program.name}: {step.text!r} cannot be run: {reason}",
                fix_of(step.opcode),
                source.file,
                source.line_of(step.offset),
            )


def why_not(step: Step) -> str:
    opcode, operands = step.opcode, step.operands
    if opcode.is_branch or opcode.base in ENDS_THREADS:
        return ""
    form = find_form(opcode)
    if form is not None:
        return _form_problem(form, operands)
    effect = find_effect(opcode)
    if effect is None:
        return "the emulator does not know this instruction"
    return effect.problem(step)


def _form_problem(form: OpcodeForm, operands: tuple[Operand, ...]) -> str:
    count = 1 + len(form.sources) + form.table
    if len(operands) != count:
        return f"it has {len(operands)} operands, not {count}"
    if not isinstance(operands[0], (Register, Sink)):
        return "its first operand is no register"
    problem = result_problem(operands[0], form.result)
    if problem:
        return problem
    if form.table and not isinstance(operands[-1], Immediate):
        return "its last operand is no constant"
    for operand, type_name in zip(operands[1:], form.sources, strict=False):
        problem = operand_problem(operand, type_name)
        if problem:
            return problem
    return ""
