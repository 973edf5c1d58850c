"""Asynchronous copies: cp.async and its groups."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuemu_flow.emulator.bulk import reduction
from gpuemu_flow.emulator.effects.checking import (
    UNKNOWN_FORM,
    Effect,
    address_problem,
    constant_of,
    items_of,
    operand_problem,
    tensor_problem,
)
from gpuemu_flow.emulator.ir import Inverted, MemoryOperand, Operand, Register, Step, TensorPlace
from gpuemu_flow.emulator.tensor_maps import FIELDS, MAP_BYTES
from gpuemu_flow.emulator.types import SIZES

if TYPE_CHECKING:
    from gpuemu_flow.emulator.emitter import Emitter


_HINTS = frozenset({"L2::64B", "L2::128B", "L2::256B"})


def _is_predicate(operand: Operand) -> bool:
    return isinstance(operand, Inverted) or (
        isinstance(operand, Register) and operand.type == "pred"
    )


def _problem(step: Step) -> str:
    words = step.opcode.segments[1:]
    if words[:3] == ("reduce", "async", "bulk"):
        return bulk_problem(step)
    if not words or words[0] != "async":
        return UNKNOWN_FORM
    rest = words[1:]
    if rest[:1] == ("bulk",):
        return bulk_problem(step)
    if rest[:1] == ("mbarrier",):
        return arrival_problem(step)
    if rest in (("commit_group",), ("wait_all",)):
        return "" if not step.operands else UNKNOWN_FORM
    if rest == ("wait_group",):
        count = constant_of(step.operands[0]) if len(step.operands) == 1 else None
        good = count is not None and count >= 0
        return "" if good else UNKNOWN_FORM
    if rest[:1] not in (("ca",), ("cg",)) or "shared" not in {w.split("::")[0] for w in rest}:
        return UNKNOWN_FORM
    if not {w for w in rest[1:] if w.partition("::")[0] not in ("shared", "global")} <= _HINTS:
        return UNKNOWN_FORM
    operands = step.operands
    if not 3 <= len(operands) <= 4 or constant_of(operands[2]) not in (4, 8, 16):
        return UNKNOWN_FORM
    problem = address_problem(operands[0]) or address_problem(operands[1])
    if len(operands) == 4:
        kind = "pred" if _is_predicate(operands[3]) else "u32"
        problem = problem or operand_problem(operands[3], kind)
    return problem


def _emit(emitter: Emitter, step: Step, index: int) -> None:
    rest = step.opcode.segments[2:]
    if rest[0] == "mbarrier":
        emit_arrival(emitter, step, index)
        return
    if "bulk" in rest:
        emit_bulk(emitter, step, index)
        return
    mask = emitter.mask(step)
    if rest == ("commit_group",):
        emitter.do(f"m.commit_copies({mask})")
        return
    if rest == ("wait_all",):
        emitter.do(f"m.wait_copies(0, {mask}, everything=True)")
        return
    operands = step.operands
    if rest == ("wait_group",):
        emitter.do(f"m.wait_copies({constant_of(operands[0])}, {mask}, everything=False)")
        return
    target, source = operands[0], operands[1]
    assert isinstance(target, MemoryOperand) and isinstance(source, MemoryOperand)
    size = constant_of(operands[2])
    taken = "None"
    if len(operands) == 4 and _is_predicate(operands[3]):
        ignored = emitter.read(operands[3], "pred")
        full = emitter.immediate_number(size or 0, "u32")
        none = emitter.immediate_number(0, "u32")
        taken = f"where({ignored}, {none}, {full})"
    elif len(operands) == 4:
        taken = emitter.read(operands[3], "u32")
    where, origin = emitter.address(target), emitter.address(source)
    emitter.do(f"m.start_copy({where}, {origin}, {size}, {taken}, {mask}, {index})")


EFFECTS: dict[str, Effect] = {
    "cp": Effect(
        _problem, _emit, "cp.async, cp.async.bulk, cp.async.bulk.tensor, cp.reduce.async.bulk"
    )
}


# Asynchronous copies of many bytes (cp.async.bulk), and arrivals at barriers after copies.


_WORDS = frozenset(
    {"shared::cluster", "shared::cta", "global", "mbarrier::complete_tx::bytes", "bulk_group",
     "L2::cache_hint", "multicast::cluster"}
)  # fmt: skip


_DIRECTIONS = frozenset({("shared", "global"), ("global", "shared"), ("shared", "shared")})


def _directions(step: Step) -> tuple[str, str]:
    spaces = [w.partition("::")[0] for w in step.opcode.segments]
    found = [s for s in spaces if s in ("shared", "global")]
    return (found[0], found[1]) if len(found) == 2 else ("", "")


def arrival_problem(step: Step) -> str:
    words = step.opcode.segments[3:]
    known = {"arrive", "noinc", "shared", "shared::cta", "b64"}
    if words[:1] != ("arrive",) or not set(words) <= known or len(step.operands) != 1:
        return UNKNOWN_FORM
    return address_problem(step.operands[0])


def emit_arrival(emitter: Emitter, step: Step, index: int) -> None:
    (address,) = step.operands
    assert isinstance(address, MemoryOperand)
    increment = "noinc" not in step.opcode.segments
    emitter.do(
        f"m.arrive_with_copies({step.opcode.space or 'generic'!r}, {emitter.address(address)}, "
        f"{increment}, {emitter.mask(step)}, {index})"
    )


def _reduction(step: Step) -> tuple[str, str]:
    if step.opcode.segments[1] != "reduce":
        return "", ""
    return next((w for w in step.opcode.segments if w in REDUCTIONS), ""), step.opcode.type


def bulk_problem(step: Step) -> str:
    reduces = step.opcode.segments[1] == "reduce"
    words, operands = step.opcode.segments[3 + reduces :], step.operands
    if words == ("commit_group",):
        return "" if not operands else UNKNOWN_FORM
    if words[:1] == ("wait_group",):
        count = constant_of(operands[0]) if len(operands) == 1 else None
        good = count is not None and count >= 0
        return "" if good and set(words) <= {"wait_group", "read"} else UNKNOWN_FORM
    if words[:1] == ("tensor",):
        return tensor_copy_problem(step)
    if words[:1] == ("prefetch",) and not reduces:
        return prefetch_problem(step)
    if "L2::cache_hint" in words and operands:
        problem = operand_problem(operands[-1], "b64")
        if problem:
            return problem
        operands = operands[:-1]
    if reduces:
        operation, kind = _reduction(step)
        if reduction(operation, kind) is None:
            return "this reduction by bulk copies is not supported"
        words = tuple(w for w in words if w not in (operation, kind, "noftz"))
    to, source = _directions(step)
    into_shared = to == "shared"
    known = (to, source) in _DIRECTIONS and not (reduces and source == "global")
    if (
        reduces
        and into_shared
        and (step.opcode.type[:1] not in "us" or "noftz" in step.opcode.text)
    ):
        return "reductions into shared memory are of integers only"
    if not set(words) <= _WORDS or not known:
        return "this direction or qualifier of a bulk copy is not supported"
    if "multicast::cluster" in words:
        if source != "global" or not into_shared or len(operands) != 5:
            return UNKNOWN_FORM
        problem = operand_problem(operands[4], "b16")
        if problem:
            return problem
        operands = operands[:4]
    if len(operands) != (4 if into_shared else 3):
        return "masks of bulk copies are not supported"
    problem = address_problem(operands[0]) or address_problem(operands[1])
    problem = problem or operand_problem(operands[2], "u32")
    return problem or (address_problem(operands[3]) if into_shared else "")


def emit_bulk(emitter: Emitter, step: Step, index: int) -> None:
    reduces = step.opcode.segments[1] == "reduce"
    words, operands = step.opcode.segments[3 + reduces :], step.operands
    if words[0] in ("tensor", "prefetch"):
        (emit_tensor_copy if words[0] == "tensor" else emit_prefetch)(emitter, step, index)
        return
    mask = emitter.mask(step)
    if words == ("commit_group",):
        emitter.do(f"m.commit_bulk({mask})")
        return
    if words[0] == "wait_group":
        emitter.do(f"m.wait_bulk({constant_of(operands[0])}, {mask})")
        return
    to, source = _directions(step)
    first, second = operands[0], operands[1]
    assert isinstance(first, MemoryOperand) and isinstance(second, MemoryOperand)
    near, far = (first, second) if to == "shared" else (second, first)
    barrier, blocks = "None", "None"
    if to == "shared":
        there = operands[3]
        assert isinstance(there, MemoryOperand)
        barrier = emitter.address(there)
    if "multicast::cluster" in words:
        blocks = emitter.read(operands[4], "b16")
    size, combine = emitter.read(operands[2], "u32"), "None"
    if reduces:
        form = reduction(*_reduction(step))
        combine = emitter.function(form, f"bulk {form}")
    addresses = f"{emitter.address(near)}, {emitter.address(far)}, {size}, {barrier}"
    if source == to:
        emitter.do(f"m.start_inner({addresses}, {combine}, {mask}, {index})")
    else:
        emitter.do(
            f"m.start_bulk({addresses}, {to == 'shared'}, {combine}, {blocks}, {mask}, {index})"
        )


# Stores and reductions that arrive later in a cluster's shared memory: st.async, red.async.


_ARRIVES = "mbarrier::complete_tx::bytes"
_WORDS_STORES_ASYNC = frozenset(
    {"async", "weak", "relaxed", "cluster", "shared::cluster", "v2", "v4", _ARRIVES}
)


def is_asynchronous(step: Step) -> bool:
    return step.opcode.segments[1:2] == ("async",)


def store_problem(step: Step) -> str:
    opcode, operands = step.opcode, step.operands
    words = set(opcode.segments[1:]) - {opcode.type}
    operation = words & REDUCTIONS
    if not words - operation <= _WORDS_STORES_ASYNC or not {"shared::cluster", _ARRIVES} <= words:
        return UNKNOWN_FORM
    if len(operation) != (opcode.base == "red") or SIZES.get(opcode.type) not in (4, 8):
        return UNKNOWN_FORM
    if operation and reduction(next(iter(operation)), opcode.type) is None:
        return UNKNOWN_FORM
    if len(operands) != 3 or len(items_of(operands[1])) != opcode.vector:
        return f"it has {len(operands)} operands"
    problems = (operand_problem(item, opcode.type) for item in items_of(operands[1]))
    problem = address_problem(operands[0]) or address_problem(operands[2])
    return problem or next((p for p in problems if p), "")


def emit_store(emitter: Emitter, step: Step, index: int) -> None:
    where, given, there = step.operands
    assert isinstance(where, MemoryOperand) and isinstance(there, MemoryOperand)
    kind, combine = step.opcode.type, "None"
    values = "".join(f"{emitter.read(item, kind)}, " for item in items_of(given))
    operation = next((w for w in step.opcode.segments if w in REDUCTIONS), "")
    if operation:
        form = reduction(operation, kind)
        combine = emitter.function(form, f"bulk {form}")
    emitter.do(
        f"m.start_store({emitter.address(where)}, ({values}), {emitter.address(there)}, "
        f"{combine}, {emitter.mask(step)}, {index})"
    )


# Instructions on tensor maps: bulk tensor copies, reductions and prefetches, and tensormap.*.


_DIMENSION = re.compile(r"([1-5])d\Z", re.ASCII)
REDUCTIONS = frozenset({"add", "min", "max", "inc", "dec", "and", "or", "xor"})
_INTO = frozenset(
    {"shared::cluster", "shared::cta", "global", "tile", "mbarrier::complete_tx::bytes",
     "L2::cache_hint", "multicast::cluster"}
)  # fmt: skip
_OUT = frozenset({"shared::cta", "global", "tile", "bulk_group", "L2::cache_hint"})
_NEVER_IM2COL = "only tiled copies are supported: no im2col, no gather, no scatter"


def _dimensions(step: Step) -> int:
    found = (_DIMENSION.match(word) for word in step.opcode.segments)
    return next((int(match.group(1)) for match in found if match), 0)


def is_into_shared(step: Step) -> bool:
    return not isinstance(step.operands[0], TensorPlace)


def operation_of(step: Step) -> str:
    return next((w for w in step.opcode.segments if w in REDUCTIONS), "")


def tensor_copy_problem(step: Step) -> str:
    words, operands, count = set(step.opcode.segments[4:]), list(step.operands), _dimensions(step)
    reduces = step.opcode.segments[1] == "reduce"
    words -= {"tensor", f"{count}d"}
    if words & {"im2col", "im2col_no_offs", "im2col::w", "im2col::w::128", "tile::gather4",
                "tile::scatter4"}:  # fmt: skip
        return _NEVER_IM2COL
    if words & {"cta_group::1", "cta_group::2"}:
        return "copies for a pair of blocks are not supported"
    if "L2::cache_hint" in words and operands:
        problem = operand_problem(operands.pop(), "b64")
        if problem:
            return problem
    if "multicast::cluster" in words and operands:
        problem = operand_problem(operands.pop(), "b16")
        if problem:
            return problem
    if not count or len(operands) < 2:
        return UNKNOWN_FORM
    if is_into_shared(step):
        if reduces or not words <= _INTO or len(operands) != 3:
            return UNKNOWN_FORM
        problem = tensor_problem(operands[1], count)
        return problem or address_problem(operands[0]) or address_problem(operands[2])
    operation = words & REDUCTIONS
    if not words - operation <= _OUT or len(operands) != 2 or len(operation) != reduces:
        return UNKNOWN_FORM
    return tensor_problem(operands[0], count) or address_problem(operands[1])


def _corner(emitter: Emitter, place: Operand) -> tuple[str, str]:
    assert isinstance(place, TensorPlace)
    numbers = "".join(f"{emitter.read(c, 's32')}, " for c in place.coordinates)
    return emitter.address(place.map), f"({numbers})"


def emit_tensor_copy(emitter: Emitter, step: Step, index: int) -> None:
    operands, into = step.operands, is_into_shared(step)
    where, corner = _corner(emitter, operands[1 if into else 0])
    near = operands[0 if into else 1]
    assert isinstance(near, MemoryOperand)
    barrier, blocks = "None", "None"
    if into:
        there = operands[2]
        assert isinstance(there, MemoryOperand)
        barrier = emitter.address(there)
    if "multicast::cluster" in step.opcode.segments:
        blocks = emitter.read(operands[3], "b16")
    emitter.do(
        f"m.start_tensor_copy({where}, {corner}, {emitter.address(near)}, {barrier}, {into}, "
        f"{operation_of(step)!r}, {blocks}, {emitter.mask(step)}, {index})"
    )


def prefetch_problem(step: Step) -> str:
    words, operands = step.opcode.segments[4:], step.operands
    if words[:1] == ("tensor",):
        if len(operands) not in (1, 2) or not set(words[2:]) <= {
            "L2", "global", "tile", "L2::cache_hint"
        }:  # fmt: skip
            return _NEVER_IM2COL
        return tensor_problem(operands[0], _dimensions(step))
    if not set(words) <= {"L2", "global", "L2::cache_hint"} or len(operands) not in (2, 3):
        return UNKNOWN_FORM
    return address_problem(operands[0]) or operand_problem(operands[1], "u32")


def emit_prefetch(emitter: Emitter, step: Step, index: int) -> None:
    """Write the code of a prefetch. For a tensor, the code checks the tensor map. A prefetch of
    bytes needs no code."""
    place = step.operands[0]
    if isinstance(place, TensorPlace):
        where = emitter.address(place.map)
        count = len(place.coordinates)
        emitter.do(f"m.check_tensor_map({where}, {count}, {emitter.mask(step)}, {index})")


def _space(word: str) -> str:
    name = word.partition("::")[0]
    return name if name in ("shared", "global") else "generic"


def _replace_parts(step: Step) -> tuple[str, int, Operand] | None:
    """Return the field, the index and the new value of a ``tensormap.replace``; None if unknown."""
    words, operands = step.opcode.segments, step.operands
    field = words[3] if len(words) > 3 else ""
    if words[2:3] != ("tile",) or field not in FIELDS or not 2 <= len(operands) <= 3:
        return None
    _, width, count = FIELDS[field]
    known = {"tile", field, "global", "shared::cta", "shared", "b1024", "b32", "b64"}
    if not set(words[2:]) <= known or step.opcode.type != ("b64" if width == 8 else "b32"):
        return None
    if (len(operands) == 3) != (count > 1):
        return None
    number = constant_of(operands[1]) if count > 1 else 0
    return None if number is None or not 0 <= number < count else (field, number, operands[-1])


def _map_problem(step: Step) -> str:
    words = step.opcode.segments
    if words[1:2] == ("replace",):
        parts = _replace_parts(step)
        if parts is None:
            return UNKNOWN_FORM
        field, _, value = parts
        if FIELDS[field][1] == 1 and constant_of(value) not in range(256):
            return f"its {field} is no small constant"
        return address_problem(step.operands[0]) or operand_problem(value, step.opcode.type)
    known = {"cp_fenceproxy", "global", "shared::cta", "tensormap::generic", "release", "cta",
             "cluster", "gpu", "sys", "sync", "aligned"}  # fmt: skip
    if words[1:4] != ("cp_fenceproxy", "global", "shared::cta") or not set(words[1:]) <= known:
        return UNKNOWN_FORM
    operands = step.operands
    if len(operands) != 3 or constant_of(operands[2]) != MAP_BYTES:
        return UNKNOWN_FORM
    return address_problem(operands[0]) or address_problem(operands[1])


def _emit_map(emitter: Emitter, step: Step, index: int) -> None:
    address, mask = step.operands[0], emitter.mask(step)
    assert isinstance(address, MemoryOperand)
    where = emitter.address(address)
    if step.opcode.segments[1] == "replace":
        parts = _replace_parts(step)
        assert parts is not None
        field, number, value = parts
        space = _space(next((w for w in step.opcode.segments if _space(w) != "generic"), ""))
        given = emitter.read(value, step.opcode.type)
        emitter.do(
            f"m.replace_field({space!r}, {field!r}, {number}, {where}, {given}, {mask}, {index})"
        )
        return
    source = step.operands[1]
    assert isinstance(source, MemoryOperand)
    emitter.do(f"m.publish_map({emitter.address(source)}, {where}, 'global', {mask}, {index})")


EFFECTS |= {
    "tensormap": Effect(_map_problem, _emit_map, "tensormap.replace, tensormap.cp_fenceproxy"),
}
