"""Requests for past validations: results, baselines, failures."""

from __future__ import annotations

import math

from gpuemu_flow.daemon.fields import Fields
from gpuemu_flow.daemon.jobs import Job
from gpuemu_flow.daemon.replies import RequestError, finite
from gpuemu_flow.daemon.service import Service
from gpuemu_flow.reporting import baselines
from gpuemu_flow.store.baselines import BaselineStore, SubmittedResult, unknown_baseline
from gpuemu_flow.types import Json, Verdict

MAX_LIMIT = (1 << 63) - 1


def get_result(service: Service, fields: Fields, _job: Job) -> dict[str, Json]:
    """Answer ``GetResult``: return the newest result of a seed."""
    seed = fields.u64("seed")
    stored = service.results.find(seed)
    if stored is None:
        raise RequestError("NotFound", f"no result has the seed {seed}")
    return {"type": "ValidationResult", "result": stored.result}


def list_results(service: Service, fields: Fields, _job: Job) -> dict[str, Json]:
    """Answer ``ListResults``: return results, newest first."""
    found = service.results.newest(fields.integer("limit", 0, MAX_LIMIT))
    return {"type": "Results", "results": [stored.result for stored in found]}


def store_baseline(service: Service, fields: Fields, _job: Job) -> dict[str, Json]:
    """Answer ``StoreBaseline``: store the newest result of each op and seed."""
    workspace = service.configured().workspace
    with service.baselines_lock:
        latest = service.results.latest().values()
        count = baselines.store_submitted(workspace, fields.name("tag"), latest)
    return {"type": "Ok", "results": count}


def compare_baseline(service: Service, fields: Fields, _job: Job) -> dict[str, Json]:
    """Answer ``CompareBaseline``: compare the present results with a baseline."""
    tag = fields.name("tag")
    known = _submitted(service, tag)
    threshold = service.configured().workspace.config.policies.regression_threshold
    comparisons = []
    for (op, seed), stored in service.results.latest().items():
        passed, now = stored.judged.verdict is Verdict.PASSED, finite(stored.judged.max_abs)
        then = known.get((op, seed))
        before = None if then is None else finite(then.max_abs)
        change = None if before is None else _relative_change(before, now)
        worse = then is not None and (
            (then.passed and not passed) or (change is not None and change > threshold)
        )
        comparisons.append(
            {
                "op_name": op,
                "seed": seed,
                "current_max_diff": now,
                "baseline_max_diff": before,
                "current_passed": passed,
                "baseline_passed": None if then is None else then.passed,
                "relative_change": change,
                "is_regression": worse,
            }
        )
    return {
        "type": "BaselineComparison",
        "baseline_tag": tag,
        "comparisons": comparisons,
        "has_regressions": any(c["is_regression"] for c in comparisons),
    }


def _submitted(service: Service, tag: str) -> dict[tuple[str, int], SubmittedResult]:
    """Return the results of a baseline by op and seed.

    Raises
    ------
    UsageError
        ``unknown-baseline`` if no baseline has the tag, or if it contains only kernel metrics.
    """
    known = BaselineStore(service.cache)
    found = known.get(tag).submitted
    if found is None:
        tags = [baseline.tag for baseline in known.list() if baseline.submitted is not None]
        raise unknown_baseline(tag, tags)
    return {(result.op, result.seed): result for result in found}


def _relative_change(then: float, now: float) -> float | None:
    """Return (now - then) / then; 0 if both are 0, and None if the result is not finite."""
    if then == 0:
        return 0.0 if now == 0 else None
    change = (now - then) / then
    return change if math.isfinite(change) else None
