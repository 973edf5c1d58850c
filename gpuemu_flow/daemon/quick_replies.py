"""Write the reply to a passed case as JSON text, without first building the reply as objects."""

from __future__ import annotations

import time
from functools import lru_cache
from operator import attrgetter

from gpuemu_flow.daemon.replies import MAX_U64, STATISTICS
from gpuemu_flow.store.result_records import as_text
from gpuemu_flow.types import CheckResult, Json, Verdict

_read = attrgetter("num_no_verdict", "tolerance_used", *STATISTICS)
_TYPES = (int, float, int, int, *[float] * (len(STATISTICS) - 2))
_name_as_text = lru_cache(maxsize=256)(as_text)


def passed_text(
    op: str,
    seed: int,
    result: CheckResult,
    elements: str,
    *,
    duration_s: float = 0.0,
    repro_info: Json = None,
    timestamp: int | None = None,
) -> str:
    """Return the reply to a passed case as JSON text, equal to `replies.validation_result`.

    Parameters
    ----------
    elements : str
        Result of `verdicts.Elements.to_text`.

    Returns
    -------
    str
        Empty if the case did not pass, has a note, or has a statistic that is not finite. Use
        `replies.validation_result` then.
    """
    stats = result.stats
    figures = _read(stats)
    usual = (
        result.verdict is Verdict.PASSED
        and not (result.failures or result.all_notes)
        and tuple(map(type, figures)) == _TYPES
        and type(seed) is int
    )
    # A sum is finite only if all of its terms are.
    total = sum(figures[1:]) if usual else float("nan")
    if total - total != 0.0:
        return ""
    _, used, count, exceeding, top, mean, p50, p90, p99, top_rel, mean_rel, ulp, mean_ulp = figures
    largest, largest_rel = repr(top), repr(top_rel)  # the slowest part is to write the floats
    when = int(time.time()) if timestamp is None else timestamp
    about = "null" if repro_info is None else as_text(repro_info)
    return (
        f'{{"passed":true,"seed":{seed},"op_name":{_name_as_text(op)},"max_diff":{largest},'
        f'"max_rel_diff":{largest_rel},"failures":[],"timestamp":{when},'
        f'"duration_ms":{round(duration_s * 1000)},"repro_info":{about},'
        f'"error_stats":{{"count":{count},"num_exceeding":{exceeding},"max_abs":{largest},'
        f'"mean_abs":{mean!r},"p50_abs":{p50!r},"p90_abs":{p90!r},"p99_abs":{p99!r},'
        f'"max_rel":{largest_rel},"mean_rel":{mean_rel!r},"max_ulp":{min(round(ulp), MAX_U64)},'
        f'"mean_ulp":{mean_ulp!r}}},"verdict":"{result.verdict.value}","tolerance_used":{used!r},'
        f'"unjudged":{stats.unjudged!r},"compared":{elements},"notes":[]}}'
    )
