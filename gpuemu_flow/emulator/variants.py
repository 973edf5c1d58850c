"""Alternative legal executions of the same PTX: with fused operations, or other approximations.

If these executions lead to different verdicts, the kernel gets no verdict, since a verdict would
depend on the compiler or the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct

from gpuemu_flow.emulator.approximations import find_approximate, perturb
from gpuemu_flow.emulator.contraction import find_pairs, fuse
from gpuemu_flow.emulator.findings import CheckFinding
from gpuemu_flow.emulator.ir import KernelProgram
from gpuemu_flow.emulator.launch import Argument, BufferArgument, Kernel, LaunchResult
from gpuemu_flow.emulator.types import Array

MAX_SINGLE = 12
"""Largest number of instructions that are tried one by one; the others are only tried together."""

DRAWS = 4
"""Number of executions with perturbed results of approximate instructions: all rounded up, all
down, then at random."""


class Variant(Struct, frozen=True):
    """One alternative way to execute a kernel.

    Attributes
    ----------
    check : str
        The check that tries the variant: ``contract`` fuses multiplications with additions,
        ``approx`` changes results of approximate instructions within their error bounds.
    step : int
        Number of the first step that differs.
    label : str
        Description of the difference, with instruction and source location.
    single : bool
        True if only one instruction is different.
    kernel : Kernel
    """

    check: str
    step: int
    label: str
    single: bool
    kernel: Kernel


def make_variants(kernel: Kernel, checks: Iterable[str]) -> list[Variant]:
    """Make the variants of a kernel that the given checks need.

    Returns
    -------
    list of Variant
        For each check, first the variants that change all of the check's instructions, then those
        that change only one instruction.
    """
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
    """Return findings about variants that change the results of a launch by more than rounding.

    A variant does so if it changes the findings of other checks, an integer result, or whether a
    result is finite or NaN. There is at most one finding for each check (see `Variant.check`). The
    finding names a single instruction if a change of this instruction alone has such an effect.

    Parameters
    ----------
    kernel : Kernel
    variants : sequence of Variant
    result : LaunchResult
        Result of the unchanged kernel.
    arguments : sequence of Argument
    launch : callable
        Launches a kernel in the way that gave `result`.
    """
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
    """Describe the first difference between two launches that is more than rounding.

    Empty if there is none. A difference counts if it concerns the findings, an integer result, or
    whether a result is finite or NaN.
    """
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
