"""The limits and severities by which kernels are checked, and the patterns for instructions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from msgspec import Struct, field


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
    """Tell whether consecutive segments of an opcode match the segments of a pattern.

    Whole segments are compared, never parts of one.
    ``f64`` matches ``add.rn.f64``, but not ``cvt.f64x2``; ``ld.local`` matches ``ld.local.u32``.
    Segments of a pattern may contain the wildcards ``*`` and ``?``.
    """
    wanted = [segment for segment in pattern.split(".") if segment]
    found = opcode.split(".")
    if not wanted:
        return False
    return any(
        all(fnmatchcase(found[start + i], segment) for i, segment in enumerate(wanted))
        for start in range(len(found) - len(wanted) + 1)
    )


def is_sass_pattern(pattern: str) -> bool:
    """Tell whether a pattern is for machine opcodes, which are in upper case (``FADD``)."""
    return pattern.lstrip(".")[:1].isupper()


def matching_opcodes(pattern: str, opcodes: Iterable[str]) -> list[str]:
    """Return those of `opcodes` that the pattern or one of its aliases matches."""
    alternatives = (pattern, *ALIASES.get(pattern, ()))
    return [o for o in opcodes if any(opcode_matches(a, o) for a in alternatives)]


def matching_symbols(pattern: str, symbols: Iterable[str]) -> list[str]:
    """Return those of the function names `symbols` that the pattern or one of its aliases matches.

    A name must match as a whole.
    """
    alternatives = [a for a in (pattern, *ALIASES.get(pattern, ())) if _SYMBOL.match(a)]
    return [s for s in symbols if any(fnmatchcase(s, a) for a in alternatives)]
