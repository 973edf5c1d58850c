"""Data types for findings of rules in a kernel, and for violations of a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gpuemu_flow.quick_dataclass import dataclass


@dataclass(frozen=True)
class PtxLocation:
    """A location in the PTX, and in the source from which the PTX was compiled.

    ``source_line`` is 0 without line information. For inlined code, ``call_file`` and ``call_line``
    give the call site.
    """

    line: int = 0
    source_file: str = ""
    source_line: int = 0
    call_file: str = ""
    call_line: int = 0


@dataclass(frozen=True)
class RuleFinding:
    """One finding of a rule in a kernel, before the policy is applied.

    Attributes
    ----------
    message : str
    place : PtxLocation
    count : int
        Number of instructions that the finding concerns.
    severity : str
        If not empty, it replaces the rule's own severity.
    """

    message: str
    place: PtxLocation = PtxLocation()
    count: int = 1
    severity: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON; `from_json` is its inverse."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RuleFinding:
        """Make a finding from the result of `to_json`, or raise KeyError or TypeError."""
        return cls(**{**data, "place": PtxLocation(**data["place"])})


@dataclass(frozen=True)
class Violation:
    """A kernel's violation of one rule.

    Attributes
    ----------
    rule : str
        Id of the rule, such as ``real-spills``.
    severity : str
        ``error``, ``warning`` or ``info``.
    message : str
    file : str
    line : int
        Source line if the PTX has line information, else the line in the artifact; 0 if the
        violation concerns the kernel as a whole and its line is unknown.
    actual, limit : float or None
        The measured figure and its limit, if the rule is about a limit.
    place : PtxLocation
    allowed : str
        The reason why the violation is accepted; empty if it counts.
    """

    rule: str
    severity: str
    message: str
    file: str = ""
    line: int = 0
    actual: float | None = None
    limit: float | None = None
    place: PtxLocation = PtxLocation()
    allowed: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that ``lint --format json`` prints."""
        out: dict[str, Any] = {
            "rule": self.rule,
            "severity": self.severity,
            "message": self.message,
            "file": self.file,
            "line": self.line,
            "actual": self.actual,
            "limit": self.limit,
        }
        if self.allowed:
            out["allowed"] = self.allowed
        return out
