"""Warp operations: shfl, vote, match, redux, activemask, elect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuemu_flow.emulator.atomics import AtomicForm, combiner
from gpuemu_flow.emulator.effects.checking import (
    UNKNOWN_FORM,
    Effect,
    address_problem,
    items_of,
    operand_problem,
    operands_problem,
    result_problem,
)
from gpuemu_flow.emulator.effects.copies import emit_store, is_asynchronous, store_problem
from gpuemu_flow.emulator.effects.loads import space_of
from gpuemu_flow.emulator.ir import MemoryOperand, Operand, Sink, Step
from gpuemu_flow.emulator.polling import RELEASES
from gpuemu_flow.emulator.types import DTYPES, SIZES

if TYPE_CHECKING:
    from gpuemu_flow.emulator.emitter import Emitter


def _words(step: Step) -> tuple[str, ...]:
    return step.opcode.segments[1:]


def _results(step: Step, *types: str) -> str:
    """Return the reason why the first operand cannot hold the step's results; empty if it can.

    The arguments after `step` are the types of all results. The operand names one register, which
    gets the first result, or several, such as ``d|p``, which get the first few results in order.
    """
    items = items_of(step.operands[0]) if step.operands else ()
    if not 1 <= len(items) <= len(types):
        return UNKNOWN_FORM
    problems = (result_problem(i, t) for i, t in zip(items, types, strict=False))
    return next((p for p in problems if p), "")


def _sources(step: Step, *types: str) -> str:
    if len(step.operands) != 1 + len(types):
        return f"it has {len(step.operands)} operands, not {1 + len(types)}"
    problems = (operand_problem(o, t) for o, t in zip(step.operands[1:], types, strict=True))
    return next((p for p in problems if p), "")


def _shfl_problem(step: Step) -> str:
    words = _words(step)
    if len(words) != 3 or words[0] != "sync" or words[1] not in ("up", "down", "bfly", "idx"):
        return UNKNOWN_FORM
    return _results(step, "b32", "pred") or _sources(step, "b32", "u32", "u32", "u32")


def _emit_shfl(emitter: Emitter, step: Step, index: int) -> None:
    types = ("b32", "u32", "u32", "u32")
    values = [emitter.read(o, t) for o, t in zip(step.operands[1:], types, strict=True)]
    found = emitter.temporary(
        f"m.shuffle({_words(step)[1]!r}, {', '.join(values)}, {emitter.mask(step)}, {index})"
    )
    _give(emitter, step, found, ("b32", "pred"))


def _give(emitter: Emitter, step: Step, found: str, types: tuple[str, ...]) -> None:
    items = items_of(step.operands[0])
    for k, (item, type_name) in enumerate(zip(items, types, strict=False)):
        if not isinstance(item, Sink):
            emitter.write(item, f"{found}[{k}]", type_name, step)


def _vote_problem(step: Step) -> str:
    mode = vote_mode(step)
    if len(_words(step)) != 3 or "sync" not in _words(step) or not mode:
        return UNKNOWN_FORM
    return operands_problem(step, ("pred", "u32"), "b32" if mode == "ballot" else "pred")


def vote_mode(step: Step) -> str:
    """Return what a vote asks; ptxas accepts ``vote.sync.ballot`` and ``vote.ballot.sync``."""
    return next((w for w in _words(step) if w in ("all", "any", "uni", "ballot")), "")


def _emit_vote(emitter: Emitter, step: Step, index: int) -> None:
    mode = vote_mode(step)
    predicate = emitter.read(step.operands[1], "pred")
    members = emitter.read(step.operands[2], "u32")
    value = f"m.vote({mode!r}, {predicate}, {members}, {emitter.mask(step)}, {index})"
    emitter.write(step.operands[0], value, "b32" if mode == "ballot" else "pred", step)


def _match_problem(step: Step) -> str:
    words = _words(step)
    if len(words) != 3 or words[1] != "sync" or words[0] not in ("any", "all"):
        return UNKNOWN_FORM
    if words[2] not in ("b32", "b64"):
        return UNKNOWN_FORM
    return _results(step, "b32", "pred") or _sources(step, words[2], "u32")


def _emit_match(emitter: Emitter, step: Step, index: int) -> None:
    words = _words(step)
    value = emitter.read(step.operands[1], words[2])
    members = emitter.read(step.operands[2], "u32")
    found = emitter.temporary(
        f"m.match({words[0]!r}, {value}, {members}, {emitter.mask(step)}, {index})"
    )
    _give(emitter, step, found, ("b32", "pred"))


_REDUCTIONS = frozenset({"add", "min", "max", "and", "or", "xor"})


def _redux_problem(step: Step) -> str:
    words = _words(step)
    if len(words) != 3 or words[0] != "sync" or words[1] not in _REDUCTIONS:
        return UNKNOWN_FORM
    if words[2] not in ("u32", "s32", "b32"):
        return UNKNOWN_FORM
    return operands_problem(step, (words[2], "u32"), words[2])


def _emit_redux(emitter: Emitter, step: Step, index: int) -> None:
    words = _words(step)
    value = emitter.read(step.operands[1], words[2])
    members = emitter.read(step.operands[2], "u32")
    found = f"m.reduce({words[1]!r}, {value}, {members}, {emitter.mask(step)}, {index})"
    emitter.write(step.operands[0], found, words[2], step)


def _activemask_problem(step: Step) -> str:
    return operands_problem(step, (), "b32") if step.opcode.type in DTYPES else UNKNOWN_FORM


def _emit_activemask(emitter: Emitter, step: Step, index: int) -> None:
    emitter.write(step.operands[0], f"m.active_mask({emitter.mask(step)})", "b32", step)


def _elect_problem(step: Step) -> str:
    return _results(step, "b32", "pred") or _sources(step, "u32")


def _emit_elect(emitter: Emitter, step: Step, index: int) -> None:
    members = emitter.read(step.operands[1], "u32")
    found = emitter.temporary(f"m.elect({members}, {emitter.mask(step)}, {index})")
    _give(emitter, step, found, ("b32", "pred"))


EFFECTS: dict[str, Effect] = {
    "shfl": Effect(_shfl_problem, _emit_shfl, "shfl.sync"),
    "vote": Effect(_vote_problem, _emit_vote, "vote.sync"),
    "match": Effect(_match_problem, _emit_match, "match.sync"),
    "redux": Effect(_redux_problem, _emit_redux, "redux.sync"),
    "activemask": Effect(_activemask_problem, _emit_activemask, "activemask"),
    "elect": Effect(_elect_problem, _emit_elect, "elect.sync"),
}


# Atomics: atom and red.


OPERATIONS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
_WORDS = frozenset(
    {
        *OPERATIONS, "relaxed", "acquire", "release", "acq_rel", "cta", "cluster", "gpu", "sys",
        "global", "shared", "shared::cta", "shared::cluster", "noftz",
    }
)  # fmt: skip
_IN_VECTORS = frozenset({"f32", "f16", "bf16", "f16x2", "bf16x2"})


def _parts(step: Step) -> tuple[str, str, tuple[Operand, ...]]:
    """Return an atomic's operation and type, and its operands from the address on."""
    opcode = step.opcode
    operation = next((w for w in opcode.segments[1:] if w in OPERATIONS), "")
    operands = step.operands[1:] if opcode.base == "atom" else step.operands
    return operation, opcode.type, operands


def _vector_problem(step: Step) -> str:
    """Return the reason why an atomic on a vector cannot be run, or an empty string.

    An example of such an atomic is ``atom.global.add.v4.f32``.
    """
    operation, type_name, operands = _parts(step)
    count, words = step.opcode.vector, set(step.opcode.segments[1:])
    most = 16 // SIZES.get(type_name, 16)
    if (
        operation != "add"
        or type_name not in _IN_VECTORS
        or words & {"v2", "v4", "v8"} - {f"v{count}"}
        or count > most
        or step.opcode.space not in ("global", "")
    ):
        return UNKNOWN_FORM
    if len(operands) != 2:
        return f"it has {len(step.operands)} operands"
    lists = [operands[1]] if step.opcode.base == "red" else [operands[1], step.operands[0]]
    if any(len(items_of(o)) != count for o in lists):
        return f"its vectors do not have {count} items"
    problems = [address_problem(operands[0])]
    problems += [operand_problem(o, type_name) for o in items_of(operands[1])]
    if step.opcode.base == "atom":
        problems += [result_problem(o, type_name) for o in items_of(step.operands[0])]
    return next((p for p in problems if p), "")


def _emit_vector(emitter: Emitter, step: Step, index: int) -> None:
    operation, type_name, operands = _parts(step)
    address, size = operands[0], SIZES[type_name]
    assert isinstance(address, MemoryOperand)
    form = AtomicForm(operation, type_name, bool(RELEASES.intersection(step.opcode.segments)))
    bound = emitter.function(form, f"atomic {form}")
    where, mask = emitter.temporary(emitter.address(address)), emitter.mask(step)
    given = [emitter.read(item, type_name) for item in items_of(operands[1])]
    emitter.do(f"m.check_vector({where}, {size * len(given)}, {mask}, {index})")
    found = []
    for k, value in enumerate(given):
        added = emitter.constant(np.array([[size * k]], np.uint64), ("added", size * k, 8))
        found.append(
            emitter.temporary(
                f"m.atomic({space_of(step, address)!r}, {bound}, {where} + {added}, ({value},), "
                f"{mask}, {index})"
            )
        )
    if step.opcode.base == "atom":
        for item, value in zip(items_of(step.operands[0]), found, strict=True):
            emitter.write(item, value, type_name, step)


def _problem(step: Step) -> str:
    if is_asynchronous(step):
        return store_problem(step)
    operation, type_name, operands = _parts(step)
    words = set(step.opcode.segments[1:]) - {type_name}
    if step.opcode.vector > 1 and operation and words - {f"v{step.opcode.vector}"} <= _WORDS:
        return _vector_problem(step)
    if not operation or not words <= _WORDS or combiner(operation, type_name) is None:
        return UNKNOWN_FORM
    if len(operands) != (3 if operation == "cas" else 2):
        return f"it has {len(step.operands)} operands"
    problem = address_problem(operands[0])
    if step.opcode.base == "atom":
        problem = problem or result_problem(step.operands[0], type_name)
    problems = (operand_problem(o, type_name) for o in operands[1:])
    return problem or next((p for p in problems if p), "")


def _emit(emitter: Emitter, step: Step, index: int) -> None:
    if is_asynchronous(step):
        emit_store(emitter, step, index)
        return
    if step.opcode.vector > 1:
        _emit_vector(emitter, step, index)
        return
    operation, type_name, operands = _parts(step)
    address = operands[0]
    assert isinstance(address, MemoryOperand)
    values = ", ".join(emitter.read(o, type_name) for o in operands[1:])
    form = AtomicForm(operation, type_name, bool(RELEASES.intersection(step.opcode.segments)))
    call = (
        f"m.atomic({space_of(step, address)!r}, {emitter.function(form, f'atomic {form}')}, "
        f"{emitter.address(address)}, ({values},), {emitter.mask(step)}, {index})"
    )
    if step.opcode.base == "atom":
        emitter.write(step.operands[0], call, type_name, step)
    else:
        emitter.do(call)


EFFECTS |= {
    "atom": Effect(_problem, _emit, "atom"),
    "red": Effect(_problem, _emit, "red"),
}
