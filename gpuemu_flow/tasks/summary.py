"""Many cases' verdicts as one: what ``run`` prints per op and dtype."""

from __future__ import annotations

from collections.abc import Iterable

from gpuemu_flow.types import Case, CheckResult, Json, Verdict, number_to_json

WORST = ("max_abs", "max_rel", "max_ulp", "tolerance_used")


def overall(counts: dict[Verdict, int]) -> Verdict:
    """The verdict of a set of cases: any failure fails it, then any error, then nothing known."""
    for verdict in (Verdict.FAILED, Verdict.ERROR):
        if counts.get(verdict):
            return verdict
    if counts.get(Verdict.PASSED):
        return Verdict.PASSED
    return Verdict.INCONCLUSIVE if counts.get(Verdict.INCONCLUSIVE) else Verdict.SKIPPED


def summarise(results: Iterable[tuple[Case, CheckResult]]) -> dict[str, Json]:
    """Counts per verdict and the worst of each error figure."""
    counts: dict[Verdict, int] = {}
    worst = dict.fromkeys(WORST, 0.0)
    total = 0
    for _, result in results:
        total += 1
        counts[result.verdict] = counts.get(result.verdict, 0) + 1
        for name in WORST:
            value = getattr(result.stats, name)
            # NaN compares false with everything: a figure that is NaN is the worst there is.
            if not value <= worst[name]:
                worst[name] = value
    return {
        "verdict": overall(counts).value,
        "cases": total,
        "passed": counts.get(Verdict.PASSED, 0),
        "failed": counts.get(Verdict.FAILED, 0),
        "inconclusive": counts.get(Verdict.INCONCLUSIVE, 0),
        "errors": counts.get(Verdict.ERROR, 0),
        "skipped": counts.get(Verdict.SKIPPED, 0),
        **{name: number_to_json(value) for name, value in worst.items()},
    }
