"""Asynchronous copies of many bytes (cp.async.bulk), and arrivals at barriers after copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuemu_flow.emulator.bulk import reduction
from gpuemu_flow.emulator.effects.checking import (
    UNKNOWN_FORM,
    address_problem,
    constant_of,
    items_of,
    operand_problem,
)
from gpuemu_flow.emulator.effects.tensors import (
    REDUCTIONS,
    emit_prefetch,
    emit_tensor_copy,
    prefetch_problem,
    tensor_copy_problem,
)
from gpuemu_flow.emulator.ir import MemoryOperand, Step
from gpuemu_flow.emulator.types import SIZES

if TYPE_CHECKING:
    from gpuemu_flow.emulator.emitter import Emitter


_WORDS = frozenset(
    {"shared::cluster", "shared::cta", "global", "mbarrier::complete_tx::bytes", "bulk_group",
     "L2::cache_hint", "multicast::cluster"}
)  # fmt: skip


_DIRECTIONS = frozenset({("shared", "global"), ("global", "shared"), ("shared", "shared")})


def _directions(step: Step) -> tuple[str, str]:
    """Return the destination space and the source space of a copy; both empty if unknown."""
    spaces = [w.partition("::")[0] for w in step.opcode.segments]
    found = [s for s in spaces if s in ("shared", "global")]
    return (found[0], found[1]) if len(found) == 2 else ("", "")


def arrival_problem(step: Step) -> str:
    """Return the reason why ``cp.async.mbarrier.arrive`` cannot be run, or an empty string."""
    words = step.opcode.segments[3:]
    known = {"arrive", "noinc", "shared", "shared::cta", "b64"}
    if words[:1] != ("arrive",) or not set(words) <= known or len(step.operands) != 1:
        return UNKNOWN_FORM
    return address_problem(step.operands[0])


def emit_arrival(emitter: Emitter, step: Step, index: int) -> None:
    """Write the code of a ``cp.async.mbarrier.arrive``."""
    (address,) = step.operands
    assert isinstance(address, MemoryOperand)
    increment = "noinc" not in step.opcode.segments
    emitter.do(
        f"m.arrive_with_copies({step.opcode.space or 'generic'!r}, {emitter.address(address)}, "
        f"{increment}, {emitter.mask(step)}, {index})"
    )


def _reduction(step: Step) -> tuple[str, str]:
    """Return the operation and the type of a reducing copy; both empty for a plain copy."""
    if step.opcode.segments[1] != "reduce":
        return "", ""
    return next((w for w in step.opcode.segments if w in REDUCTIONS), ""), step.opcode.type


def bulk_problem(step: Step) -> str:
    """Return the reason why a ``cp.async.bulk`` instruction cannot be run, or an empty string."""
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
    """Write the code of a bulk copy or reduction, or of a group's commit or wait."""
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
    """Tell whether a store or reduction is ``st.async`` or ``red.async``."""
    return step.opcode.segments[1:2] == ("async",)


def store_problem(step: Step) -> str:
    """Return the reason why ``st.async`` or ``red.async`` cannot be run, or an empty string."""
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
    """Write the code of an ``st.async`` or ``red.async``."""
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
