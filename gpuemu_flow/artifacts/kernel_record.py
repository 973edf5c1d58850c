"""The figures and verdict of a linted kernel as data, and their JSON for manifests and commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from gpuemu_flow.artifacts.findings import Violation
from gpuemu_flow.artifacts.occupancy import Occupancy
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Verdict


@dataclass(frozen=True)
class UncheckedRule:
    """The id of a rule that could not judge a kernel, and the reason."""

    rule: str
    reason: str


@dataclass(frozen=True)
class MachineMix:
    """Counts of machine instructions by family; ``source`` is the disassembler that listed them."""

    source: str
    instructions: int
    families: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "source": self.source,
            "instructions": self.instructions,
            "families": dict(self.families),
        }


@dataclass(frozen=True)
class KernelFigures:
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
        return {name: value for name, value in vars(self).items() if isinstance(value, int)}

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON; `from_json` is its inverse."""
        return {
            **vars(self),
            "occupancy": None if self.occupancy is None else self.occupancy.to_json(),
            "families": dict(self.families),
            "sass": None if self.sass is None else self.sass.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KernelFigures:
        """Make figures from the result of `to_json`, or raise KeyError or TypeError."""
        reached, sass = data["occupancy"], data["sass"]
        if reached is not None:
            reached = Occupancy(**{**reached, "limited_by": tuple(reached["limited_by"])})
        mix = None if sass is None else MachineMix(**sass)
        return cls(**{**data, "occupancy": reached, "sass": mix})


@dataclass(frozen=True)
class KernelRecord:
    """One kernel of an artifact, with its figures and its verdict.

    Attributes
    ----------
    name, file, arch : str
    metric_source : str
        Source of the figures for registers, spills and memory; see `KernelMetrics`.
    metrics : KernelFigures
    verdict : Verdict
    violations : tuple of Violation
        All violations, including those that are accepted.
    unchecked : tuple of UncheckedRule
    """

    name: str
    file: str
    arch: str
    metric_source: str
    metrics: KernelFigures
    verdict: Verdict
    violations: tuple[Violation, ...] = ()
    unchecked: tuple[UncheckedRule, ...] = ()

    @property
    def errors(self) -> tuple[Violation, ...]:
        """Return the violations that make the kernel fail."""
        return tuple(v for v in self.violations if v.severity == "error" and not v.allowed)

    @property
    def counted(self) -> tuple[Violation, ...]:
        """Return the violations, of any severity, that are not accepted."""
        return tuple(v for v in self.violations if not v.allowed)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that ``lint`` and ``artifacts`` print; `from_json` is its inverse."""
        return {
            "name": self.name,
            "file": self.file,
            "arch": self.arch,
            "metric_source": self.metric_source,
            "metrics": self.metrics.to_json(),
            "violations": [violation.to_json() for violation in self.violations],
            "unchecked": [vars(one) for one in self.unchecked],
            "verdict": self.verdict.value,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KernelRecord:
        """Rebuild from `to_json`'s result, or raise KeyError, TypeError or ValueError."""
        return cls(
            **{
                **data,
                "metrics": KernelFigures.from_json(data["metrics"]),
                "violations": tuple(Violation(**one) for one in data["violations"]),
                "unchecked": tuple(UncheckedRule(**one) for one in data["unchecked"]),
                "verdict": Verdict(data["verdict"]),
            }
        )
