"""Count the result of fuzzing an op case by case, in constant memory."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping

from gpuemu_flow.cases.coverage import Coverage
from gpuemu_flow.fuzz.failure_sample import MOST_FAILURES, FailureSample
from gpuemu_flow.fuzz.judged import Judged
from gpuemu_flow.results.fuzz_model import MARGIN_BUCKETS
from gpuemu_flow.runners.api import MOST_TIMEOUTS, TIMEOUT
from gpuemu_flow.types import BAD, Case, Verdict
from gpuemu_flow.verdicts import Tally

MOST_PASSING = 2000
"""Maximum number of passing cases that are kept, to be compared with failing ones."""


class OpFuzzOutcome:
    """The result of fuzzing one op, which does not depend on the number of jobs."""

    def __init__(self, op: str, seed: int, most_failures: int = MOST_FAILURES) -> None:
        self.op = op
        self.seed = seed
        self.cases = self.cached = 0
        self.coverage = Coverage()
        self.worst_margin = 0.0
        self.margins = [0] * MARGIN_BUCKETS
        self.passed_classes: Counter[str] = Counter()
        self.duration_s = 0.0
        self.interrupted = False
        self.tally = Tally()
        self.timed_out_again = False
        self._timeouts = 0
        self._failures = FailureSample(most_failures)
        self._sample: list[tuple[int, int, Case]] = []

    def add(self, judged: Judged) -> None:
        """Count one more case; cases may come in any order."""
        case, result = judged.case, judged.result
        self.cases += 1
        self.cached += judged.cached
        self.tally.add(result)
        self.coverage.add(self.op, case, result.verdict)
        timed_out = any(failure.why == TIMEOUT for failure in result.failures)
        self._timeouts = self._timeouts + 1 if timed_out else 0
        self.timed_out_again = self.timed_out_again or self._timeouts >= MOST_TIMEOUTS
        if result.verdict in BAD:
            self._failures.add(judged)
        elif result.verdict is Verdict.PASSED:
            self.passed_classes[case.shape_class] += 1
            self._take_margin(result.stats.tolerance_used)
            self._take_sample(judged.number, case)

    def _take_margin(self, share: float) -> None:
        if math.isfinite(share):
            self.worst_margin = max(self.worst_margin, share)
            self.margins[min(MARGIN_BUCKETS - 1, int(share * MARGIN_BUCKETS))] += 1

    def _take_sample(self, number: int, case: Case) -> None:
        """Keep a passed case in the sample if its seed is among the `MOST_PASSING` lowest so far.

        So the sample does not depend on the order in which cases arrive.
        """
        entry = (-case.seed, -number, case)
        if len(self._sample) < MOST_PASSING:
            heapq.heappush(self._sample, entry)
        elif entry > self._sample[0]:
            heapq.heapreplace(self._sample, entry)

    def count(self, verdict: Verdict) -> int:
        """Return the number of cases with this verdict."""
        return self.tally.counts.get(verdict, 0)

    @property
    def failures(self) -> list[Judged]:
        """Return the cases that failed or ended in an error, sorted by number.

        If there are many, this is a selection; see `FailureSample`.
        """
        return self._failures.chosen()

    @property
    def left_out(self) -> dict[str, int]:
        """Map each kind of failure to the number missing from `failures`; omit kinds with 0."""
        return self._failures.left_out()

    def wants(self, judged: Judged) -> bool:
        """Tell whether `failures` would contain a case, so that it is worth recording."""
        return judged.result.verdict in BAD and self._failures.wants(judged)

    @property
    def passing(self) -> list[Case]:
        """Return passed cases, sorted by number; if there are many, those with the lowest seeds."""
        return [case for _, _, case in sorted(self._sample, key=lambda entry: -entry[1])]

    def counted(self) -> Mapping[str, Counter[str]]:
        """Count the cases by dtype, by class of shapes, by layout and by strategy."""
        return {
            what: self.coverage.by(aspect)
            for what, aspect in (
                ("dtypes", "dtype"),
                ("shape classes", "shape_class"),
                ("layouts", "layout"),
                ("strategies", "strategy"),
            )
        }
