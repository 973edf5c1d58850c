"""Limits and severities that kernels are checked against, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any

from gpuemu_flow.quick_dataclass import dataclass


@dataclass(frozen=True)
class KernelPolicy:
    """Limits and severities that a kernel is checked against.

    Attributes
    ----------
    max_registers : int
        Registers per thread.
    max_spills : int
        Spill instructions, loads and stores together.
    max_spill_bytes : int or None
    max_local_memory_bytes : int
        Stack bytes per thread.
    max_shared_memory : int or None
        Static shared memory per block, bytes.
    max_instructions : int or None
        PTX instructions.
    min_occupancy : float or None
        Fraction of a multiprocessor's warps, 0 to 1.
    registers_warn_above, spills_warn_above, local_memory_warn_above : int or None
        Figures above these, up to the maximum, give a warning.
    forbidden_instructions, required_patterns : tuple of str
    expect_tensor_cores : bool
    severities : dict
        Maps a rule to ``error``, ``warning``, ``info`` or ``off``.
    allow : dict
        Maps a rule to the reason why its violations are accepted.
    archs : tuple of str
        Architectures the kernel must build for.
    explicit : frozenset of str
        Fields that the user has set. Exceeding a limit that is merely our default is a warning:
        kernels of published packages do that on purpose.
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
        """Return the severity of exceeding a limit: "error" if the user set it, else "warning"."""
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
