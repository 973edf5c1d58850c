"""Find the function that computes a lane-wise opcode.

Other opcodes (memory, warp operations, barriers, matrices) are in `effects`.
"""

from __future__ import annotations

from functools import cache

from gpuemu_flow.artifacts.ptx import Opcode
from gpuemu_flow.emulator import forms_arithmetic, forms_bits, forms_convert
from gpuemu_flow.emulator.registry import BUILDERS, ROUNDINGS, OpcodeForm

FAMILIES = (forms_arithmetic, forms_bits, forms_convert)
"""Modules that register forms when they are imported."""


def find_form(opcode: Opcode) -> OpcodeForm | None:
    """Return the `OpcodeForm` of a lane-wise opcode: its function and the types of its operands.

    Returns
    -------
    OpcodeForm or None
        None for an opcode that is not lane-wise, or that the emulator does not know.
    """
    return _find(opcode.text)


def lane_wise_bases() -> tuple[str, ...]:
    """List the base names of the lane-wise opcodes."""
    return tuple(sorted(BUILDERS))


_ROUNDED = frozenset(ROUNDINGS)
_APPROXIMATE = frozenset({"approx", "ftz"})
MODIFIERS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("rsqrt", "sin", "cos", "lg2", "ex2", "tanh"), _APPROXIMATE),
    **dict.fromkeys(("rcp", "sqrt"), _ROUNDED | _APPROXIMATE),
    **dict.fromkeys(("min", "max"), frozenset({"ftz", "NaN", "relu"})),
    **dict.fromkeys(("neg", "abs", "slct"), frozenset({"ftz"})),
    **dict.fromkeys(("bmsk", "szext"), frozenset({"wrap", "clamp"})),
    "div": _ROUNDED | _APPROXIMATE | {"full"},
    "shf": frozenset({"l", "r", "wrap", "clamp"}),
    "dp2a": frozenset({"lo", "hi"}),
    "bfind": frozenset({"shiftamt"}),
    **dict.fromkeys(("vabsdiff2", "vabsdiff4"), frozenset({"add"})),
    **dict.fromkeys(
        ("fns", "rem", "sad", "copysign", "popc", "clz", "brev", "bfe", "bfi", "shl", "shr", "lop3",
         "dp4a", "selp"),
        frozenset(),
    ),
}  # fmt: skip
"""Words besides types that an instruction may have. The builder of an instruction that is not
listed here checks the words itself."""


@cache
def _find(text: str) -> OpcodeForm | None:
    opcode = Opcode(text)
    builder = BUILDERS.get(opcode.base)
    if builder is None:
        return None
    allowed = MODIFIERS.get(opcode.base)
    if allowed is not None and not set(opcode.qualifiers) <= allowed:
        return None
    return builder(opcode, opcode.type, frozenset(opcode.segments[1:]))
