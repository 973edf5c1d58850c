"""Patterns for instructions. They match whole dotted segments of an opcode, never parts of one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

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
