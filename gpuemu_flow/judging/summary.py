"""Sum up the verdicts of many cases, as ``run`` prints them per op and dtype."""

from __future__ import annotations

from collections.abc import Iterable

from gpuemu_flow.types import Case, CheckResult, Json, Verdict, number_to_json
from gpuemu_flow.verdicts import Tally

WORST = ("max_abs", "max_rel", "max_ulp", "tolerance_used")


def summarise(results: Iterable[tuple[Case, CheckResult]]) -> dict[str, Json]:
    """Return, as JSON, the overall verdict, the counts per verdict, and the worst error figures."""
    tally = Tally()
    worst = dict.fromkeys(WORST, 0.0)
    for _, result in results:
        tally.add(result)
        for name in WORST:
            value = getattr(result.stats, name)
            # NaN compares false with everything: a figure that is NaN is the worst there is.
            if not value <= worst[name]:
                worst[name] = value
    summary = tallied(tally)
    if tally.counts.get(Verdict.SKIPPED):
        hung = f"{summary['skipped']} of {tally.cases} cases were not run"
        summary["reason"] = summary["reason"] or f"{hung}, since those before them hung"
    return {**summary, **{name: number_to_json(value) for name, value in worst.items()}}


def tallied(tally: Tally) -> dict[str, Json]:
    """Return the verdict of a tally, its reason and the counts as JSON.

    The keys are those of `summarise`, except for its error figures.
    """
    verdict, reason = tally.verdict()
    counts = tally.counts
    return {
        "verdict": verdict.value,
        "reason": reason,
        "cases": tally.cases,
        "passed": counts.get(Verdict.PASSED, 0),
        "failed": counts.get(Verdict.FAILED, 0),
        "inconclusive": counts.get(Verdict.INCONCLUSIVE, 0),
        "errors": counts.get(Verdict.ERROR, 0),
        "skipped": counts.get(Verdict.SKIPPED, 0),
        "unjudged": tally.unjudged,
        "loose": list(tally.passed_by_zeros),
        "constant": tally.always_the_same,
    }
