"""Families of PTX opcodes, by the kind of work that they do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from gpuemu_flow.lint.ptx.opcode import Opcode

_TENSOR = frozenset({"mma", "wgmma"})
_BRANCHES = frozenset({"bra", "brx", "ret", "exit", "trap"})
_BARRIERS = frozenset(
    {"bar", "barrier", "membar", "fence", "mbarrier", "griddepcontrol", "nanosleep"}
)
_MOVES = frozenset({"mov", "cvt", "cvta", "selp", "prmt", "slct", "mapa", "getctarank"})
_WARP = frozenset({"shfl", "vote", "match", "redux", "activemask", "elect", "movmatrix"})
_TEXTURE = frozenset({"tex", "tld4", "txq", "suld", "sust", "sured", "suq"})
_ATOMICS = frozenset({"atom", "red"})
_TYPE_FAMILIES = {
    "f64": "f64",
    "f32": "f32", "f32x2": "f32", "tf32": "f32",
    "f16": "f16", "f16x2": "f16", "bf16": "f16", "bf16x2": "f16",
    "pred": "predicate",
}  # fmt: skip

FAMILIES = (
    "f32", "f64", "f16", "int", "tensor",
    "ld.global.x1", "ld.global.x2", "ld.global.x4", "ld.global.x8",
    "st.global.x1", "st.global.x2", "st.global.x4", "st.global.x8",
    "shared", "local", "generic", "param", "const", "async copy", "atomics",
    "barriers", "branches", "calls", "cvt/mov", "predicate", "warp", "texture", "other",
)  # fmt: skip
"""All families, in the order in which they are shown."""


@lru_cache(maxsize=4096)
def family_of_text(text: str) -> str:
    """Return the family of an opcode that is given as text, one of `FAMILIES`."""
    return family_of(Opcode(text))


def family_of(opcode: Opcode) -> str:
    """Return the family of one opcode, one of `FAMILIES`."""
    base = opcode.base
    member = opcode.segments[1] if len(opcode.segments) > 1 else ""
    if base in _TENSOR or (base in ("wmma", "tcgen05") and member == "mma"):
        return "tensor"
    if base in _ATOMICS or (base == "multimem" and member in ("red", "ld_reduce")):
        return "atomics"
    if base in ("ld", "ldu", "st") or (base == "wmma" and member in ("load", "store")):
        return _memory_family(opcode)
    simple = _SIMPLE.get(base)
    if simple is not None:
        return simple
    kind = opcode.types[0] if base in ("setp", "set") and opcode.types else opcode.type
    if not kind:
        return "other"
    return _TYPE_FAMILIES.get(kind, "int")


def _memory_family(opcode: Opcode) -> str:
    space = opcode.space
    if space == "global" and opcode.base in ("ld", "ldu", "st"):
        direction = "st" if opcode.base == "st" else "ld"
        return f"{direction}.global.x{opcode.vector}"
    return space if space in ("shared", "local", "param", "const") else "generic"


def _simple_families() -> dict[str, str]:
    groups = {
        "branches": _BRANCHES,
        "barriers": _BARRIERS,
        "cvt/mov": _MOVES,
        "warp": _WARP,
        "texture": _TEXTURE,
        "calls": ("call",),
        "async copy": ("cp",),
        "shared": ("ldmatrix", "stmatrix"),
        "tensor": (),
        "other": ("tcgen05", "setmaxnreg", "tensormap", "prefetch", "prefetchu", "discard"),
    }
    return {base: family for family, bases in groups.items() for base in bases}


_SIMPLE = _simple_families()


def count_families(opcodes: Mapping[str, int]) -> dict[str, int]:
    """Count instructions by family, from a histogram of opcode texts; omit empty families.

    Each opcode belongs to exactly one family, so the counts add up to the instruction count.
    """
    return in_order((family_of_text(text), count) for text, count in opcodes.items())


def in_order(counted: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Add up the counts of each family; return the sums in the order of `FAMILIES`."""
    counts: dict[str, int] = {}
    for family, count in counted:
        counts[family] = counts.get(family, 0) + count
    return {family: counts[family] for family in FAMILIES if family in counts}


_MEMBERS: dict[str, str] = {
    "f32": "FADD FADD2 FCHK FFMA FFMA2 FMNMX FMNMX3 FMUL FMUL2 FSEL FSET FSETP FSWZADD MUFU RRO",
    "f64": "DADD DFMA DMNMX DMUL DSET DSETP",
    "f16": "HADD2 HFMA2 HMNMX2 HMUL2 HSET2 HSETP2 HADD HFMA HMUL",
    "int": "BFE BFI BMSK BREV FLO IABS IADD IADD3 IDP IDP4A IMAD IMNMX IMUL ISAD ISCADD ISETP LEA "
    "LOP LOP3 LOP32I POPC SGXT SHF SHL SHR VABSDIFF VABSDIFF4 VIADD VIADDMNMX VIMNMX VIMNMX3 "
    "VHMNMX",
    "shared": "LDS LDSM STS STSM STAS",
    "local": "LDL STL",
    "generic": "LD ST",
    "const": "LDC LDCU",
    "async copy": "LDGSTS LDGDEPBAR UBLKCP UBLKPF UBLKRED UTMALDG UTMASTG UTMAPF UTMAREDG "
    "UTMACCTL UTMACMDFLUSH",
    "atomics": "ATOM ATOMG ATOMS RED REDG REDAS",
    "barriers": "ARRIVES BAR B2R R2B CCTL DEPBAR ERRBAR FENCE MEMBAR NANOSLEEP SYNCS UCGABAR_ARV "
    "UCGABAR_WAIT WARPSYNC ACQBULK ACQSHMINIT CGAERRBAR PREEXIT USETMAXREG",
    "branches": "BMOV BPT BRA BREAK BRX BRXU BSSY BSYNC EXIT JMP JMPU JMX JMXU KILL PBK "
    "PCNT PRET RET RPCMOV RTT SSY SYNC WARPEXIT YIELD ENDCOLLECTIVE PMTRIG",
    "calls": "CALL JCAL LEPC",
    "cvt/mov": "CS2R F2F F2FP F2I F2IP FRND I2F I2FP I2I I2IP MOV MOV32I MOVM PRMT R2UR S2R S2UR "
    "SEL R2P P2R IDE GETLMEMBASE SETLMEMBASE",
    "predicate": "PLOP3 PSET PSETP",
    "warp": "MATCH REDUX SHFL VOTE CREDUX ELECT",
    "texture": "SUATOM SULD SURED SUST TEX TLD TLD4 TMML TXA TXD TXQ",
}
_FAMILY = {opcode: family for family, words in _MEMBERS.items() for opcode in words.split()}
_WIDTHS = {"64": "x2", "128": "x4", "256": "x8"}


@lru_cache(maxsize=4096)
def sass_family(opcode: str) -> str:
    """Return the family of a machine opcode, one of `families.FAMILIES`."""
    base, *modifiers = opcode.split(".")
    if base.endswith("MMA"):  # HMMA, IMMA, HGMMA, UTCHMMA; HFMA2.MMA is packed arithmetic
        return "tensor"
    if base in ("LDG", "STG"):
        width = next((_WIDTHS[word] for word in modifiers if word in _WIDTHS), "x1")
        return f"{'ld' if base == 'LDG' else 'st'}.global.{width}"
    if base == "IMAD" and modifiers[:1] == ["MOV"]:  # a move on the other pipeline
        return "cvt/mov"
    found = _FAMILY.get(base)
    if found is None and base.startswith("U"):
        found = _FAMILY.get(base[1:])
    return found or "other"


def count_sass_families(opcodes: Mapping[str, int]) -> dict[str, int]:
    """Count machine instructions by family; omit empty families."""
    return in_order((sass_family(opcode), count) for opcode, count in opcodes.items())
