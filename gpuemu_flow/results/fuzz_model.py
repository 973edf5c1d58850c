"""The result of fuzzing an op, as data for all writers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import msgspec

from gpuemu_flow.cases.cause import Cause
from gpuemu_flow.numerics.flakiness import FailureRate, failure_rate
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.store.failure_record import FailureRecord
from gpuemu_flow.types import Json, Verdict, number_to_json

SCHEMA_VERSION = 1
MARGIN_BUCKETS = 10


@dataclass(frozen=True)
class CauseGroup:
    """Failures with the same cause or, without one, of the same kind.

    Attributes
    ----------
    kind : str
        `types.FailureKind` of the first failure.
    feature : str
        The cause that new cases confirmed, as text; empty if there is none.
    failures : tuple of FailureRecord
        Smallest case first.
    minimized : FailureRecord or None
        The shrunk form of the group's smallest case; None if it was not requested.
    notes : tuple of str
        Sentences about the wrong elements of the group's smallest case.
    shape_classes : mapping of str to (int, int)
        For each class of shapes, the number of this group's failures and the number of passing
        cases; empty if the run left out failures.
    cause : Cause or None
        The confirmed cause; None if there is none.
    """

    kind: str
    feature: str
    failures: tuple[FailureRecord, ...]
    minimized: FailureRecord | None = None
    notes: tuple[str, ...] = ()
    shape_classes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    cause: Cause | None = None


@dataclass(frozen=True)
class FuzzReport:
    """One op's fuzz run.

    Attributes
    ----------
    op : str
    seed : int
        Master seed.
    iterations, passed, failed, inconclusive, errors, cached : int
        Numbers of cases.
    duration_s, cases_per_s : float
    verdict : Verdict
        The verdict on all cases.
    reason : str
        Reason why the cases are inconclusive; else empty.
    unjudged : float
        Share of all output elements without a verdict.
    worst_margin : float
        Largest share of the tolerance that a passing case used.
    margins : tuple of int
        Numbers of passing cases by the share of the tolerance that they used, in tenths.
    coverage : JSON
        Counts per dtype, shape class, layout and strategy.
    gaps : tuple of str
        Features that no case exercised.
    groups : tuple of CauseGroup
        Smallest case first.
    left_out : mapping of str to int
        Numbers of failures, by kind, that no group contains, since a run keeps only a limited
        number.
    interrupted : bool
    stopped_early : str
        Reason why fewer cases ran than were requested; empty if all ran.
    not_run : int
        Number of cases that were not tried, because the function that makes their inputs hung.
    """

    op: str
    seed: int
    iterations: int
    passed: int
    failed: int
    inconclusive: int
    errors: int
    cached: int
    duration_s: float
    verdict: Verdict
    reason: str = ""
    unjudged: float = 0.0
    worst_margin: float = 0.0
    margins: tuple[int, ...] = ()
    coverage: Mapping[str, Json] = field(default_factory=dict)
    gaps: tuple[str, ...] = ()
    groups: tuple[CauseGroup, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    interrupted: bool = False
    stopped_early: str = ""
    not_run: int = 0

    @property
    def failure_rate(self) -> FailureRate:
        """Return the estimated share of seeds with which the op fails.

        Only cases that passed, failed or ended in an error are counted.
        """
        bad = self.failed + self.errors
        return failure_rate(bad, bad + self.passed)

    @property
    def cases_per_s(self) -> float:
        """Return the number of cases per second of wall time."""
        return self.iterations / self.duration_s if self.duration_s > 0 else 0.0

    def to_json(self) -> dict[str, Json]:
        """Return the JSON that ``fuzz --format json`` prints."""
        return {
            "schema_version": SCHEMA_VERSION,
            "op": self.op,
            "seed": self.seed,
            "seed_str": str(self.seed),
            "iterations": self.iterations,
            "passed": self.passed,
            "failed": self.failed,
            "inconclusive": self.inconclusive,
            "errors": self.errors,
            "verdict": self.verdict.value,
            "reason": self.reason,
            "unjudged": self.unjudged,
            "cached": self.cached,
            "duration_s": round(self.duration_s, 6),
            "cases_per_s": round(self.cases_per_s, 3),
            "failure_rate": self.failure_rate.to_json(),
            "worst_margin": number_to_json(self.worst_margin),
            "margins": list(self.margins),
            "coverage": dict(self.coverage),
            "gaps": list(self.gaps),
            "causes": [
                {
                    "kind": group.kind,
                    "feature": group.feature,
                    "cause": None if group.cause is None else msgspec.to_builtins(group.cause),
                    "count": len(group.failures),
                    "smallest": group.failures[0].id,
                    "minimized": group.minimized.id if group.minimized else None,
                    "notes": list(group.notes),
                    "shape_classes": {
                        name: {"failed": failed, "passed": passed}
                        for name, (failed, passed) in group.shape_classes.items()
                    },
                }
                for group in self.groups
            ],
            "failures": [
                failure.to_public_json() for group in self.groups for failure in group.failures
            ],
            **({"not_run": self.not_run} if self.not_run else {}),
            **({"failures_left_out": dict(self.left_out)} if self.left_out else {}),
            "interrupted": self.interrupted,
        }
