"""Running a program on cases, one action-cache entry per case: shared by ops and references."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from gpuemu_flow.runners.api import Checks, Outcome, Program, Request
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.tasks.base import Interrupted, Progress, StageContext, TaskSpec
from gpuemu_flow.types import Json


@dataclass(frozen=True)
class Execution:
    """Outcomes of a batch.

    Attributes
    ----------
    requests : list of Request
    outcomes : list of Outcome
        One per request, in the same order.
    executed : int
        How many were really run; the others came out of the action cache.
    duration_s : float
        Wall time of the batch in seconds.
    """

    requests: list[Request]
    outcomes: list[Outcome]
    executed: int
    duration_s: float

    def records(self) -> list[dict[str, Json]]:
        """The outcomes as a manifest holds them."""
        pairs = zip(self.requests, self.outcomes, strict=True)
        return [outcome_record(request, outcome) for request, outcome in pairs]


def outcome_record(request: Request, outcome: Outcome) -> dict[str, Json]:
    """An outcome without what differs between two equal runs, and how to get it again."""
    record = outcome.to_json()
    del record["duration_s"]
    record["input_dtype"] = request.input_dtype
    return record


def execute(
    spec: TaskSpec,
    context: StageContext,
    *,
    program: Program,
    code: Mapping[str, str],
    requests: Sequence[Request],
    checks: Checks,
) -> Execution:
    """Run `program` on every request that the action cache does not answer.

    Parameters
    ----------
    spec : TaskSpec
        Its stage, version and params go into each case's key.
    code : mapping of path to digest
        What the program consists of.
    requests : sequence of Request
    checks : Checks

    Raises
    ------
    Interrupted
        When the run was cancelled; finished cases are in the action cache.
    """
    begin = time.perf_counter()
    base = {
        "stage": f"{spec.stage}/{spec.version}",
        "code": dict(code),
        "params": spec.params,
        "env": {**context.environment, **dict(spec.packages)},
        "checks": asdict(checks),
    }
    shared = digest_json(base)
    keys = [_case_key(shared, request) for request in requests]
    found: dict[int, Outcome] = {}
    if not context.force:
        for n, key in enumerate(keys):
            outcome = _cached(context, key, requests[n])
            if outcome is not None:
                found[n] = outcome
    missing = [n for n in range(len(requests)) if n not in found]
    context.on_progress(Progress(spec.name, len(found), len(requests), 0))
    if missing:
        _run_missing(
            spec,
            context,
            program,
            requests,
            checks=checks,
            keys=keys,
            missing=missing,
            found=found,
        )
    return Execution(
        list(requests),
        [found[n] for n in range(len(requests))],
        len(missing),
        time.perf_counter() - begin,
    )


def _case_key(shared: str, request: Request) -> str:
    return digest_json([shared, request.case.identity(), request.input_dtype])


def _cached(context: StageContext, key: str, request: Request) -> Outcome | None:
    """An outcome from the action cache whose blob still exists."""
    record = context.cache.actions.get(key)
    if record is None:
        return None
    try:
        outcome = Outcome.from_json({**record, "index": request.case.index})
    except (KeyError, TypeError, ValueError):
        return None
    return outcome if context.cache.blobs.has(outcome.blob) else None


def _run_missing(
    spec: TaskSpec,
    context: StageContext,
    program: Program,
    requests: Sequence[Request],
    *,
    checks: Checks,
    keys: Sequence[str],
    missing: Sequence[int],
    found: dict[int, Outcome],
) -> None:
    place = {requests[n].case.index: n for n in missing}
    cached = len(found)
    fresh = 0

    def on_outcome(outcome: Outcome) -> None:
        nonlocal fresh
        fresh += 1
        n = place[outcome.index]
        if outcome.ok and context.unchanged():
            context.cache.actions.put(keys[n], outcome.to_json())
        context.on_progress(Progress(spec.name, cached + fresh, len(requests), fresh))

    outcomes = context.pool.run(
        program,
        [requests[n] for n in missing],
        checks=checks,
        on_outcome=on_outcome,
        publish=context.cache.blobs.publish,
        cancel=context.cancel,
    )
    for outcome in outcomes:
        found[place[outcome.index]] = outcome
    if any(n not in found for n in missing):
        raise Interrupted
