"""Alternative legal executions of the same PTX: with fused operations, or other approximations.

If these executions lead to different verdicts, the kernel gets no verdict, since a verdict would
depend on the compiler or the GPU.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct

from gpuemu_flow.emulator.blocks import defined_and_used, split_blocks
from gpuemu_flow.emulator.effects.checking import PERTURB
from gpuemu_flow.emulator.findings import CheckFinding
from gpuemu_flow.emulator.forms import find_form
from gpuemu_flow.emulator.ir import Immediate, KernelProgram, Operand, Register, Step
from gpuemu_flow.emulator.launch import Argument, BufferArgument, Kernel, LaunchResult
from gpuemu_flow.emulator.rewriting import like, new_register, rewritten
from gpuemu_flow.emulator.types import ROUNDINGS, Array
from gpuemu_flow.lint.ptx.model import Opcode

MAX_SINGLE = 12
"""Largest number of instructions that are tried one by one; the others are only tried together."""

DRAWS = 4
"""Number of executions with perturbed results of approximate instructions: all rounded up, all
down, then at random."""


class Variant(Struct, frozen=True):
    """One alternative way to execute a kernel."""

    check: str
    step: int
    label: str
    single: bool
    kernel: Kernel


def make_variants(kernel: Kernel, checks: Iterable[str]) -> list[Variant]:
    """Make the variants of a kernel that the given checks need."""
    wanted = set(checks)
    found: list[Variant] = []
    if "contract" in wanted:
        found += _contracted(kernel.program)
    if "approx" in wanted:
        found += _approximated(kernel.program)
    return found


def _name(program: KernelProgram, step: int) -> str:
    return f"{program.steps[step].opcode.text} at {program.place(step).where}"


def _contracted(program: KernelProgram) -> Iterator[Variant]:
    pairs = find_pairs(program)
    labels = [f"{_name(program, p.add)} fused with {_name(program, p.multiply)}" for p in pairs]
    if len(pairs) > 1:
        label = f"all {len(pairs)} pairs of mul and add fused, the first {labels[0]}"
        yield Variant("contract", pairs[0].add, label, False, Kernel(fuse(program, pairs)))
    for pair, label in zip(pairs[:MAX_SINGLE], labels, strict=False):
        yield Variant("contract", pair.add, label, True, Kernel(fuse(program, [pair])))


def _approximated(program: KernelProgram) -> Iterator[Variant]:
    steps = find_approximate(program)
    for draw in range(DRAWS if len(steps) > 1 else 0):
        label = f"all {len(steps)} approximate instructions {_way(draw)}"
        made = Kernel(perturb(program, steps, draw))
        yield Variant("approx", steps[0], label, False, made)
    for step in steps[:MAX_SINGLE]:
        for draw in range(2 if len(steps) > 1 else DRAWS):
            label = f"{_name(program, step)} {_way(draw)}"
            made = Kernel(perturb(program, [step], draw))
            yield Variant("approx", step, label, True, made)


def _way(draw: int) -> str:
    way = {0: "at the upper bound of its error", 1: "at the lower bound of its error"}
    return way.get(draw, f"within its error bound (draw {draw})")


def find_flips(
    kernel: Kernel, variants: Sequence[Variant], result: LaunchResult,
    arguments: Sequence[Argument], launch: Callable[[Kernel], LaunchResult],
) -> list[CheckFinding]:  # fmt: skip
    """Return findings about variants that change the results of a launch by more than rounding. A
    variant does so if it changes the findings of other checks, an integer result, or whether a
    result is finite or NaN. There is at most one finding for each check (see `Variant.check`). The
    finding names a single instruction if a change of this instruction alone has such an effect."""
    found: dict[str, CheckFinding] = {}
    for variant in variants:
        known = found.get(variant.check)
        if known is not None and (known.rule == "one-decides" or not variant.single):
            continue
        said = _difference(kernel, result, launch(variant.kernel), arguments)
        if said:
            rule = "one-decides" if variant.single else "all-decide"
            zero = (0, 0, 0)
            found[variant.check] = CheckFinding(
                variant.check, rule, f"inconclusive: with {variant.label}, {said}", kernel.name,
                kernel.program.place(variant.step), zero, zero, 1,
            )  # fmt: skip
    return list(found.values())


def _difference(
    kernel: Kernel, first: LaunchResult, second: LaunchResult, arguments: Sequence[Argument]
) -> str:
    """Describe the first difference between two launches that is more than rounding. Empty if there
    is none. A difference counts if it concerns the findings, an integer result, or whether a result
    is finite or NaN."""
    places = [{(f.check, f.rule, f.place.where) for f in r.findings} for r in (first, second)]
    if places[0] != places[1]:
        check, rule, where = sorted(places[0] ^ places[1])[0]
        more = "finds" if places[1] - places[0] else "no longer finds"
        return f"the check {check} {more} {rule} at {where}"
    rows = zip(kernel.parameters, arguments, first.buffers, second.buffers, strict=True)
    for parameter, argument, one, other in rows:
        if one is None or other is None:
            continue
        assert isinstance(argument, BufferArgument)
        at = _first_that_matters(one.reshape(-1), other.reshape(-1))
        if at >= 0:
            name = argument.name or parameter.name
            values = f"{other.reshape(-1)[at]}, not {one.reshape(-1)[at]}"
            return f"{name}[{at:,}] is {values}"
    return ""


def _first_that_matters(one: Array, other: Array) -> int:
    if one.dtype.kind in "iub":
        differs = one != other
    else:
        a, b = one.astype(np.float64), other.astype(np.float64)
        differs = (np.isfinite(a) != np.isfinite(b)) | (np.isnan(a) != np.isnan(b))
    places = np.flatnonzero(differs)
    return int(places[0]) if places.size else -1


# Perturb the results of approximate instructions within the errors that the ISA allows.


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
    """Return a kernel with added steps that perturb the results of some of its steps."""
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


# Multiplications and additions that a compiler may fuse (PTX ISA, "mul", "add", "fma").


_TYPES_CONTRACTION = frozenset({"f16", "f16x2", "bf16", "bf16x2", "f32", "f64"})
_FLAGS = frozenset({"ftz", "sat"})


class Pair(Struct, frozen=True):
    """A multiplication, and an addition or subtraction of the product."""

    multiply: int
    add: int
    position: int


def find_pairs(program: KernelProgram) -> list[Pair]:
    """Find the multiplications that a compiler may fuse with an addition or subtraction. The two
    steps of such a pair are in the same basic block. Between them, no step changes the product or
    its factors."""
    blocks = split_blocks(program)
    found = []
    for start, end in zip(blocks.starts, blocks.ends, strict=True):
        products: dict[int, int] = {}
        for index in range(start, end):
            step = program.steps[index]
            if _fusable(step, "add", "sub"):
                found += _pairs_of(program, index, products)
            for register in defined_and_used(step)[0]:
                products = {
                    target: at for target, at in products.items()
                    if target != register and register not in _used(program.steps[at])
                }  # fmt: skip
            if _fusable(step, "mul") and isinstance(step.operands[0], Register):
                target = step.operands[0].number
                if target not in _used(step):
                    products[target] = index
    return found


def _used(step: Step) -> tuple[int, ...]:
    return defined_and_used(step)[1]


def _fusable(step: Step, *bases: str) -> bool:
    words = set(step.opcode.segments[1:])
    return (
        step.opcode.base in bases and step.guard is None and step.opcode.type in _TYPES_CONTRACTION
        and len(step.operands) == 3 and words <= _FLAGS | {step.opcode.type}
        and not words.intersection(ROUNDINGS)
    )  # fmt: skip


def _pairs_of(program: KernelProgram, index: int, products: dict[int, int]) -> list[Pair]:
    step = program.steps[index]
    for position in (1, 2):
        operand = step.operands[position]
        if not isinstance(operand, Register) or operand.number not in products:
            continue
        at = products[operand.number]
        first, second = program.steps[at].opcode, step.opcode
        same = first.type == second.type and ("ftz" in first.segments) == ("ftz" in second.segments)
        if same and "sat" not in first.segments:
            return [Pair(at, index, position)]
    return []


def fuse(program: KernelProgram, pairs: list[Pair]) -> KernelProgram:
    """Replace the addition of each pair by ``fma``; keep the multiplication for other uses."""
    pieces: dict[int, list[Step]] = {}
    types: list[str] = []
    for pair in pairs:
        step, product = program.steps[pair.add], program.steps[pair.multiply]
        a, b = product.operands[1:]
        c = step.operands[3 - pair.position]
        before: list[Step] = []

        def negated(operand: Operand, step: Step = step, before: list[Step] = before) -> Register:
            target = new_register(program, types, _plain_type(step.opcode.type))
            types.append(target.type)
            opcode = Opcode(f"neg.{step.opcode.type}")
            before.append(like(step, opcode=opcode, operands=(target, operand)))
            return target

        if step.opcode.base == "sub":
            if pair.position == 1:
                c = negated(c)
            else:
                a = negated(a)
        flags = "".join(f".{w}" for w in ("ftz", "sat") if w in step.opcode.segments)
        opcode = Opcode(f"fma.rn{flags}.{step.opcode.type}")
        fused = like(step, opcode=opcode, operands=(step.operands[0], a, b, c))
        pieces[pair.add] = [*before, fused]
    return rewritten(program, pieces, types=types)


def _plain_type(type_name: str) -> str:
    return {"f16x2": "b32", "bf16x2": "b32", "f16": "b16", "bf16": "b16"}.get(type_name, type_name)
