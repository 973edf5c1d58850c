"""Figures of one kernel, such as its resources, occupancy and numbers of instructions.

All figures about a kernel's resources come from the same source: a cubin, ptxas, or an estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any

from gpuemu_flow.artifacts.occupancy import Occupancy, limits_of, occupancy
from gpuemu_flow.quick_dataclass import dataclass

if TYPE_CHECKING:
    from gpuemu_flow.artifacts.cubin import CubinKernel
    from gpuemu_flow.artifacts.ptxas import KernelUsage

CUBIN, PTXAS, ESTIMATE = "cubin", "ptxas", "estimate"
"""Sources of the figures for registers, spills, stack and shared memory, the most reliable
first."""

_ASSUMED_THREADS = 256


@dataclass(frozen=True)
class KnownLaunch:
    """Facts about a kernel's launches that its PTX does not tell.

    Attributes
    ----------
    threads : int
        Threads per block; 0 to use the launch bounds.
    dynamic_shared_bytes : int or None
        Dynamic shared memory per block. If None, it is unknown, and occupancy is computed with
        static shared memory only.
    """

    threads: int = 0
    dynamic_shared_bytes: int | None = None


@dataclass(frozen=True)
class Resources:
    """Resources of a kernel according to one source; None for a resource that is not stated."""

    source: str
    tool_version: str = ""
    registers: int | None = None
    spill_instructions: int | None = None
    spill_bytes: int | None = None
    stack_bytes: int | None = None
    shared_bytes: int | None = None
    barriers: int | None = None

    def figures(self) -> dict[str, Any]:
        """Return the figures by name, as `KernelMetrics` names them; the source is left out."""
        return {name: value for name, value in vars(self).items() if name != "source"}


@dataclass(frozen=True)
class KernelMetrics:
    """Figures of one kernel for one architecture.

    Attributes
    ----------
    name : str
        Mangled name.
    arch : str
    metric_source : str
        `CUBIN`, `PTXAS` or `ESTIMATE`: the source of `registers`, `spill_instructions`,
        `spill_bytes`, `stack_bytes`, `shared_bytes` and `barriers`.
    tool_version, ptx_target : str
    registers : int or None
        Registers per thread; an estimate if `metric_source` is `ESTIMATE`.
    spill_instructions, spill_bytes : int or None
    stack_bytes : int or None
        Stack per thread.
    local_bytes : int or None
        Size of the ``.local`` variables in the PTX; the stack is often smaller.
    shared_bytes : int or None
        Static shared memory per block.
    declared_registers : int or None
        Number of declared virtual registers; it is shown, but no rule checks it.
    max_live : int or None
        Highest number of live 32-bit registers in PTX.
    instructions, predicated_instructions : int or None
        Numbers of PTX instructions of the kernel: of all, and of those with a predicate.
    occupancy : Occupancy or None
        None for an unknown architecture or register count.
    families, opcodes, calls : dict of str to int
        Counts of instructions in the PTX by family and by opcode, and of calls by function.
    sass_tool : str
        Disassembler and version, such as ``nvdisasm 13.0.88``.
    sass_opcodes : dict of str to int, or None
        Count of each machine opcode; None if no disassembler read the cubin.
    """

    name: str
    arch: str
    metric_source: str
    tool_version: str = ""
    ptx_target: str = ""
    registers: int | None = None
    spill_instructions: int | None = None
    spill_bytes: int | None = None
    stack_bytes: int | None = None
    local_bytes: int | None = None
    shared_bytes: int | None = None
    dynamic_shared_bytes: int | None = None
    barriers: int | None = None
    declared_registers: int | None = None
    max_live: int | None = None
    instructions: int | None = None
    predicated_instructions: int | None = None
    occupancy: Occupancy | None = None
    families: Mapping[str, int] = field(default_factory=dict)
    opcodes: Mapping[str, int] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)
    sass_tool: str = ""
    sass_opcodes: Mapping[str, int] | None = None

    @property
    def is_exact(self) -> bool:
        """Tell whether the resource figures come from the compiler rather than from an estimate."""
        return self.metric_source != ESTIMATE

    @property
    def sass_instructions(self) -> int | None:
        """Count machine instructions without padding; None when no disassembler read the cubin."""
        return None if self.sass_opcodes is None else sum(self.sass_opcodes.values())

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON; `from_json` is its inverse."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KernelMetrics:
        """Make metrics from the result of `to_json`, or raise KeyError or TypeError."""
        values = dict(data)
        found = values.get("occupancy")
        if found is not None:
            values["occupancy"] = Occupancy(**{**found, "limited_by": tuple(found["limited_by"])})
        return cls(**values)


def resources_from_cubin(kernel: CubinKernel, tool_version: str) -> Resources:
    """Return the resources that a cubin records. A cubin is the best source of them."""
    return Resources(
        CUBIN,
        tool_version,
        registers=kernel.registers,
        spill_instructions=kernel.spill_instructions,
        spill_bytes=kernel.spill_bytes,
        stack_bytes=kernel.stack_bytes,
        shared_bytes=kernel.shared_bytes,
        barriers=kernel.barriers,
    )


def resources_from_ptxas(usage: KernelUsage, tool_version: str) -> Resources:
    """Return the resources that ``ptxas -v`` printed.

    ptxas prints the bytes of spills, but not the number of spill instructions. This number is
    therefore None, unless there are no spills.
    """
    no_spills = usage.spill_bytes == 0
    return Resources(
        PTXAS,
        tool_version,
        registers=usage.registers,
        spill_instructions=0 if no_spills else None,
        spill_bytes=usage.spill_bytes,
        stack_bytes=usage.stack_bytes,
        shared_bytes=usage.shared_bytes,
        barriers=usage.barriers,
    )


def kernel_occupancy(
    arch: str, resources: Resources, max_threads: int, launch: KnownLaunch
) -> Occupancy | None:
    """Compute the occupancy; return None if the architecture or register count is unknown.

    The block size is taken from the launch. If the launch does not state it, it is taken from the
    launch bounds or, without launch bounds, is assumed to be 256 threads.
    """
    limits = limits_of(arch)
    if limits is None or resources.registers is None:
        return None
    stated = launch.threads or max_threads
    shared = (resources.shared_bytes or 0) + (launch.dynamic_shared_bytes or 0)
    return occupancy(
        limits,
        stated or _ASSUMED_THREADS,
        resources.registers,
        shared,
        resources.barriers or 0,
        assumed_threads=not stated,
    )
