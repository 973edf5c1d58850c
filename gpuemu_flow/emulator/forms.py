"""Finding what a lane-wise opcode does.

What is not lane-wise (memory, warp operations, barriers, matrices) stands in `effects`.
"""

from __future__ import annotations

from functools import cache

from gpuemu_flow.artifacts.ptx import Opcode
from gpuemu_flow.emulator import forms_arithmetic, forms_bits, forms_convert
from gpuemu_flow.emulator.registry import BUILDERS, Form

FAMILIES = (forms_arithmetic, forms_bits, forms_convert)
"""Modules that register forms when they are imported."""


def find_form(opcode: Opcode) -> Form | None:
    """Find what a lane-wise opcode does.

    Returns
    -------
    Form or None
        None for an opcode that is not lane-wise, or not known.
    """
    return _find(opcode.text)


def lane_wise_bases() -> tuple[str, ...]:
    """List the base names that have lane-wise forms."""
    return tuple(sorted(BUILDERS))


@cache
def _find(text: str) -> Form | None:
    opcode = Opcode(text)
    builder = BUILDERS.get(opcode.base)
    if builder is None:
        return None
    return builder(opcode, opcode.type, frozenset(opcode.segments[1:]))
