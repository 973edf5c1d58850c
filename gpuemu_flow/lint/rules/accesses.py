"""Rules about a kernel's accesses to memory, and its barriers."""

from __future__ import annotations

from typing import NamedTuple

from gpuemu_flow.lint.analysis import Findings, KernelAnalysis, Rule, divergent_barriers
from gpuemu_flow.lint.kernel import Finding
from gpuemu_flow.lint.ptx.model import Opcode, parse_address, split_operands
from gpuemu_flow.model.plain_text import plural

_ALWAYS_SPECIFIC = frozenset({"async", "bulk"})


def find_generic_address(analysis: KernelAnalysis) -> Findings:
    return analysis.group(
        analysis.select("ld", "st", "atom", "red", where=_is_generic),
        lambda _, count: f"{plural(count, 'memory instruction')} with a generic address",
    )


def _is_generic(opcode: Opcode) -> bool:
    return not opcode.space and _ALWAYS_SPECIFIC.isdisjoint(opcode.segments)


GENERIC_ADDRESS = Rule(
    id="generic-address",
    severity="info",
    what="`ld`, `st`, `atom` or `red` without `.global`, `.shared` or `.local`.",
    why="The hardware has to find out at run time which memory the address means, and the "
    "compiler cannot use the read-only path or reorder accesses of different spaces.",
    example="__device__ __noinline__ float get(const float* p) { return *p; }   // ld.f32",
    instead="Let the compiler see where pointers come from: inline the function, pass "
    "`__restrict__` kernel arguments, avoid pointers to pointers.",
    find=find_generic_address,
)


def find_atomics_in_loop(analysis: KernelAnalysis) -> Findings:
    atomics = analysis.select("atom", "red", where=lambda o: "async" not in o.segments)
    in_loops = [index for index in atomics if analysis.in_loop(index)]

    def describe(first: int, count: int) -> str:
        opcode = analysis.body.instructions[first].opcode
        space = opcode.space or "generic"
        return f"{plural(count, 'atomic operation')} on {space} memory in a loop ({opcode.text})"

    return analysis.group(in_loops, describe)


ATOMICS_IN_LOOP = Rule(
    id="atomics-in-loop",
    severity="info",
    what="`atom` or `red` inside a loop, also the loop of an emulated atomic (compare and swap).",
    why="Atomics on one address are carried out one after the other. Once per element instead "
    "of once per thread or block, they limit the kernel's speed.",
    example="for (int i = t; i < n; i += stride) atomicAdd(&hist[x[i]], 1);   // global memory",
    instead="Gather in registers or shared memory, reduce over the warp (`__reduce_add_sync`, "
    "shuffles), and add once per block.",
    find=find_atomics_in_loop,
)


_RUN = 4
_WIDEST_ELEMENT = 4
_ORDERED = frozenset(
    {"volatile", "relaxed", "acquire", "release", "mmio", "v2", "v4", "v8", "async", "bulk"}
)


class _Stream(NamedTuple):
    """Properties that scalar accesses must share so that one vector access could replace them."""

    block: int
    operation: str
    base: str
    base_defined_at: int
    size: int
    guard: str | None


def find_scalar_accesses(analysis: KernelAnalysis) -> Findings:
    scalar = analysis.select("ld", "st", where=_is_scalar_global)
    if len(scalar) < _RUN:
        return ()
    streams: dict[_Stream, dict[int, int]] = {}
    instructions, graph = analysis.body.instructions, analysis.graph
    last_definition = _last_definitions(analysis, scalar)
    for index in scalar:
        instruction = instructions[index]
        address = parse_address(instruction.text)
        if address is None:
            continue
        stream = _Stream(
            graph.block_of(index),
            instruction.opcode.base,
            address.base,
            last_definition[index],
            instruction.opcode.access_bytes,
            instruction.guard,
        )
        streams.setdefault(stream, {}).setdefault(address.displacement, index)
    runs = [run for stream, accesses in streams.items() for run in _runs(accesses, stream.size)]
    return analysis.group(
        sorted(runs),
        lambda first, count: (
            f"{plural(count, 'run')} of {_RUN} scalar accesses to consecutive "
            f"addresses ({instructions[first].opcode.text})"
        ),
    )


def _is_scalar_global(opcode: Opcode) -> bool:
    return (
        opcode.space == "global"
        and 0 < opcode.access_bytes <= _WIDEST_ELEMENT
        and _ORDERED.isdisjoint(opcode.segments)
    )


def _last_definitions(analysis: KernelAnalysis, accesses: list[int]) -> dict[int, int]:
    """Map each access to the last earlier instruction that wrote the access's base register. Two
    accesses use the same base address if they have the same base and map to the same
    instruction. An access without such an instruction maps to -1. Accesses and instructions are
    given by index."""
    defs, uses = analysis.flow.defs, analysis.flow.uses
    interesting = {register for index in accesses for register in uses[index][:1]}
    written: dict[int, int] = {}
    wanted = set(accesses)
    answers: dict[int, int] = {}
    for index, registers in enumerate(defs):
        if index in wanted:
            answers[index] = written.get(uses[index][0], -1) if uses[index] else -1
        for register in registers:
            if register in interesting:
                written[register] = index
    return answers


def _runs(accesses: dict[int, int], size: int) -> list[int]:
    """Return the index of the first instruction of each run of consecutive displacements.
    `accesses` maps displacements to instructions. A run has `_RUN` accesses of `size` bytes."""
    offsets = sorted(accesses)
    starts = []
    position = 0
    while position + _RUN <= len(offsets):
        if offsets[position + _RUN - 1] - offsets[position] == (_RUN - 1) * size:
            starts.append(min(accesses[o] for o in offsets[position : position + _RUN]))
            position += _RUN
        else:
            position += 1
    return starts


SCALAR_ACCESSES = Rule(
    id="scalar-accesses",
    severity="info",
    what="Four loads or stores of consecutive 4-byte (or smaller) elements of global memory from "
    "the same base address.",
    why="One `ld.global.v4` moves the same bytes with a quarter of the instructions and of the "
    "memory requests.",
    example="a = p[0]; b = p[1]; c = p[2]; d = p[3];      // four ld.global.f32",
    instead="Read a `float4` through an aligned pointer, or give Triton a contiguous block with "
    "`tl.multiple_of`. The address must be a multiple of 16 bytes.",
    find=find_scalar_accesses,
)


_PASSES = frozenset({"add", "sub", "mov", "shl", "mad", "mul", "cvt", "cvta", "selp", "or"})
_ACCESSES = frozenset({"ld", "st", "atom", "red", "ldu", "cp"})
_WIDENS = ("mul.wide", "mad.wide", "cvt.s64.s32", "cvt.u64.u32")


def find_narrow_offset(analysis: KernelAnalysis) -> Findings:
    by_name: dict[str, list[int]] = {}
    steps = analysis.body.instructions
    for index, step in enumerate(steps):
        for name in split_operands(step.text)[:1]:
            by_name.setdefault(name.strip(), []).append(index)

    def behind(names: list[str]) -> set[int]:
        found: set[int] = set()
        pending = list(names)
        while pending:
            for index in by_name.get(pending.pop(), ()):
                if index not in found and steps[index].opcode.base in _PASSES:
                    found.add(index)
                    pending += [o.strip() for o in steps[index].operands[1:]]
        return found

    addresses = {
        operand.strip("[] \t").partition("+")[0]
        for step in steps
        if step.opcode.base in _ACCESSES and step.opcode.space not in ("shared", "param", "local")
        for operand in step.operands
        if operand.lstrip().startswith("[")
    }
    widened = [
        steps[n].operands[1].strip()
        for n in sorted(behind(sorted(addresses)))
        if steps[n].opcode.text.startswith(_WIDENS)
    ]
    products = [
        n
        for n in sorted(behind(widened))
        if _is_product(steps[n].opcode.segments) and not _has_constant(analysis, n)
    ]

    def describe(first: int, count: int) -> str:
        limit = 1 << (31 if steps[first].opcode.type == "s32" else 32)
        return (
            f"{plural(count, 'offset')} by a 32-bit product ({steps[first].opcode.text}): wraps "
            f"around where it reaches {limit:,} elements"
        )

    yield from analysis.group(products, describe)


def _is_product(words: tuple[str, ...]) -> bool:
    return words[0] in ("mul", "mad") and "lo" in words and words[-1] in ("s32", "u32")


def _has_constant(analysis: KernelAnalysis, index: int) -> bool:
    """Tell whether a factor is a number or a special register, as in a thread's own index."""
    step = analysis.body.instructions[index]
    factors = [operand.strip() for operand in step.operands[1:3]]
    made = {
        split_operands(s.text)[0].strip(): split_operands(s.text)[1].strip()
        for s in analysis.body.instructions
        if s.opcode.base == "mov"
    }
    special = ("%ntid", "%nctaid")
    return any(f.isdigit() or made.get(f, f).startswith(special) for f in factors)


NARROW_OFFSET = Rule(
    id="narrow-offset",
    severity="info",
    what="A product of two values of 32 bits, such as `row * stride`, that becomes part of an "
    "address after it was computed with 32 bits (`mul.lo.s32`, then `mul.wide.s32`).",
    why="From 2,147,483,648 elements on the product wraps around, and the kernel reads and writes "
    "elsewhere. No case that fits into a test shows that.",
    example="int i = row * stride + col;      // mul.lo.s32\nout[i] = x[i];",
    instead="Widen a factor first: `(size_t)row * stride`; in Triton `row.to(tl.int64) * stride`.",
    find=find_narrow_offset,
)


def find_divergent_barrier(analysis: KernelAnalysis) -> Findings:
    for barrier in divergent_barriers(analysis):
        line = analysis.place(barrier.branch).line
        if barrier.early_exit:
            message = (
                f"reached only by threads that pass the branch at PTX line {line}; the others "
                "have ended"
            )
        else:
            message = (
                f"not reached by all threads: the branch at PTX line {line} depends on the thread"
            )
        opcode = analysis.body.instructions[barrier.barrier].opcode.text
        yield Finding(
            f"{opcode} is {message}",
            analysis.place(barrier.barrier),
            actual=1,
            severity="info" if barrier.early_exit else "",
        )


DIVERGENT_BARRIER = Rule(
    id="divergent-barrier",
    severity="warning",
    what="`__syncthreads()` (`bar.sync`, `barrier.sync.aligned`) inside a branch or loop whose "
    "condition depends on the thread index. Barriers with a thread count are exempt. After an "
    "early `return` of the other threads: information only.",
    why="The barrier waits for all threads that have not ended. When some go around it, the "
    "kernel hangs, or threads meet at different barriers and read data too early.",
    example="if (threadIdx.x < 16) { s[threadIdx.x] = x; __syncthreads(); }",
    instead="Move the barrier out of the branch; make loop counts equal for all threads of the "
    "block and guard the work instead.",
    find=find_divergent_barrier,
)
