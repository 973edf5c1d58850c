"""Results of fuzzing, reproducing, shrinking and measuring an op, as data for all writers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from gpuemu_flow.judge.results import Minimal
from gpuemu_flow.model.types import BAD, CheckResult, Json, Verdict
from gpuemu_flow.model.verdicts import Cause
from gpuemu_flow.store.failures import FailureRecord

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpuemu_flow.cases.coverage import Coverage, Gap, Row
    from gpuemu_flow.numerics.output_mutants import MutationScore
    from gpuemu_flow.numerics.trivial import TrivialReport


# The failure rate of an op over seeds, with the interval in which its true rate lies.

CONFIDENCE = 0.95


class FailureRate(Struct, frozen=True):
    """Failures among independent cases."""

    failed: int
    total: int
    rate: float
    # Wilson's interval for the true rate at `confidence`
    low: float
    high: float
    confidence: float = CONFIDENCE

    @property
    def sentence(self) -> str:
        """Return the rate in words: ``3 of 100 fail: 3.0 % (95 % interval 1.0 % to 8.5 %)``."""
        return (
            f"{self.failed} of {self.total} fail: {_percent(self.rate)} "
            f"({self.confidence * 100:g} % interval {_percent(self.low)} to {_percent(self.high)})"
        )


def failure_rate(failed: int, total: int, confidence: float = CONFIDENCE) -> FailureRate:
    """Return the failure rate with Wilson's score interval.

    Raises ValueError when an argument is outside its range.

    The ends of the interval are computed from:

    - p: the failure rate, ``failed / total``
    - n: `total`
    - z: the standard normal quantile at ``(1 + confidence) / 2``

    They are ``(p + z²/(2n) ± z √(p(1-p)/n + z²/(4n²))) / (1 + z²/n)``.

    The simpler interval ``p ± z √(p(1-p)/n)`` can reach below 0 or above 1, and has no width if
    nothing failed. Wilson's interval avoids both.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", 1927.

    >>> failure_rate(0, 100).sentence
    '0 of 100 fail: 0.0 % (95 % interval 0.0 % to 3.7 %)'
    """
    if not 0 <= failed <= total:
        raise ValueError(f"{failed} failures among {total} cases")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"a confidence of {confidence}")
    if total == 0:
        return FailureRate(0, 0, 0.0, 0.0, 1.0, confidence)
    z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
    p, weight = failed / total, z * z / total
    middle = p + weight / 2.0
    reach = math.sqrt(weight * (p * (1.0 - p) + weight / 4.0))
    low = 0.0 if failed == 0 else max(0.0, (middle - reach) / (1.0 + weight))
    high = 1.0 if failed == total else min(1.0, (middle + reach) / (1.0 + weight))
    return FailureRate(failed, total, p, low, high, confidence)


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


MARGIN_BUCKETS = 10


class CauseGroup(Struct, frozen=True):
    """Failures with the same cause or, without one, of the same kind."""

    kind: str
    feature: str
    failures: tuple[FailureRecord, ...]
    minimized: FailureRecord | None = None
    notes: tuple[str, ...] = ()  # on the case that tells most, `telling`
    telling: FailureRecord | None = None  # None if it is the first
    shape_classes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    cause: Cause | None = None
    shown: Minimal = Minimal()  # what is shown first; filled in by `report.minimal`


class FuzzReport(Struct, frozen=True):
    """One op's fuzz run."""

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
        """Return the estimated share of seeds with which the op fails. Only cases that passed,
        failed or ended in an error are counted."""
        bad = self.failed + self.errors
        return failure_rate(bad, bad + self.passed)

    @property
    def cases_per_s(self) -> float:
        return self.iterations / self.duration_s if self.duration_s > 0 else 0.0


class Reproduction(Struct, frozen=True):
    """A recorded failure, run again."""

    record: FailureRecord
    result: CheckResult  # of the op as it is now
    inputs: Mapping[str, NDArray[Any]]
    actual: Mapping[str, NDArray[Any]]
    expected: Mapping[str, NDArray[Any]]
    # True if the case passed in every setting, although code and configuration are the same as when
    # the failure was recorded: it is intermittent, and there is no verdict on it
    did_not_show: bool = False
    known: bool = True  # false if this workspace has no record of a failure of the case
    # Sizes that the op's schema does not allow, so that `run` never judges such a case; empty if
    # `known` is true
    disallowed: str = ""

    @property
    def still_fails(self) -> bool:
        """Tell whether the op still fails on the case, in the recorded way or in another way."""
        return self.result.verdict in BAD

    @property
    def exit_code(self) -> int:
        """Return 1 if the op still fails, 0 if it passes, 4 if there is no verdict."""
        if self.still_fails:
            return 1
        if self.did_not_show or self.disallowed:
            return 4
        return 0 if self.result.verdict is Verdict.PASSED else 4


class Minimization(Struct, frozen=True):
    """A failure, and the smallest case found that fails in the same way."""

    original: FailureRecord
    minimized: FailureRecord | None  # None if the failure no longer occurs
    steps: int  # smaller failing cases found
    calls: int  # runs of the op
    # True if the failure vanishes as soon as any one dim is made smaller, or any one element is set
    # to zero
    one_minimal: bool
    log: tuple[str, ...] = ()


class Mutation(Struct, frozen=True):
    """The share of planted bugs that the check finds with the op's configured tolerances."""

    op: str
    score: MutationScore
    # Verdicts on zeros, constants and copies of inputs in place of the outputs: if one of these
    # passes, the check is too weak
    trivial: TrivialReport
    cases: int  # cases with a finite value to compare
    # The score of bugs planted in the op's PTX; None if the op is not a compiled kernel, or if no
    # case passes with the unchanged kernel
    kernel: MutationScore | None = None
    # Cases that fail even with the unchanged kernel, and so cannot reveal planted bugs
    kernel_untold: int = 0


class CoverageReport(Struct, frozen=True):
    """The coverage of ops by runs and fuzz runs together, and the gaps that remain."""

    coverage: Coverage
    rows: tuple[Row, ...]
    gaps: tuple[Gap, ...]
