"""Families of machine instructions, named as the families of PTX in `families`.

Opcodes are named as in "Instruction Set Reference" of NVIDIA's CUDA Binary Utilities, Turing to
Blackwell. An instruction on uniform registers (``UIADD3``) belongs to the family of the instruction
without the ``U``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from gpuemu_flow.artifacts.families import in_order

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
    """Return the family of a machine opcode, one of `families.FAMILIES`.

    Parameters
    ----------
    opcode : str
        The opcode with its modifiers, such as ``LDG.E.128.CONSTANT``.
    """
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
