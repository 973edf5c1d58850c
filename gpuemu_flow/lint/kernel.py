"""What is known of a kernel: its figures, findings and verdict, as caches and JSON hold them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import asdict

from gpuemu_flow.lint.families import count_sass_families
from gpuemu_flow.lint.occupancy import Occupancy
from gpuemu_flow.lint.ptx.model import LaunchBounds
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.types import Verdict

VIEW_VERSION = 4
"""Part of the cache key: raise it when a view's content changes for the same artifact."""

CUBIN, ESTIMATE = "cubin", "estimate"
"""Sources of the figures for registers, spills, stack and shared memory."""

Count = Annotated[int, Meta(ge=0)]
Number = int | float


class PtxLocation(Struct, frozen=True, omit_defaults=True):
    """A location in the PTX, and in the source from which the PTX was compiled.

    ``source_line`` is 0 without line information. For inlined code, ``call_file`` and ``call_line``
    give the call site.
    """

    line: int = 0
    source_file: str = ""
    source_line: int = 0
    call_file: str = ""
    call_line: int = 0


class Finding(Struct, frozen=True, omit_defaults=True):
    """What a rule finds in a kernel, before the policy is applied.

    ``place`` is None for the kernel itself, and ``severity`` empty for the rule's own.
    """

    message: str
    place: PtxLocation | None = None
    actual: Number | None = None
    limit: Number | None = None
    severity: str = ""


class Violation(Struct, frozen=True, omit_defaults=True):
    """A kernel's violation of one rule; ``allowed`` is the reason for which it is accepted.

    ``actual`` and ``limit`` are the figure and the limit that it exceeds, where there are such.
    """

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
    """Figures of one kernel for one architecture; None for what no tool told.

    ``local_bytes`` are those of the variables that the PTX declares, ``stack_bytes`` what the
    compiler made of them. ``max_live`` is the number of 32-bit registers that live at once.
    ``opcodes``, ``calls`` and ``sass_opcodes`` count PTX opcodes, called functions and machine
    opcodes; machine instructions are counted without padding.
    """

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
        """Tell whether the resource figures come from the compiler rather than from an estimate."""
        return self.metric_source != ESTIMATE

    @property
    def sass_instructions(self) -> int | None:
        """Count machine instructions without padding; None when no disassembler read the cubin."""
        return None if self.sass_opcodes is None else sum(self.sass_opcodes.values())

    @property
    def sass(self) -> MachineMix | None:
        """Return the mix of machine instructions; None if no disassembler listed them."""
        if self.sass_opcodes is None:
            return None
        families = count_sass_families(self.sass_opcodes)
        return MachineMix(self.sass_tool, self.sass_instructions or 0, families)

    @property
    def figures(self) -> KernelFigures:
        """Return the figures that reports show."""
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
        """Return the known figures that are integers, by name."""
        return {name: value for name, value in asdict(self).items() if isinstance(value, int)}


class KernelView(Struct, frozen=True, omit_defaults=True):
    """One kernel for one architecture: all that the rules judge, without its PTX.

    A view is made once per artifact and cached, so a changed limit is checked without parsing the
    PTX again. ``has_ptx`` is False if only a cubin was given. ``findings`` are by rule;
    ``opcode_places`` and ``call_places`` are the first instruction of each opcode and the first
    call of each function. ``unmet_bounds`` is what ptxas says of launch bounds that it ignored, and
    ``assembly`` the assembler's error for each architecture, empty if there was none. The stack of
    a ``recursive`` kernel has no static bound.
    """

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
    listed so that nobody takes the absence of violations for a pass.
    """

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
        """Return the violations that make the kernel fail."""
        return tuple(v for v in self.violations if v.severity == "error" and not v.allowed)

    @property
    def counted(self) -> tuple[Violation, ...]:
        """Return the violations, of any severity, that are not accepted."""
        return tuple(v for v in self.violations if not v.allowed)
