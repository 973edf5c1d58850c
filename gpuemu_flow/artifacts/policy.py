"""The limits and severities by which kernels are checked, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any

from gpuemu_flow.quick_dataclass import dataclass


@dataclass(frozen=True)
class KernelPolicy:
    """Limits and severities by which a kernel is checked.

    Attributes
    ----------
    max_registers : int
        Registers per thread.
    max_spills : int
        Spill instructions, loads and stores together.
    max_spill_bytes : int or None
    max_local_memory_bytes : int
        Bytes of stack per thread.
    max_shared_memory : int or None
        Shared memory per block in bytes: static and, if known, dynamic.
    max_instructions : int or None
        PTX instructions.
    min_occupancy : float or None
        Smallest share of a multiprocessor's warps that are resident, 0 to 1.
    registers_warn_above, spills_warn_above, local_memory_warn_above : int or None
        A figure above this threshold, but not above its maximum, gives a warning.
    forbidden_instructions, required_patterns : tuple of str
        Patterns for instructions and called functions; see `patterns`.
    expect_tensor_cores : bool
    severities : dict
        Maps the id of a rule to ``error``, ``warning``, ``info`` or ``off``.
    allow : dict
        Maps the id of a rule to the reason why its violations are accepted.
    archs : tuple of str
        Architectures for which the kernel must build.
    explicit : frozenset of str
        Names of the fields that the user has set. To exceed one of our default limits is only a
        warning, because kernels of published packages do that on purpose.
    """

    max_registers: int = 128
    max_spills: int = 0
    max_spill_bytes: int | None = None
    max_local_memory_bytes: int = 0
    max_shared_memory: int | None = None
    max_instructions: int | None = None
    min_occupancy: float | None = None
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

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON with sorted collections, for cache keys and reports."""
        out: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Mapping):
                value = dict(sorted(value.items()))
            elif isinstance(value, frozenset):
                value = sorted(value)
            elif isinstance(value, tuple):
                value = list(value)
            out[item.name] = value
        return out
