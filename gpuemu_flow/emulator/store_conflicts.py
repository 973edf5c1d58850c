"""Stores of several threads to one address in one instruction: the final value is undefined."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from gpuemu_flow.emulator.findings import show_index
from gpuemu_flow.emulator.registry import ActiveLanes
from gpuemu_flow.emulator.state import State
from gpuemu_flow.emulator.types import WARP, Array


class _Pair(Struct):
    """Arrays that describe pairs of lanes which wrote different values to the same address."""

    places: Array
    first: Array
    second: Array


def may_conflict(offsets: Array) -> bool:
    """Tell whether two active lanes may have stored to the same address."""
    return offsets.size > 1 and not bool((offsets[1:] > offsets[:-1]).all())


def report_conflicts(
    state: State,
    lanes: ActiveLanes,
    values: Sequence[Array],
    lost: Array,
    step: int,
    *,
    strong: bool,
    within_blocks: bool,
    describe: Callable[[int], str],
) -> None:
    """Report threads that stored different values to the same address in one instruction. Stores by
    lanes of one warp are reported as a separate kind of race, ``same-instruction``. Stores by
    different warps are not ordered either, and are reported as ``write-after-write``."""
    if not lost.any():
        return
    numbers = np.arange(lost.size) if lanes.mask is None else np.flatnonzero(lanes.mask)
    chosen = np.isin(lanes.offsets, lanes.offsets[lost])
    places = lanes.offsets[chosen].astype(np.int64)
    within, across = _pairs(places, numbers[chosen], [value[chosen] for value in values])
    _report(state, within, step, "same-instruction", describe)
    if strong:
        return
    if within_blocks:
        alike = across.first // state.width == across.second // state.width
        across = _Pair(across.places[alike], across.first[alike], across.second[alike])
    _report(state, across, step, "write-after-write", describe)


def _pairs(places: Array, lanes: Array, values: Sequence[Array]) -> tuple[_Pair, _Pair]:
    """Return the pairs of lanes that wrote different values to one address. The first result has
    pairs within a warp, the second has pairs across warps. An address with a conflict within a warp
    is not examined for conflicts across warps."""
    order = np.argsort(places, kind="stable")
    places, lanes = places[order], lanes[order]
    joined = places[1:] == places[:-1]
    differs = np.zeros(joined.size, bool)
    for value in values:
        row = value[order]
        differs |= row[1:] != row[:-1]
    together = lanes[1:] // WARP == lanes[:-1] // WARP
    group = np.cumsum(~joined)
    within = joined & differs & together
    across = joined & differs & ~together & ~np.isin(group, group[within])
    one, two = (_Pair(places[1:][k], lanes[:-1][k], lanes[1:][k]) for k in (within, across))
    return one, two


def _report(
    state: State, pair: _Pair, step: int, rule: str, describe: Callable[[int], str]
) -> None:
    if not pair.second.size:
        return
    at, first, second = int(pair.places[0]), int(pair.first[0]), int(pair.second[0])
    other = show_index(state.thread_index(first % state.width))
    whose = "of its warp" if rule == "same-instruction" else "of another warp"
    if first // state.width != second // state.width:
        whose = f"(block {show_index(state.block_index(first // state.width))})"
    state.report_lanes(
        "race", rule, pair.second, step,
        lambda _: f"writes {describe(at)} by {state.who(second)} and, in the same instruction, "
        f"another value by thread {other} {whose}: which of them stays is undefined",
    )  # fmt: skip
