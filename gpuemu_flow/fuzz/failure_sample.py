"""Keep a limited number of a run's failures; the choice does not depend on the order of arrival."""

from __future__ import annotations

import heapq
from collections import Counter

from gpuemu_flow.fuzz.judged import Judged
from gpuemu_flow.judging.verdicts import reason

MOST_FAILURES = 1000
"""Maximum number of failures that a run keeps per op, besides the smallest of each kind."""


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
