"""Instructions on tensor maps: bulk tensor copies, reductions and prefetches, and tensormap.*."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuemu_flow.emulator.effects.checking import (
    UNKNOWN_FORM,
    address_problem,
    constant_of,
    operand_problem,
    tensor_problem,
)
from gpuemu_flow.emulator.effects.effect import Effect
from gpuemu_flow.emulator.ir import MemoryOperand, Operand, Step, TensorPlace
from gpuemu_flow.emulator.tensor_maps import FIELDS, MAP_BYTES

if TYPE_CHECKING:
    from gpuemu_flow.emulator.emitter import Emitter

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
    """Tell whether a tensor copy writes to shared memory."""
    return not isinstance(step.operands[0], TensorPlace)


def operation_of(step: Step) -> str:
    """Return the operation by which a tensor copy reduces; empty for a plain copy."""
    return next((w for w in step.opcode.segments if w in REDUCTIONS), "")


def tensor_copy_problem(step: Step) -> str:
    """Return the reason why a tensor copy or reduction cannot be run, or an empty string."""
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
    """Write the code of a tensor copy or reduction."""
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
    """Return the reason why a prefetch of a tensor or of bytes cannot be run; empty if it can."""
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
    """Write the code of a prefetch.

    For a tensor, the code checks the tensor map. A prefetch of bytes needs no code.
    """
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


EFFECTS = {
    "tensormap": Effect(_map_problem, _emit_map, "tensormap.replace, tensormap.cp_fenceproxy"),
}
