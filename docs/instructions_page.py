"""Makes the table of instructions in ``docs/emulator.md`` from the emulator's registry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gpuemu_flow.emulator.effects import effect_sections, matrices
from gpuemu_flow.emulator.effects import matrices as wgmma
from gpuemu_flow.emulator.effects import matrices as wmma
from gpuemu_flow.emulator.effects.warps import OPERATIONS
from gpuemu_flow.emulator.forms import find_form, lane_wise_bases
from gpuemu_flow.emulator.matrices import SPARSE_SHAPES
from gpuemu_flow.emulator.types import DTYPES
from gpuemu_flow.lint.ptx.model import Opcode

_WORDS = (
    "", "rn", "lo", "wide", "approx", "hi", "wrap", "clamp", "l.wrap", "r.clamp", "finite", "full",
    "sat",
)  # fmt: skip
"""Words before the type, of which each instruction has one when it needs any."""

_MODES = ("rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "rna")
_FLAGS = ("ftz", "sat", "NaN", "relu", "satfinite")


class Row(NamedTuple):
    """One line of the table: an instruction, its types and modifiers, its section of the ISA."""

    name: str
    types: str
    modifiers: str
    section: str


def instruction_rows() -> list[Row]:
    """List the supported instructions, by name."""
    rows = [_lane_wise(base) for base in lane_wise_bases()]
    known = {row.name for row in rows}
    for name, section in effect_sections().items():
        if name not in known:
            shown = name.removeprefix("call.")
            rows.append(Row(shown, _DETAILS.get(name, ""), "", section))
    rows += [Row(name, "", "", name) for name in ("bra", "brx.idx", "call", "ret", "exit", "trap")]
    return sorted(rows, key=lambda row: row.name)


def instruction_table() -> str:
    """Write the table as Markdown."""
    lines = ["| Instruction | Types | Modifiers | Section of the PTX ISA |", "|---|---|---|---|"]
    for row in instruction_rows():
        types, modifiers = (f"`{text}`" if text else "" for text in (row.types, row.modifiers))
        lines.append(f"| `{row.name}` | {types} | {modifiers} | {row.section} |")
    return "\n".join(lines)


def _lane_wise(base: str) -> Row:
    if base == "cvt":
        return _conversions()
    found: dict[str, None] = {}
    flags: dict[str, None] = {}
    section = base
    for word in _WORDS:
        for kind in DTYPES:
            parts = (base, word, kind, kind) if base in ("dp4a", "dp2a") else (base, word, kind)
            text = ".".join(part for part in parts if part)
            form = find_form(Opcode(f"{text}.s32" if base == "slct" else text))
            if form is None:
                continue
            found[kind], section = None, form.section
            for flag in (*_MODES, *_FLAGS):
                if flag != word and find_form(Opcode(f"{base}.{flag}.{kind}")) is not None:
                    flags[flag] = None
            flags.update(dict.fromkeys(word.split(".") if word not in ("finite", "rn", "") else ()))
    return Row(base, " ".join(found), " ".join(_in_order(flags)), section)


def _in_order(flags: Iterable[str]) -> list[str]:
    given = list(flags)
    return [f for f in (*_MODES, *_FLAGS) if f in given] + [
        f for f in given if f not in (*_MODES, *_FLAGS)
    ]


def _conversions() -> Row:
    found: dict[str, None] = {}
    flags: dict[str, None] = {}
    for to in DTYPES:
        for source in DTYPES:
            for mode in ("", *_MODES, "rn.satfinite"):
                dot = f".{mode}" if mode else ""
                if find_form(Opcode(f"cvt{dot}.{to}.{source}")) is None:
                    continue
                found[to] = found[source] = None
                flags.update(dict.fromkeys(mode.split(".") if mode else ()))
                for flag in _FLAGS:
                    if find_form(Opcode(f"cvt{dot}.{flag}.{to}.{source}")) is not None:
                        flags[flag] = None
    kinds = [kind for kind in DTYPES if kind in found]
    return Row("cvt", " ".join(kinds), " ".join(_in_order(flags)), "cvt")


def _shapes(table: dict[str, frozenset[tuple[int, int, int]]]) -> str:
    return "; ".join(
        f"{kind}: " + " ".join("m{}n{}k{}".format(*shape) for shape in sorted(shapes))
        for kind, shapes in table.items()
    )


_DETAILS: dict[str, str] = {
    "mma": f"{_shapes(matrices.SHAPES)}; sparse: {_shapes(SPARSE_SHAPES)}",
    "wmma": _shapes(wmma.SHAPES),
    "wgmma": "; ".join(f"{kind}: m64nNk{k}" for kind, k in wgmma.DEPTHS.items()),
    "atom": " ".join(OPERATIONS),
    "red": " ".join(OPERATIONS),
}
