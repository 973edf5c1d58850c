"""What is known of a kernel: its figures, findings and verdict, as caches and JSON hold them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import asdict

from gpuemu_flow.lint.ptx.model import LaunchBounds, Opcode
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.types import Verdict

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
    return family_of(Opcode(text))


def family_of(opcode: Opcode) -> str:
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
    """Count instructions by family, from a histogram of opcode texts; omit empty families. Each
    opcode belongs to exactly one family, so the counts add up to the instruction count."""
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
    return in_order((sass_family(opcode), count) for opcode, count in opcodes.items())


WARP_THREADS = 32
REGISTERS_PER_SM = 65_536
MAX_THREADS_PER_BLOCK = 1_024
MAX_REGISTERS_PER_THREAD = 255
STATIC_SHARED_LIMIT = 48 * 1024
"""Bytes of shared memory that a block gets without asking for more."""

_REGISTER_UNIT = 256
_SUB_PARTITIONS = 4
_REGISTERS_PER_PARTITION = REGISTERS_PER_SM // _SUB_PARTITIONS
_KIB = 1024
_ARCH_NUMBER = re.compile(r"(?:sm|compute)_(\d{2,3})[af]?\Z")


class ArchLimits(Struct, frozen=True):
    """Limits of the multiprocessors of one architecture."""

    sm: int
    max_warps: int
    max_blocks: int
    shared_bytes: int
    block_shared_bytes: int
    reserved_bytes: int
    barrier_factor: int

    @property
    def shared_unit(self) -> int:
        return 128 if self.sm >= 80 else 256

    @property
    def max_threads(self) -> int:
        return self.max_warps * WARP_THREADS


def _limits(
    sm: int, warps: int, blocks: int, shared_kib: int, block_kib: int, reserved: int, factor: int
) -> tuple[int, ArchLimits]:
    limits = ArchLimits(sm, warps, blocks, shared_kib * _KIB, block_kib * _KIB, reserved, factor)
    return sm, limits


ARCHITECTURES: dict[int, ArchLimits] = dict(
    (
        _limits(70, 64, 32, 96, 96, 0, 2),
        _limits(72, 64, 32, 96, 96, 0, 2),
        _limits(75, 32, 16, 64, 64, 0, 2),
        _limits(80, 64, 32, 164, 163, 1024, 2),
        _limits(86, 48, 16, 100, 99, 1024, 1),
        _limits(87, 48, 16, 164, 163, 1024, 1),
        _limits(88, 48, 16, 100, 99, 1024, 1),
        _limits(89, 48, 24, 100, 99, 1024, 1),
        _limits(90, 64, 32, 228, 227, 1024, 2),
        _limits(100, 64, 32, 228, 227, 1024, 2),
        _limits(103, 64, 32, 228, 227, 1024, 2),
        _limits(110, 48, 24, 228, 227, 1024, 1),
        _limits(120, 48, 24, 100, 99, 1024, 1),
        _limits(121, 48, 24, 100, 99, 1024, 1),
    )
)
"""By number of ``sm_NN``. Source: CUDA C++ Programming Guide, "Compute Capabilities", checked
against ``cuda_occupancy.h`` of CUDA 13.0."""


class Occupancy(Struct, frozen=True):
    """Resident blocks of one kernel on one multiprocessor."""

    blocks: int
    warps: int
    fraction: float
    limited_by: tuple[str, ...]
    threads: int
    assumed_threads: bool = False


def arch_number(arch: str) -> int | None:
    """Return an architecture's number, such as 90 for ``sm_90``, ``sm_90a`` or ``compute_90``.
    Other texts give None."""
    match = _ARCH_NUMBER.match(arch)
    return int(match.group(1)) if match else None


def limits_of(arch: str) -> ArchLimits | None:
    """Return the limits of the architecture with this name; None if they are unknown."""
    number = arch_number(arch)
    return None if number is None else ARCHITECTURES.get(number)


def occupancy(
    limits: ArchLimits,
    threads: int,
    registers: int,
    shared_bytes: int = 0,
    barriers: int = 0,
    *,
    assumed_threads: bool = False,
) -> Occupancy:
    """Compute the number of resident blocks per multiprocessor, and its limits. The rules are those
    of NVIDIA's ``cuda_occupancy.h``. Registers are allocated to warps in units of 256. A quarter of
    the multiprocessor's registers serves a quarter of its warps. To decide whether a block fits at
    all, its number of warps is rounded up to a multiple of four. Shared memory is allocated in
    units of 128 bytes (256 before sm_80)."""

    def result(blocks: int, reasons: tuple[str, ...]) -> Occupancy:
        resident = blocks * warps
        fraction = resident / limits.max_warps
        return Occupancy(blocks, resident, fraction, reasons, threads, assumed_threads)

    warps = -(-threads // WARP_THREADS)
    too_many_registers = registers > MAX_REGISTERS_PER_THREAD
    if not 1 <= threads <= MAX_THREADS_PER_BLOCK or too_many_registers:
        return result(0, ("launch",))
    fits = {"warps": limits.max_warps // warps, "blocks": limits.max_blocks}
    if registers > 0:
        per_warp = _round_up(registers * WARP_THREADS, _REGISTER_UNIT)
        if per_warp * _round_up(warps, _SUB_PARTITIONS) > REGISTERS_PER_SM:
            return result(0, ("launch", "registers"))
        fits["registers"] = _REGISTERS_PER_PARTITION // per_warp * _SUB_PARTITIONS // warps
    shared = _round_up(shared_bytes + limits.reserved_bytes, limits.shared_unit)
    if shared > limits.block_shared_bytes + limits.reserved_bytes:
        return result(0, ("launch", "shared"))
    if shared > 0:
        fits["shared"] = limits.shared_bytes // shared
    if limits.sm >= 90 and barriers > 0:
        fits["barriers"] = limits.max_blocks * limits.barrier_factor // barriers
    blocks = min(fits.values())
    return result(blocks, tuple(name for name, fit in fits.items() if fit == blocks))


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


class KernelPolicy(Struct, frozen=True):
    """Limits and severities by which a kernel is checked."""

    max_registers: int = 128
    max_spills: int = 0
    max_spill_bytes: int | None = None
    max_local_memory_bytes: int = 0
    max_shared_memory: int | None = None
    max_instructions: int | None = None
    min_occupancy: int | float | None = None
    registers_warn_above: int | None = None
    spills_warn_above: int | None = None
    local_memory_warn_above: int | None = None
    forbidden_instructions: tuple[str, ...] = ()
    required_patterns: tuple[str, ...] = ()
    expect_tensor_cores: bool = False
    severities: Mapping[str, str] = field(default_factory=dict)
    allow: Mapping[str, str] = field(default_factory=dict)
    archs: tuple[str, ...] = ()
    explicit: frozenset[str] = frozenset()

    def limit_severity(self, name: str) -> str:
        """Return "error" if the user set the limit with this name, else "warning"."""
        return "error" if name in self.explicit else "warning"


_SYMBOL = re.compile(r"[A-Za-z_$][\w$*?]*\Z")

ALIASES: dict[str, tuple[str, ...]] = {
    "printf": ("vprintf",),
    "assert": ("__assertfail", "__assert_fail"),
    "__syncthreads": ("bar.sync", "barrier.sync", "barrier.cta.sync"),
    "__syncwarp": ("bar.warp.sync",),
}
"""For each name that programmers use: the opcodes and functions that stand for it in PTX."""

SPILL = "spill"
"""The documented pattern that means real spills, whatever the instruction is called."""


def opcode_matches(pattern: str, opcode: str) -> bool:
    """Tell whether consecutive segments of an opcode match the segments of a pattern. Whole
    segments are compared, never parts of one. ``f64`` matches ``add.rn.f64``, but not
    ``cvt.f64x2``; ``ld.local`` matches ``ld.local.u32``. Segments of a pattern may contain the
    wildcards ``*`` and ``?``."""
    wanted = [segment for segment in pattern.split(".") if segment]
    found = opcode.split(".")
    if not wanted:
        return False
    return any(
        all(fnmatchcase(found[start + i], segment) for i, segment in enumerate(wanted))
        for start in range(len(found) - len(wanted) + 1)
    )


def is_sass_pattern(pattern: str) -> bool:
    return pattern.lstrip(".")[:1].isupper()


def matching_opcodes(pattern: str, opcodes: Iterable[str]) -> list[str]:
    alternatives = (pattern, *ALIASES.get(pattern, ()))
    return [o for o in opcodes if any(opcode_matches(a, o) for a in alternatives)]


def matching_symbols(pattern: str, symbols: Iterable[str]) -> list[str]:
    """Return those of the function names `symbols` that the pattern or one of its aliases matches.
    A name must match as a whole."""
    alternatives = [a for a in (pattern, *ALIASES.get(pattern, ())) if _SYMBOL.match(a)]
    return [s for s in symbols if any(fnmatchcase(s, a) for a in alternatives)]


VIEW_VERSION = 4
"""Part of the cache key: raise it when a view's content changes for the same artifact."""

CUBIN, ESTIMATE = "cubin", "estimate"
"""Sources of the figures for registers, spills, stack and shared memory."""

Count = Annotated[int, Meta(ge=0)]
Number = int | float


class PtxLocation(Struct, frozen=True, omit_defaults=True):
    """A location in the PTX, and in the source from which the PTX was compiled. ``source_line`` is
    0 without line information. For inlined code, ``call_file`` and ``call_line`` give the call
    site."""

    line: int = 0
    source_file: str = ""
    source_line: int = 0
    call_file: str = ""
    call_line: int = 0


class Finding(Struct, frozen=True, omit_defaults=True):
    """What a rule finds in a kernel, before the policy is applied. ``place`` is None for the kernel
    itself, and ``severity`` empty for the rule's own."""

    message: str
    place: PtxLocation | None = None
    actual: Number | None = None
    limit: Number | None = None
    severity: str = ""


class Violation(Struct, frozen=True, omit_defaults=True):
    """A kernel's violation of one rule; ``allowed`` is the reason for which it is accepted.
    ``actual`` and ``limit`` are the figure and the limit that it exceeds, where there are such."""

    rule: str
    severity: str
    message: str
    file: str
    line: int
    actual: Number | None
    limit: Number | None
    allowed: str = ""


class UncheckedRule(Struct, frozen=True):
    """The id of a rule that could not judge a kernel, and the reason."""

    rule: str
    reason: str


class MachineMix(Struct, frozen=True):
    """Counts of machine instructions by family; ``source`` is the disassembler that listed them."""

    source: str
    instructions: int
    families: Mapping[str, int]


class KernelMetrics(Struct, frozen=True):
    """Figures of one kernel for one architecture; None for what no tool told. ``local_bytes`` are
    those of the variables that the PTX declares, ``stack_bytes`` what the compiler made of them.
    ``max_live`` is the number of 32-bit registers that live at once. ``opcodes``, ``calls`` and
    ``sass_opcodes`` count PTX opcodes, called functions and machine opcodes; machine instructions
    are counted without padding."""

    name: str
    arch: str
    metric_source: str
    tool_version: str = ""
    ptx_target: str = ""
    registers: Count | None = None
    spill_instructions: Count | None = None
    spill_bytes: Count | None = None
    stack_bytes: Count | None = None
    local_bytes: Count | None = None
    shared_bytes: Count | None = None
    dynamic_shared_bytes: Count | None = None
    barriers: Count | None = None
    declared_registers: Count | None = None
    max_live: Count | None = None
    instructions: Count | None = None
    predicated_instructions: Count | None = None
    occupancy: Occupancy | None = None
    families: Mapping[str, Count] = field(default_factory=dict)
    opcodes: Mapping[str, Count] = field(default_factory=dict)
    calls: Mapping[str, Count] = field(default_factory=dict)
    sass_tool: str = ""
    sass_opcodes: Mapping[str, Count] | None = None

    @property
    def is_exact(self) -> bool:
        return self.metric_source != ESTIMATE

    @property
    def sass_instructions(self) -> int | None:
        """Count machine instructions without padding; None when no disassembler read the cubin."""
        return None if self.sass_opcodes is None else sum(self.sass_opcodes.values())

    @property
    def sass(self) -> MachineMix | None:
        if self.sass_opcodes is None:
            return None
        families = count_sass_families(self.sass_opcodes)
        return MachineMix(self.sass_tool, self.sass_instructions or 0, families)

    @property
    def figures(self) -> KernelFigures:
        return convert(self, KernelFigures, from_attributes=True)


class KernelFigures(Struct, frozen=True):
    """The figures of a kernel that reports show; see `KernelMetrics` for their meaning."""

    registers: int | None = None
    spill_instructions: int | None = None
    spill_bytes: int | None = None
    stack_bytes: int | None = None
    local_bytes: int | None = None
    shared_bytes: int | None = None
    declared_registers: int | None = None
    max_live: int | None = None
    instructions: int | None = None
    occupancy: Occupancy | None = None
    families: Mapping[str, int] = field(default_factory=dict)
    sass: MachineMix | None = None

    @property
    def counts(self) -> dict[str, int]:
        return {name: value for name, value in asdict(self).items() if isinstance(value, int)}


class KernelView(Struct, frozen=True, omit_defaults=True):
    """One kernel for one architecture: all that the rules judge, without its PTX. A view is made
    once per artifact and cached, so a changed limit is checked without parsing the PTX again.
    ``has_ptx`` is False if only a cubin was given. ``findings`` are by rule; ``opcode_places`` and
    ``call_places`` are the first instruction of each opcode and the first call of each function.
    ``unmet_bounds`` is what ptxas says of launch bounds that it ignored, and ``assembly`` the
    assembler's error for each architecture, empty if there was none. The stack of a ``recursive``
    kernel has no static bound."""

    name: str
    file: str
    arch: str
    metrics: KernelMetrics
    bounds: LaunchBounds = LaunchBounds()
    place: PtxLocation = PtxLocation()
    has_ptx: bool = True
    target_options: tuple[str, ...] = ()
    findings: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)
    opcode_places: Mapping[str, PtxLocation] = field(default_factory=dict)
    call_places: Mapping[str, PtxLocation] = field(default_factory=dict)
    unmet_bounds: str = ""
    assembly: Mapping[str, str] = field(default_factory=dict)
    recursive: bool = False


class KernelRecord(Struct, frozen=True, kw_only=True):
    """One kernel of an artifact, with its figures and its verdict: what ``lint`` prints as JSON.
    ``verdict`` is ``failed`` if an error is not accepted, else ``inconclusive`` if no rule could
    judge the kernel, else ``passed``. The rules of ``unchecked`` could not judge it: they are
    listed so that nobody takes the absence of violations for a pass."""

    name: str
    file: str
    arch: str
    metric_source: str
    metrics: KernelFigures
    violations: tuple[Violation, ...] = ()
    unchecked: tuple[UncheckedRule, ...] = ()
    verdict: Verdict

    @property
    def errors(self) -> tuple[Violation, ...]:
        return tuple(v for v in self.violations if v.severity == "error" and not v.allowed)

    @property
    def counted(self) -> tuple[Violation, ...]:
        """Return the violations, of any severity, that are not accepted."""
        return tuple(v for v in self.violations if not v.allowed)
