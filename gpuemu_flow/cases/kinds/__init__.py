"""Kinds of inputs: functions that make values of each kind, and restore them after changes."""

from gpuemu_flow.cases.kinds.numbers import NUMBERS, ORDER
from gpuemu_flow.cases.kinds.ragged import RAGGED
from gpuemu_flow.cases.kinds.rows import MATRICES, ROWS
from gpuemu_flow.cases.kinds.setting import Kind, Setting

__all__ = ["KINDS", "Kind", "Setting"]

KINDS: dict[str, Kind] = {**ORDER, **RAGGED, **ROWS, **NUMBERS, **MATRICES}
"""By name; `model.types.PATTERNS` lists the strategies of each."""
