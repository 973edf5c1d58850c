"""Write the C code of steps that each thread executes by itself.

These are arithmetic, moves, accesses to memory, atomics and copies.
"""

from __future__ import annotations

from collections.abc import Callable

from gpuemu_flow.emulator.effects.checking import UNDEFINED, constant_of, items_of
from gpuemu_flow.emulator.effects.copies import _is_predicate as is_predicate
from gpuemu_flow.emulator.effects.loads import space_of
from gpuemu_flow.emulator.effects.moves import TRUE
from gpuemu_flow.emulator.effects.stack import _alignment as alignment_of
from gpuemu_flow.emulator.forms import find_form
from gpuemu_flow.emulator.ir import Immediate, MemoryOperand, OperandGroup, Step, Symbol
from gpuemu_flow.emulator.native.barrier_objects import write_bulk, write_object
from gpuemu_flow.emulator.native.lanes import lane_wise
from gpuemu_flow.emulator.native.writer import (
    LackingError,
    SegmentWriter,
    bits_type,
    c_type,
    from_bits,
)
from gpuemu_flow.emulator.polling import is_strong
from gpuemu_flow.emulator.types import SIZES

StepWriter = Callable[[SegmentWriter, Step], None]


def write_step(writer: SegmentWriter, step: Step) -> None:
    """Write one step, other than a branch, that each thread executes by itself. Raises LackingError
    if the back end lacks the step."""
    form = find_form(step.opcode)
    if form is not None:
        operands = list(step.operands[1:])
        table = []
        if form.table:
            last = operands.pop()
            if not isinstance(last, Immediate):
                raise LackingError(step.opcode.text)
            table = [str(last.value & 255)]
        given = [writer.read(o, t) for o, t in zip(operands, form.sources, strict=True)]
        value = lane_wise(step.opcode, [*given, *table])
        if value is None:
            raise LackingError(step.opcode.text)
        writer.write(step.operands[0], value, form.result, writer.guard(step))
        return
    chosen = _STEPS.get(step.opcode.base)
    words = _MEMORY_WORDS.get(step.opcode.base)
    known = words is None or set(step.opcode.segments[1:]) <= {*words, *step.opcode.types}
    if chosen is None or not known:
        raise LackingError(step.opcode.text)
    chosen(writer, step)


_SCOPES = frozenset({"cta", "cluster", "gpu", "sys", "global", "shared", "shared::cta"})
_ORDERS = frozenset({"relaxed", "acquire", "release", "acq_rel", "volatile", "weak"})
_CACHES = frozenset(
    {
        "nc",
        "ca",
        "cg",
        "cs",
        "lu",
        "cv",
        "wb",
        "wt",
        "v2",
        "v4",
        "v8",
        "local",
        "param",
        "const",
        "param::entry",
        "param::func",
        "L2::64B",
        "L2::128B",
        "L2::256B",
        "L1::evict_normal",
        "L1::evict_unchanged",
        "L1::evict_first",
        "L1::evict_last",
        "L1::no_allocate",
        "L2::evict_first",
        "L2::evict_last",
        "L2::evict_normal",
    }
)
_ATOMIC = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
_MEMORY_WORDS = {
    "ld": _SCOPES | _ORDERS | _CACHES, "ldu": _SCOPES | _CACHES, "st": _SCOPES | _ORDERS | _CACHES,
    "atom": _SCOPES | _ORDERS | set(_ATOMIC), "red": _SCOPES | _ORDERS | set(_ATOMIC),
}  # fmt: skip
"""Words that accesses may have besides their types; numpy runs an access with any other."""

_RELATIONS = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "lo": "<", "ls": "<=", "hi": ">", "hs": ">=",
}  # fmt: skip
_UNORDERED = {"equ": "==", "neu": "!=", "ltu": "<", "leu": "<=", "gtu": ">", "geu": ">="}
_COMBINE = {"and": "&", "or": "|", "xor": "^"}
_COMPARED = frozenset({"ftz", *_COMBINE})


def _relation(name: str, a: str, b: str, floats: bool) -> str:
    both = f"({a} == {a} && {b} == {b})"
    if name in ("num", "nan"):
        return both if name == "num" else f"(!{both})"
    if not floats:
        return f"({a} {_RELATIONS[name]} {b})"
    if name in _UNORDERED:
        return f"(!{both} || {a} {_UNORDERED[name]} {b})"
    return f"({both} && {a} {_RELATIONS[name]} {b})"


def _compared(writer: SegmentWriter, step: Step) -> list[str]:
    words, kind = step.opcode.segments[1:], step.opcode.type
    name = words[0]
    if not set(words[1:]) <= {*step.opcode.types, *_COMPARED}:
        raise LackingError(step.opcode.text)
    a, b = (writer.read(o, kind) for o in step.operands[1:3])
    half = "flhf" if "ftz" in words else "h2f"
    if kind in ("f16x2", "bf16x2"):
        widen = half if kind == "f16x2" else "b2f"
        return [
            _relation(name, f"{widen}({part}({a}))", f"{widen}({part}({b}))", True)
            for part in ("LO", "HI")
        ]
    if kind in ("f16", "bf16"):
        widen = half if kind == "f16" else "b2f"
        a, b = f"{widen}({a})", f"{widen}({b})"
    elif "ftz" in words and kind == "f32":
        a, b = f"flf({a})", f"flf({b})"
    return [_relation(name, a, b, kind in ("f16", "bf16", "f32", "f64"))]


def _combined(writer: SegmentWriter, step: Step, values: list[str]) -> list[str]:
    combined = next((w for w in step.opcode.segments[2:] if w in _COMBINE), "")
    if not combined:
        return values
    other = writer.read(step.operands[3], "pred")
    return [f"({v} {_COMBINE[combined]} {other})" for v in values]


def _setp(writer: SegmentWriter, step: Step) -> None:
    found = _compared(writer, step)
    targets = items_of(step.operands[0])
    values = found if len(found) == 2 else [found[0], f"(!{found[0]})"]
    values = _combined(writer, step, values)[: len(targets)]
    names = [writer.temporary("uint8_t", v) for v in values]
    guard = writer.guard(step)
    kept = writer.temporary("uint8_t", guard) if guard else ""
    for target, name in zip(targets, names, strict=False):
        writer.write(target, name, "pred", kept)


def _set(writer: SegmentWriter, step: Step) -> None:
    to = step.opcode.types[0]
    values = _combined(writer, step, _compared(writer, step))
    value, one = values[0], TRUE.get(to, 0xFFFF)
    if len(values) == 2:
        text = f"((({value}) ? {one:#x}u : 0u) | (({values[1]}) ? {one << 16:#x}u : 0u))"
        writer.write(step.operands[0], text, "b32", writer.guard(step))
        return
    if to in ("f32", "f64"):
        text = f"(({c_type(to)})({value}))"
    elif to in TRUE:
        text = f"(({value}) ? {one:#x} : 0)"
    elif to[0] in "us":
        text = f"({c_type(to)})(({value}) ? -1 : 0)"
    else:
        raise LackingError(step.opcode.text)
    writer.write(step.operands[0], text, to, writer.guard(step))


def _mov(writer: SegmentWriter, step: Step) -> None:
    target, source = step.operands
    kind = step.opcode.type
    size, guard = SIZES[kind], writer.guard(step)
    if isinstance(target, OperandGroup):
        if guard:
            guard = writer.temporary("uint8_t", guard)
        piece = 8 * size // len(target.items)
        whole = writer.temporary(bits_type(size), writer.read(source, f"b{8 * size}"))
        for k, item in enumerate(target.items):
            writer.write(item, f"(uint{piece}_t)({whole} >> {piece * k})", f"b{piece}", guard)
    elif isinstance(source, OperandGroup):
        piece = 8 * size // len(source.items)
        parts = [
            f"(({bits_type(size)})({writer.read(item, f'b{piece}')}) << {piece * k})"
            for k, item in enumerate(source.items)
        ]
        writer.write(target, " | ".join(parts), f"b{8 * size}", guard)
    elif isinstance(source, Symbol) and source.space == "param" and size == 4:
        writer.write(target, f"{source.offset + source.displacement}u", kind, guard)
    else:
        writer.write(target, writer.read(source, kind), kind, guard)


_BASES = {"shared": "SHARED_BASE", "local": "LOCAL_BASE"}


def _cvta(writer: SegmentWriter, step: Step) -> None:
    kind = step.opcode.type
    value = f"(uint64_t)({writer.read(step.operands[1], kind)})"
    base = _BASES.get(step.opcode.space, "")
    if base:
        value = f"({value} {'-' if 'to' in step.opcode.segments else '+'} {base})"
    elif step.opcode.space == "param" and "to" not in step.opcode.segments:
        value = writer.temporary("uint64_t", value)
        value = f"({value} >> 32 ? {value} : {value} + s->a->par_address)"
    writer.write(step.operands[0], f"({c_type(kind)})({value})", kind, writer.guard(step))


def _isspacep(writer: SegmentWriter, step: Step) -> None:
    value = writer.read(step.operands[1], "u64")
    inside = {name: f"({value} - {base} < WINDOW)" for name, base in _BASES.items()}
    space = step.opcode.space
    text = inside.get(space, "0")
    if space == "global":
        text = f"(!{inside['shared']} && !{inside['local']})"
    writer.write(step.operands[0], text, "pred", writer.guard(step))


def _load(writer: SegmentWriter, step: Step) -> None:
    address, kind = step.operands[1], step.opcode.type
    assert isinstance(address, MemoryOperand)
    targets, size = items_of(step.operands[0]), SIZES[kind]
    guard, base = writer.guard(step), address.base
    if guard and len(targets) > 1:
        guard = writer.temporary("uint8_t", guard)
    if isinstance(base, Symbol) and base.space == "param":
        offset = base.offset + base.displacement + address.displacement
        if offset < 0 or offset + size * len(targets) > writer.parameter_bytes:
            raise LackingError("a parameter beyond the last")
        for k, target in enumerate(targets):
            value = from_bits(f"get{size}(s->a->par + {offset + k * size})", kind)
            writer.write(target, value, kind, guard)
        return
    place = f"ld_{space_of(step, address)}(s, t, {writer.address(address)}, {size * len(targets)})"
    strong = writer.is_polling
    if strong:
        writer.do("s->strong = 1;")
    where = writer.temporary(
        "const uint8_t *", f"({guard}) ? {place} : s->a->g" if guard else place
    )
    if strong:
        writer.do("s->strong = 0;")
    values = [
        writer.temporary(c_type(kind), from_bits(f"get{size}({where} + {k * size})", kind))
        for k in range(len(targets))
    ]
    for target, value in zip(targets, values, strict=True):
        writer.write(target, value, kind, guard)


def _store(writer: SegmentWriter, step: Step) -> None:
    address = step.operands[0]
    assert isinstance(address, MemoryOperand)
    size, items = SIZES[step.opcode.type], items_of(step.operands[1])
    values = [writer.read(v, f"b{8 * size}") for v in items]
    guard = writer.guard(step)
    whole = size * len(items)
    puts = "".join(f" put{size}(b + {k * size}, {v});" for k, v in enumerate(values))
    call = f"wr_{space_of(step, address)}(s, t, {writer.address(address)}, {whole}, b);"
    if is_strong(step):
        call = f"s->strong = 1; {call} s->strong = 0;"
    writer.do(f"{f'if ({guard}) ' if guard else ''}{{ uint8_t b[{whole}];{puts} {call} }}")


def _new_value(operation: str, kind: str, old: str, values: list[str]) -> str:
    first = values[0]
    if kind in ("f32", "f64"):
        if operation == "exch":
            return first
        if operation == "add":
            return f"c{'f' if kind == 'f32' else 'd'}({old} + {first})"
        if operation in ("min", "max"):
            return f"c{'f' if kind == 'f32' else 'd'}({operation}_{kind}({old}, {first}))"
        raise LackingError(f"atom.{operation}.{kind}")
    if kind[1:] not in ("32", "64"):
        raise LackingError(f"atom.{operation}.{kind}")
    wide = f"uint{kind[1:]}_t"
    known = {
        "add": f"({c_type(kind)})(({wide}){old} + ({wide}){first})",
        "min": f"({old} < {first} ? {old} : {first})",
        "max": f"({old} > {first} ? {old} : {first})",
        "and": f"({old} & {first})",
        "or": f"({old} | {first})",
        "xor": f"({old} ^ {first})",
        "exch": first,
        "cas": f"({old} == {first} ? {values[-1]} : {old})",
        "inc": f"({old} >= {first} ? 0 : {old} + 1)",
        "dec": f"({old} == 0 || {old} > {first} ? {first} : {old} - 1)",
    }
    return known[operation]


def _atomic(writer: SegmentWriter, step: Step) -> None:
    opcode, kind = step.opcode, step.opcode.type
    operation = next(w for w in opcode.segments[1:] if w in _ATOMIC)
    operands = step.operands[1:] if opcode.base == "atom" else step.operands
    address, size = operands[0], SIZES[kind]
    assert isinstance(address, MemoryOperand)
    values = [writer.temporary(c_type(kind), writer.read(o, kind)) for o in operands[1:]]
    space, where = space_of(step, address), writer.address(address)
    guard = writer.guard(step)
    old = writer.temporary(c_type(kind), "0")
    bits = {"f32": "fau({})", "f64": "dau({})"}.get(kind, f"({bits_type(size)})({{}})")
    new = bits.format(_new_value(operation, kind, old, values))
    read = from_bits(f"get{size}(p)", kind)
    writer.do(
        f"{f'if ({guard}) ' if guard else ''}{{ uint8_t *p = up_{space}(s, t, {where}, {size}); "
        f"{old} = {read}; put{size}(p, {new}); }}"
    )
    if opcode.base == "atom":
        writer.write(step.operands[0], old, kind, guard)


def _copy(writer: SegmentWriter, step: Step) -> None:
    rest = step.opcode.segments[2:]
    if {"bulk", "mbarrier"} & set(step.opcode.segments):
        write_bulk(writer, step)
        return
    guard = writer.guard(step)
    when = f"if ({guard}) " if guard else ""
    if rest == ("commit_group",):
        writer.do(f"{when}s->group[t]++;")
        return
    if rest == ("wait_all",):
        writer.do(f"{when}wait_copies(s, t, 0, 1);")
        return
    operands = step.operands
    if rest == ("wait_group",):
        writer.do(f"{when}wait_copies(s, t, {constant_of(operands[0])}, 0);")
        return
    if step.opcode.segments[1:2] != ("async",) or rest[:1] not in (("ca",), ("cg",)):
        raise LackingError(step.opcode.text)
    target, source, size = operands[0], operands[1], constant_of(operands[2])
    assert isinstance(target, MemoryOperand) and isinstance(source, MemoryOperand)
    taken = f"{size}u"
    if len(operands) == 4:
        taken = writer.read(operands[3], "pred" if is_predicate(operands[3]) else "u32")
        taken = f"({taken} ? 0u : {size}u)" if is_predicate(operands[3]) else taken
    where, origin = writer.address(target), writer.address(source)
    writer.do(f"{when}start_copy(s, t, {where}, {origin}, {size}u, {taken});")


def _carry(writer: SegmentWriter, step: Step) -> None:
    opcode = step.opcode
    wide = opcode.type.endswith("64")
    bits, double = ("uint64_t", "u128") if wide else ("uint32_t", "uint64_t")
    signed = ("s" if opcode.type[0] == "s" else "u") + opcode.type[1:]
    values = [writer.read(o, signed) for o in step.operands[1:]]
    if opcode.base in ("mad", "madc"):
        long = {"s32": "int64_t", "u32": "uint64_t", "s64": "s128", "u64": "u128"}[signed]
        shift = (64 if wide else 32) if "hi" in opcode.segments else 0
        product = f"({bits})(({double})(({long})({values[0]}) * ({long})({values[1]})) >> {shift})"
        values = [product, values[2]]
    taken = "s->carry[t]" if opcode.base.endswith("c") else "0"
    sign = "-" if opcode.base.startswith("sub") else "+"
    left, right = (f"({double})({bits})({v})" for v in values)
    total = writer.temporary(double, f"{left} {sign} {right} {sign} {taken}")
    writer.write(step.operands[0], f"({bits}){total}", f"b{64 if wide else 32}")
    if "cc" in opcode.segments:
        writer.do(f"s->carry[t] = ({total} >> {64 if wide else 32}) != 0;")


def _watched(writer: SegmentWriter, step: Step) -> None:
    condition = writer.read(step.operands[1], "pred")
    guard = writer.guard(step)
    writer.do(f"if ({condition}{f' && {guard}' if guard else ''}) s->err |= 1;")


def _alloca(writer: SegmentWriter, step: Step) -> None:
    kind, unit = step.opcode.type, alignment_of(step)
    size, guard = writer.read(step.operands[1], kind), writer.guard(step)
    start = writer.temporary("uint64_t", f"(s->stack[t] + {unit - 1}) / {unit} * {unit}")
    taken = f"((uint64_t)({size}) < (1ull << 40) ? (uint64_t)({size}) : 1ull << 40)"
    end = writer.temporary("uint64_t", f"{start} + {taken}")
    writer.do(
        f"{f'if ({guard}) ' if guard else ''}"
        f"{{ if ({end} > STACK_END) s->err |= 1; s->stack[t] = {end}; }}"
    )
    writer.write(step.operands[0], f"({c_type(kind)}){start}", kind, guard)


def _stacksave(writer: SegmentWriter, step: Step) -> None:
    kind = step.opcode.type
    writer.write(step.operands[0], f"({c_type(kind)})s->stack[t]", kind, writer.guard(step))


def _stackrestore(writer: SegmentWriter, step: Step) -> None:
    value, guard = writer.read(step.operands[0], step.opcode.type), writer.guard(step)
    writer.do(f"{f'if ({guard}) ' if guard else ''}s->stack[t] = {value};")


def _system_call(writer: SegmentWriter, step: Step) -> None:
    """Leave a launch that prints, or whose assertion fails, to numpy."""
    writer.do(f"if ({writer.guard(step) or '1'}) s->err |= 2;")


def _nothing(writer: SegmentWriter, step: Step) -> None:
    """Write nothing, since the step changes no value in this back end."""


_STEPS: dict[str, StepWriter] = {
    "setp": _setp, "set": _set, "mov": _mov, "cvta": _cvta, "isspacep": _isspacep,
    "ld": _load, "ldu": _load, "st": _store, "atom": _atomic, "red": _atomic, "cp": _copy,
    "add": _carry, "sub": _carry, "addc": _carry, "subc": _carry, "mad": _carry, "madc": _carry,
    "prefetch": _nothing, "prefetchu": _nothing, "applypriority": _nothing,
    "nanosleep": _nothing, "pmevent": _nothing, "membar": _nothing, "fence": _nothing,
    "mbarrier": write_object, "griddepcontrol": _nothing, "setmaxnreg": _nothing,
    "discard": _nothing, "call": _system_call,
    "alloca": _alloca, "stacksave": _stacksave, "stackrestore": _stackrestore, UNDEFINED: _watched,
}  # fmt: skip
