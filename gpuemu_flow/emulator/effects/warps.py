"""Warp operations: shfl, vote, match, redux, activemask, elect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuemu_flow.emulator.effects.checking import (
    UNKNOWN_FORM,
    items_of,
    operand_problem,
    operands_problem,
    result_problem,
)
from gpuemu_flow.emulator.effects.effect import Effect
from gpuemu_flow.emulator.ir import Sink, Step
from gpuemu_flow.emulator.types import DTYPES

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
