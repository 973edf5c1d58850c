"""Requests about recorded failures: ListFailures, Reproduce, Minimize."""

from __future__ import annotations

import math
import threading
from datetime import datetime, timezone

from gpuemu_flow.fuzz.failures import only_failure, reproduce, stored_inputs
from gpuemu_flow.fuzz.minimizing import minimise_failure
from gpuemu_flow.model.errors import UsageError
from gpuemu_flow.model.types import Case, CheckResult, Json, Verdict
from gpuemu_flow.report import baselines as client_baselines
from gpuemu_flow.services.daemon.fields import Fields
from gpuemu_flow.services.daemon.jobs import Job
from gpuemu_flow.services.daemon.replies import (
    RequestError,
    finite,
    reproduction_info,
    validation_result,
)
from gpuemu_flow.services.daemon.service import Service
from gpuemu_flow.store.baselines import BaselineStore, SubmittedResult, unknown_baseline
from gpuemu_flow.store.failures import ID_LENGTH, FailureRecord
from gpuemu_flow.wire.tensors import encode_tensors

MAX_ITERS = 1_000_000
STRATEGIES = {
    "BinarySearchDims": "binary-search-dims",
    "BinarySearchValues": "binary-search-values",
    "All": "all",
}


def list_failures(service: Service, fields: Fields, _job: Job) -> dict[str, Json]:
    """Answer ``ListFailures``: return the recorded failures, newest first."""
    records = service.failures.list(limit=fields.integer("limit", 0, MAX_LIMIT))
    return {"type": "Results", "results": [_as_result(record) for record in records]}


def reproduce_failure(service: Service, fields: Fields, job: Job) -> dict[str, Json]:
    """Answer ``Reproduce``: return the stored verdict and the exact inputs.

    With ``rerun``, which the protocol does not have, the op is run again on these inputs.
    """
    record = _find(service, fields)
    inputs = stored_inputs(service.failures, record)
    reply: dict[str, Json] = {
        "type": "ReproduceResult",
        "result": _as_result(record),
        "inputs": encode_tensors(inputs, fields.reply_exchange),
    }
    if fields.flag("rerun", default=False):
        cancel = threading.Event()
        with job.linked(cancel):
            again = reproduce(service.configured().workspace, [record], cancel=cancel)[0]
        reply["still_fails"] = None if again.did_not_show else again.still_fails
        reply["current"] = validation_result(record.op, wire_seed(record), again.result)
    return reply


def minimize(service: Service, fields: Fields, job: Job) -> dict[str, Json]:
    """Answer ``Minimize``: find the smallest case that fails in the same way, and record it."""
    strategy = STRATEGIES[fields.choice("strategy", tuple(STRATEGIES))]
    budget = fields.integer("max_iters", 0, MAX_ITERS)
    record = _find(service, fields)
    cancel = threading.Event()
    with job.linked(cancel):
        found = minimise_failure(
            service.configured().workspace,
            record,
            strategy=strategy,
            budget=max(1, budget),
            cancel=cancel,
        )
    smallest = found.minimized or record
    return {
        "type": "MinimizeResult",
        "original_seed": wire_seed(record),
        "minimized_seed": wire_seed(smallest),
        "minimized_shape": list(smallest.shape),
        "result": _as_result(smallest),
        "still_fails": found.minimized is not None,
        "steps": found.steps,
        "one_minimal": found.one_minimal,
    }


def wire_seed(record: FailureRecord) -> int:
    """Return the seed that names a failure on the wire.

    The record of a shrunk case has the same seed as its original's record. On the wire, a shrunk
    case is therefore named by a number made from its record's id, so that clients can request
    either failure.
    """
    return record.seed if record.minimized_from is None else int(record.id[:ID_LENGTH], 16)


def _find(service: Service, fields: Fields) -> FailureRecord:
    """Return the failure that a request names by its id or its seed.

    The seed of a shrunk case is a number that is made from the failure's id; see `wire_seed`.

    Raises RequestError: ``NotFound``. Raises UsageError: ``ambiguous-failure``.
    """
    wanted = fields.optional_name("failure_id")
    if wanted is not None:
        try:
            return service.failures.get(wanted)
        except UsageError as error:
            raise RequestError("NotFound", error.problems[0].message) from None
    seed = fields.u64("seed")
    named = service.failures.find(seed)
    if named:
        return only_failure(named, seed)
    if seed < 1 << (4 * ID_LENGTH):
        try:
            return service.failures.get(f"{seed:0{ID_LENGTH}x}")
        except UsageError:
            pass
    raise RequestError("NotFound", f"no failure has the seed {seed}")


def _as_result(record: FailureRecord) -> dict[str, Json]:
    case = Case.from_json(record.case)
    provenance = record.provenance or {}
    info = reproduction_info(case, record.shape, provenance.get("fuzz_config"))
    reply = validation_result(
        record.op,
        wire_seed(record),
        CheckResult.from_json(record.result),
        output_shapes={n: tuple(shape) for n, shape in provenance.get("output_shapes", {}).items()},
        repro_info=info,
        timestamp=_unix(record.time),
    )
    return {**reply, "failure_id": record.id, "cause": record.cause}


def _unix(text: str) -> int:
    try:
        parsed = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ")
    except ValueError:
        return 0
    return int(parsed.replace(tzinfo=timezone.utc).timestamp())


# Requests for past validations: results, baselines, failures.


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
        count = client_baselines.store_submitted(workspace, fields.name("tag"), latest)
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

    Raises UsageError: ``unknown-baseline`` if no baseline has the tag, or if it contains only
    kernel metrics.
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
