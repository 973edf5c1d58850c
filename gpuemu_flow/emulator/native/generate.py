"""Write a whole kernel as C: a function for each segment, and tables that say how segments end."""

from __future__ import annotations

from msgspec import Struct, field

from gpuemu_flow.emulator.blocks import (
    ENDS_THREADS,
    Blocks,
    is_barrier,
    is_unaligned,
    split_blocks,
)
from gpuemu_flow.emulator.ir import KernelProgram, Register, Step
from gpuemu_flow.emulator.native import runtime
from gpuemu_flow.emulator.native.barrier_objects import BARRIER_OBJECTS
from gpuemu_flow.emulator.native.collectives import (
    FRAGMENTS,
    HELPERS,
    is_collective,
    write_collective,
)
from gpuemu_flow.emulator.native.prelude import INTEGERS, MEMORY, OFFSETS, STATE
from gpuemu_flow.emulator.native.prelude_floats import FLOATS, HALVES, RACES
from gpuemu_flow.emulator.native.steps import write_step
from gpuemu_flow.emulator.native.writer import LackingError, SegmentWriter, bits_type
from gpuemu_flow.emulator.polling import is_strong, polling_loads
from gpuemu_flow.emulator.races import smallest_access
from gpuemu_flow.emulator.types import BITS, SIZES
from gpuemu_flow.emulator.wmma import stack_region

MAX_STEPS = 12_000
"""Largest number of steps of a kernel that a compiler can translate in a few seconds."""


class _Segment(Struct):
    """The parts of one C function, before it is decided which registers are stored in arrays."""

    number: int
    writers: tuple[SegmentWriter, ...]
    lines: list[str] = field(default_factory=list)
    collective: bool = False
    arrays: tuple[str, ...] = ()
    work: tuple[str, ...] = ()


def is_shared_step(step: Step) -> bool:
    """Tell whether other threads can observe in which order a step's lanes execute it."""
    opcode = step.opcode
    if is_collective(step) or opcode.base in ("atom", "red", "mbarrier"):
        return True
    if opcode.base == "cp" and {"bulk", "mbarrier"} & set(opcode.segments):
        return True
    return opcode.base in ("ld", "st") and is_strong(step)


def generate(program: KernelProgram, *, races: bool = False) -> str:
    """Write a kernel as C. Raises LackingError: The back end lacks an instruction or a form of
    operand, or the kernel has too many steps."""
    if len(program.steps) > MAX_STEPS:
        raise LackingError(f"a kernel of more than {MAX_STEPS:,} steps")
    steps = program.steps
    alone = [n for n, step in enumerate(steps) if is_shared_step(step)]
    blocks = split_blocks(program, [*alone, *(n + 1 for n in alone)])
    polling = polling_loads(program, blocks)
    segments = [_write_segment(program, blocks, b, polling) for b in range(len(blocks.starts))]
    kept = set().union(*(w.read_first for s in segments for w in s.writers))
    kept |= {_result(steps[end - 1]) for end in blocks.ends} & kept
    functions = [_function(program, blocks, s, kept) for s in segments]
    copying = any(step.opcode.base == "cp" for step in steps)
    objects = any({"mbarrier", "bulk"} & set(step.opcode.segments) for step in steps)
    head, body = STATE.split("typedef unsigned __int128 u128;", 1)
    parts = [head, "typedef unsigned __int128 u128;", _register_file(program, kept), body]
    grain = smallest_access(program).bit_length() - 1
    parts.insert(0, f"#define RACES {int(races)}\n#define GRAIN {grain}")
    parts += [OFFSETS, RACES, INTEGERS, MEMORY, FLOATS, HALVES, HELPERS, FRAGMENTS, BARRIER_OBJECTS]
    bottom, top = stack_region(program)
    parts.append(
        f"#define COPYING {int(copying)}\n#define OBJECTING {int(objects)}\n"
        f"#define STACK_START {bottom}ull\n#define STACK_END {top}ull"
    )
    parts += functions
    parts += [_tables(program, blocks), _give(program, blocks, kept)]
    parts += [_clear(program, blocks.entry_live & kept), runtime.RUNTIME]
    return "\n".join(parts)


def _register_type(program: KernelProgram, number: int) -> str:
    kind = program.register_types[number]
    return "uint8_t" if BITS.get(kind) == "?" else bits_type(SIZES[kind])


def _register_file(program: KernelProgram, kept: set[int]) -> str:
    rows = [f"{_register_type(program, n)} r{n}[1040];" for n in sorted(kept)]
    return "typedef struct { " + " ".join(rows) + " uint8_t last; } RF;"


def _clear(program: KernelProgram, numbers: frozenset[int] | set[int]) -> str:
    lines = [f"memset(f->r{n}, 0, sizeof f->r{n});" for n in sorted(numbers)]
    return "static void clear(RF *f) { (void)f; " + " ".join(lines) + " }"


def _write_segment(
    program: KernelProgram, blocks: Blocks, number: int, polling: frozenset[int]
) -> _Segment:
    start, end = blocks.starts[number], blocks.ends[number]
    first = program.steps[start]
    if is_collective(first):
        made = write_collective(program, first)
        return _Segment(
            number, (made.reader, made.writer), collective=True, arrays=made.arrays, work=made.work
        )
    writer = SegmentWriter(program)
    for index in range(start, end):
        writer.is_polling = index in polling
        _write(writer, program.steps[index])
    return _Segment(number, (writer,))


def _write(writer: SegmentWriter, step: Step) -> None:
    base = step.opcode.base
    if base == "brx":
        if step.guard is not None:
            raise LackingError("a branch by table under a predicate")
        writer.do(f"s->sel[t] = {writer.read(step.operands[0], 'u32')};")
    elif base == "trap":
        writer.do(f"if ({writer.guard(step) or '1'}) s->err |= 2;")
    elif step.opcode.is_branch or base in ENDS_THREADS:
        if step.guard is not None:
            writer.do(f"s->cond[t] = {writer.guard(step)};")
    elif base in ("bar", "barrier"):
        _write_barrier(writer, step)
    else:
        write_step(writer, step)


def _write_barrier(writer: SegmentWriter, step: Step) -> None:
    if not is_barrier(step):
        raise LackingError(step.opcode.text)
    words, middle = step.opcode.segments, step.operands
    vote = "0"
    if "red" in words:
        vote, middle = writer.read(middle[-1], "pred"), middle[1:-1]
    wanted = writer.read(middle[1], "u32") if len(middle) > 1 else "UINT32_MAX"
    writer.do(f"s->bar_name[t] = {writer.read(middle[0], 'u32')};")
    writer.do(f"s->bar_wanted[t] = {wanted}; s->vote[t] = {vote};")


def _function(program: KernelProgram, blocks: Blocks, segment: _Segment, kept: set[int]) -> str:
    number = segment.number
    live = blocks.live_out[number]

    def framed(writer: SegmentWriter) -> list[str]:
        names = sorted(writer.read_first | writer.written)
        lines = [
            f"{_register_type(program, n)} r{n} = "
            + (f"f->r{n}[t];" if n in writer.read_first else "0;")
            for n in names
        ]
        lines += writer.lines
        return lines + [f"f->r{n}[t] = r{n};" for n in sorted(writer.written & live & kept)]

    head = f"static void b{number}(St *s, const int32_t *act, int n) {{ RF *f = s->f; (void)f;"
    if not segment.collective:
        body = "\n  ".join(framed(segment.writers[0]))
        if not body:
            return f"{head} (void)act; (void)n; }}"
        return (
            f"{head}\n for (int j = 0; j < n; j++) {{ const uint32_t t = (uint32_t)act[j]; "
            f"(void)t;\n  {body}\n }} }}"
        )
    reader, writer = segment.writers
    lines = [
        head,
        "for (int j = 0; j < n; j++) s->on[act[j]] = 1;",
        "for (uint32_t w = 0; w < s->width; w += 32) { uint32_t mask = 0;",
        "for (int l = 0; l < 32; l++) mask |= (uint32_t)s->on[w + l] << l;",
        "if (!mask) continue;",
        "const uint32_t alive = s->together ? mask : living(s, w); (void)alive;",
        *(f"{array};" for array in segment.arrays),
        "for (int l = 0; l < 32; l++) { const uint32_t t = w + l; (void)t;",
        *framed(reader),
        "}",
        *segment.work,
        "for (int l = 0; l < 32; l++) if (mask >> l & 1) { const uint32_t t = w + l; (void)t;",
        *framed(writer),
        "} }",
        "for (int j = 0; j < n; j++) s->on[act[j]] = 0; }",
    ]
    return "\n ".join(lines)


def _result(step: Step) -> int:
    if is_barrier(step) and "red" in step.opcode.segments:
        first = step.operands[0]
        return first.number if isinstance(first, Register) else -1
    return -1


_STORING = frozenset({"st", "stmatrix", "wmma", "cp"})
_REDUCES = {"popc": 1, "and": 2, "or": 3}


def _give(program: KernelProgram, blocks: Blocks, kept: set[int]) -> str:
    lines = ["static void give(St *s, int b, uint32_t t, uint32_t x) { switch (b) {"]
    for b, end in enumerate(blocks.ends):
        number = _result(program.steps[end - 1])
        if number in kept:
            lines.append(f"case {b}: s->f->r{number}[t] = x; break;")
    return " ".join([*lines, "default: (void)s; (void)t; (void)x; } }"])


def _ending(blocks: Blocks, step: Step) -> tuple[int, int]:
    base = step.opcode.base
    if base == "brx":
        return runtime.TABLE, -1
    if step.opcode.is_branch:
        target = blocks.number[step.targets[0]]
        return (runtime.JUMPS if step.guard is None else runtime.BRANCHES), target
    if base == "trap":
        return (runtime.TRAPS if step.guard is None else runtime.FALLS), -1
    if base in ENDS_THREADS:
        return (runtime.ENDS if step.guard is None else runtime.MAY_END), -1
    return (runtime.BARRIER if is_barrier(step) else runtime.FALLS), -1


def _tables(program: KernelProgram, blocks: Blocks) -> str:
    columns: dict[str, list[int]] = {
        name: []
        for name in (
            "KIND", "TARGET", "LENGTH", "WAITS", "COLLECTIVE", "REDUCES", "ARRIVES", "PLAIN",
            "FIRSTS", "LENGTHS", "FREE", "STORES",
        )
    }  # fmt: skip
    targets: list[int] = []
    for start, end in zip(blocks.starts, blocks.ends, strict=True):
        step = program.steps[end - 1]
        kind, target = _ending(blocks, step)
        words = step.opcode.segments
        shared = program.steps[start:end]
        table = [blocks.number[t] for t in step.targets] if kind == runtime.TABLE else []
        row = {
            "KIND": kind, "TARGET": target, "LENGTH": end - start,
            "WAITS": int(any(_may_wait(s) for s in shared)),
            "COLLECTIVE": int(any(map(is_collective, shared))),
            "REDUCES": next((n for w, n in _REDUCES.items() if w in words), 0)
            if _result(step) >= 0 else 0,
            "ARRIVES": int(kind == runtime.BARRIER and "arrive" in words),
            "PLAIN": int(kind == runtime.BARRIER and len(step.operands) == 1),
            "FIRSTS": len(targets), "LENGTHS": len(table), "FREE": int(is_unaligned(step)),
            "STORES": int(any(s.opcode.base in _STORING for s in shared)),
        }  # fmt: skip
        targets += table
        for name, value in row.items():
            columns[name].append(value)
    lines = [
        f"static const int32_t {name}[] = {{{', '.join(map(str, values))}}};"
        for name, values in (*columns.items(), ("TARGETS", targets or [0]))
    ]
    functions = ", ".join(f"b{b}" for b in range(len(blocks.starts)))
    lines.append(f"static void (*const RUN[])(St *, const int32_t *, int) = {{{functions}}};")
    return "\n".join(lines)


def _may_wait(step: Step) -> bool:
    return step.opcode.base in ("atom", "nanosleep", "mbarrier") or (
        step.opcode.base == "ld" and is_strong(step)
    )
