"""Lane-wise opcodes as C expressions; numpy runs kernels with any other lane-wise opcode."""

from __future__ import annotations

from gpuemu_flow.emulator.native.lanes_floats import FLOAT_WRITERS, conversion
from gpuemu_flow.emulator.native.lanes_integers import INTEGER_WRITERS, Arguments
from gpuemu_flow.emulator.registry import ROUNDINGS
from gpuemu_flow.lint.ptx import Opcode

_FLOATS = frozenset({"f16", "f32", "f64", "bf16", "f16x2", "bf16x2"})
_ARITHMETIC = frozenset({*ROUNDINGS, "ftz", "sat"})
_FUNCTION = frozenset({*ROUNDINGS, "ftz", "approx"})

_WORDS: dict[str, frozenset[str]] = {
    "add": _ARITHMETIC, "sub": _ARITHMETIC, "mul": _ARITHMETIC | {"lo", "hi", "wide"},
    "fma": _ARITHMETIC | {"relu"}, "mad": _ARITHMETIC | {"lo", "hi", "wide"},
    "mul24": frozenset({"lo", "hi"}), "mad24": frozenset({"lo", "hi"}),
    "div": _ARITHMETIC | {"approx", "full"},
    "min": frozenset({"ftz", "NaN", "relu"}), "max": frozenset({"ftz", "NaN", "relu"}),
    "vabsdiff2": frozenset({"add"}), "vabsdiff4": frozenset({"add"}),
    "neg": frozenset({"ftz"}), "abs": frozenset({"ftz"}),
    "rcp": _FUNCTION, "sqrt": _FUNCTION, "rsqrt": _FUNCTION, "sin": _FUNCTION, "cos": _FUNCTION,
    "lg2": _FUNCTION, "ex2": _FUNCTION, "tanh": _FUNCTION,
    "testp": frozenset(
        {"finite", "infinite", "number", "notanumber", "normal", "subnormal"}
    ),
    "shf": frozenset({"l", "r", "wrap", "clamp"}), "bfind": frozenset({"shiftamt"}),
    "bmsk": frozenset({"wrap", "clamp"}), "szext": frozenset({"wrap", "clamp"}),
    "prmt": frozenset({"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"}),
    "dp2a": frozenset({"lo", "hi"}),
    "cvt": frozenset(
        {*ROUNDINGS, "rni", "rzi", "rmi", "rpi", "rna", "ftz", "sat", "relu", "satfinite"}
    ),
}  # fmt: skip
"""Words that an opcode may have besides its types; numpy runs an opcode with any other word."""


def lane_wise(opcode: Opcode, arguments: Arguments) -> str | None:
    """Write a lane-wise opcode as a C expression."""
    words, kind = frozenset(opcode.segments[1:]), opcode.type
    if not words - set(opcode.types) <= _WORDS.get(opcode.base, frozenset()):
        return None
    if opcode.base == "cvt":
        return conversion(opcode, words, arguments)
    table = FLOAT_WRITERS if kind in _FLOATS else INTEGER_WRITERS
    writer = table.get(opcode.base)
    if writer is None and opcode.base in ("selp", "slct"):
        writer = INTEGER_WRITERS[opcode.base]
    return None if writer is None else writer(opcode, kind, words, arguments)
