"""Perturb the results of approximate instructions within the errors that the ISA allows.

The emulator rounds these results correctly; hardware may be off by up to a bound. To test whether a
kernel tolerates such errors, added steps perturb the results within the bound: all upward, all
downward, or at random.
"""

from __future__ import annotations

import struct

from gpuemu_flow.artifacts.ptx import Opcode
from gpuemu_flow.emulator.effects.perturb import PERTURB
from gpuemu_flow.emulator.forms import find_form
from gpuemu_flow.emulator.ir import Immediate, KernelProgram, Register, Step
from gpuemu_flow.emulator.rewriting import like, rewritten

_TYPES = frozenset({"f16", "f32", "f64"})


def find_approximate(program: KernelProgram) -> list[int]:
    """List the steps whose results may be inexact on hardware, and can be perturbed."""
    found = []
    for index, step in enumerate(program.steps):
        form = find_form(step.opcode)
        movable = form is not None and form.approximate and form.result in _TYPES
        if movable and isinstance(step.operands[0], Register):
            found.append(index)
    return found


def perturb(program: KernelProgram, steps: list[int], draw: int) -> KernelProgram:
    """Return a kernel with added steps that perturb the results of some of its steps.

    Parameters
    ----------
    program : KernelProgram
    steps : list of int
        Some of the steps that `find_approximate` found.
    draw : int
        0 raises each result by the largest error that the ISA allows, and 1 lowers each result by
        this error. Any other number is the seed of random perturbations that do not exceed it.
    """
    return rewritten(program, {n: [program.steps[n], _moved(program, n, draw)] for n in steps})


def _moved(program: KernelProgram, index: int, draw: int) -> Step:
    step = program.steps[index]
    form = find_form(step.opcode)
    assert form is not None
    target = step.operands[0]
    bounds = (_number(form.approximate), _number(form.absolute_below))
    operands = (target, target, *bounds, Immediate(draw))
    return like(step, opcode=Opcode(f"{PERTURB}.{form.result}"), operands=operands)


def _number(value: float) -> Immediate:
    return Immediate(int.from_bytes(struct.pack("<d", value), "little"), "f64")
