"""Count the result of fuzzing an op case by case, in constant memory."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from gpuemu_flow.cases.coverage import Coverage
from gpuemu_flow.judge.fuzz_results import MARGIN_BUCKETS
from gpuemu_flow.judge.verdicts import reason
from gpuemu_flow.model.types import BAD, Case, CheckResult, Verdict
from gpuemu_flow.model.verdicts import Tally
from gpuemu_flow.workers.api import MOST_TIMEOUTS, TIMEOUT

MOST_FAILURES = 1000
"""Maximum number of failures that a run keeps per op, besides the smallest of each kind."""
MOST_ALIKE = 16
"""Number of cases that may end in one and the same error before any ends otherwise."""
ONE_TIMEOUT = "a timeout"
"""Why a run ended whose time limit is no longer than the op's timeout."""


class FailureSample:
    """The failures of a run that its report lists; other failures are only counted.

    If there are more than `most` failures, one with the most frequent reason is left out: that of
    the case with the highest number. Failures with rare reasons are thus kept. In addition, the
    smallest case of each kind of failure is always kept.
    """

    def __init__(self, most: int = MOST_FAILURES) -> None:
        self._most = most
        self._by_reason: dict[str, list[tuple[int, Judged]]] = {}
        self._size = 0
        self._smallest: dict[str, Judged] = {}
        self._counts: Counter[str] = Counter()

    def wants(self, judged: Judged) -> bool:
        """Tell whether a failure would be kept if it were added now."""
        kind = _kind(judged)
        known = self._smallest.get(kind)
        if self._size < self._most or known is None or _size(judged) < _size(known):
            return True
        why = _reason(judged)
        same = self._by_reason.get(why)
        if same and judged.number < -same[0][0]:
            return True
        return (len(same or ()) + 1, why) < self._fullest()

    def add(self, judged: Judged) -> None:
        """Count one more failure, and keep it if `wants` agrees; failures may come in any order."""
        kind = _kind(judged)
        self._counts[kind] += 1
        if not self.wants(judged):
            return
        known = self._smallest.get(kind)
        if known is None or _size(judged) < _size(known):
            self._smallest[kind] = judged
        same = self._by_reason.setdefault(_reason(judged), [])
        heapq.heappush(same, (-judged.number, judged))
        self._size += 1
        if self._size > self._most:
            _, fullest = self._fullest()
            heapq.heappop(self._by_reason[fullest])
            self._size -= 1
            if not self._by_reason[fullest]:
                del self._by_reason[fullest]

    def _fullest(self) -> tuple[int, str]:
        """Find the reason with the most kept failures; return their number, and the reason."""
        return max((len(cases), why) for why, cases in self._by_reason.items())

    def chosen(self) -> list[Judged]:
        """Return the failures that are kept, sorted by the numbers of their cases."""
        found = {-key: judged for cases in self._by_reason.values() for key, judged in cases}
        found.update((judged.number, judged) for judged in self._smallest.values())
        return [found[number] for number in sorted(found)]

    def left_out(self) -> dict[str, int]:
        """Map each kind of failure to the number of failures left out; omit kinds without any."""
        chosen = Counter(map(_kind, self.chosen()))
        return {
            kind: n - chosen[kind] for kind, n in sorted(self._counts.items()) if n > chosen[kind]
        }


def _kind(judged: Judged) -> str:
    failures = judged.result.failures
    return failures[0].kind.value if failures else ""


def _reason(judged: Judged) -> str:
    failures = judged.result.failures
    return reason(failures[0]) if failures else ""


def _size(judged: Judged) -> tuple[int, int]:
    return judged.case.numel, judged.number


MOST_PASSING = 2000
"""Maximum number of passing cases that are kept, to be compared with failing ones."""


class OpFuzzOutcome:
    """The result of fuzzing one op, which does not depend on the number of jobs."""

    def __init__(
        self,
        op: str,
        seed: int,
        most_failures: int = MOST_FAILURES,
        most_timeouts: int = MOST_TIMEOUTS,
        enough: int | None = None,
    ) -> None:
        self.op = op
        self.seed = seed
        self._most_timeouts = most_timeouts
        self._enough = enough
        self.cases = self.cached = 0
        self.coverage = Coverage()
        self.worst_margin = 0.0
        self.margins = [0] * MARGIN_BUCKETS
        self.passed_classes: Counter[str] = Counter()
        self.duration_s = 0.0
        self.interrupted = False
        self.tally = Tally()
        self.gave_up = ""
        self._timeouts = 0
        self._errors: set[tuple[str, str]] = set()
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
        if self._timeouts >= self._most_timeouts:
            more = self._timeouts > 1
            self.gave_up = f"{self._timeouts} timeouts in a row" if more else ONE_TIMEOUT
        if self.cases <= MOST_ALIKE:
            first = result.failures[0] if result.verdict is Verdict.ERROR else None
            self._errors.add(("", "") if first is None else (first.why, first.place))
            ((why, _), *others) = self._errors
            if self.cases == MOST_ALIKE and why and not others:
                self.gave_up = "one and the same error in every case"
        if result.verdict in BAD:
            self._failures.add(judged)
            if self.count(Verdict.FAILED) + self.count(Verdict.ERROR) == self._enough:
                self.gave_up = self.gave_up or f"{self._enough} failures"
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


# One judged case of a fuzz run, as data.


class Judged(Struct, frozen=True):
    """One case of a fuzz run."""

    number: int
    case: Case
    result: CheckResult
    cached: bool = False
