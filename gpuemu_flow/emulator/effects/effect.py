"""The type `Effect`: how a family of instructions is checked and compiled to Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from gpuemu_flow.emulator.ir import Step

if TYPE_CHECKING:
    from gpuemu_flow.emulator.emitter import Emitter

    Emit = Callable[["Emitter", Step, int], None]
else:
    Emit = Callable[..., Any]


class Effect(Struct, frozen=True):
    """The functions that check and compile one family of instructions."""

    problem: Callable[[Step], str]
    emit: Emit
    section: str
