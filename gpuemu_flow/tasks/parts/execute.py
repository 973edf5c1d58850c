"""Run an op or a reference on cases, with an action-cache entry for each case."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from gpuemu_flow.judge.known import MALFORMED, KnownResults
from gpuemu_flow.judge.verdicts import input_error
from gpuemu_flow.model.types import Json, Observation
from gpuemu_flow.store.discovered import Discovered
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import Interrupted, Progress, StageContext, TaskSpec
from gpuemu_flow.workers.api import Checks, Outcome, Program, Request

if TYPE_CHECKING:
    from gpuemu_flow.tasks.parts.tensors import Arrays


class BatchOutcomes(Struct, frozen=True):
    """The outcomes of a batch of requests."""

    requests: list[Request]
    outcomes: list[Outcome]
    executed: int
    duration_s: float
    used: Discovered = field(default_factory=Discovered)

    def records(self) -> list[dict[str, Json]]:
        """Return the outcomes in the form of a result."""
        pairs = zip(self.requests, self.outcomes, strict=True)
        return [outcome_record(request, outcome) for request, outcome in pairs]


def outcome_record(request: Request, outcome: Outcome) -> dict[str, Json]:
    """Return an outcome as results contain it: with its input dtype, without its duration.

    Equal results therefore have equal records.
    """
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
) -> BatchOutcomes:
    """Run `program` on every request that the action cache does not answer.

    Raises Interrupted: The run was cancelled. Finished cases are in the action cache.
    """
    begin = time.perf_counter()
    base = {
        "stage": f"{spec.stage}/{spec.version}",
        "code": dict(code),
        "params": spec.params,
        "env": {**context.environment, **context.packages},
        "checks": to_builtins(checks),
    }
    sources = Observation(files=frozenset(str(context.root / path) for path in spec.sources))
    known = KnownResults(
        context.cache.actions,
        digest_json(base),
        context.inputs,
        context.inputs.discover(sources, program.given),
        read=functools.partial(_read, context),
        write=Outcome.to_json,
        force=context.force,
        unchanged=context.unchanged,
        before_write=context.cache.blobs.flush,
    )
    found: dict[int, Outcome] = {}
    abouts: dict[int, Json] = {}
    for n, request in enumerate(requests):
        error = input_error(request.case)
        if error is not None:
            found[n] = Outcome(request.case.index, ok=False, error=error)
            continue
        abouts[n] = [request.case.identity(), request.input_dtype]
    found.update(known.find_all(abouts))
    if len(found) < len(requests) and not context.force:
        known.fetch(context.shared, program.given, abouts, found)
    missing = [n for n in range(len(requests)) if n not in found]
    context.on_progress(Progress(spec.name, len(found), len(requests), 0))
    if missing:
        try:
            _run(spec, context, program, requests, checks, known, abouts, missing, found)
        finally:
            known.flush()
            context.cache.blobs.flush()  # of results that are not kept, too
        known.join((abouts[n], found[n]) for n in abouts if found[n].ok)
    good = {n: found[n] for n in abouts if found[n].ok}
    known.share(context.shared, program.given, abouts, good, [each.blob for each in good.values()])
    elapsed = time.perf_counter() - begin
    restored = sum(outcome.duration_s for n, outcome in found.items() if n not in set(missing))
    return BatchOutcomes(
        list(requests),
        [replace(found[n], index=request.case.index) for n, request in enumerate(requests)],
        len(missing),
        restored + elapsed if missing else restored or elapsed,
        known.inputs.names,
    )


def _run(
    spec: TaskSpec,
    context: StageContext,
    program: Program,
    requests: Sequence[Request],
    checks: Checks,
    known: KnownResults[Outcome],
    abouts: Mapping[int, Json],
    missing: Sequence[int],
    found: dict[int, Outcome],
) -> None:
    """Run the requests whose numbers are in `missing`, add their outcomes to `found`, keep them.

    The key of an outcome covers all inputs that the program was seen to use before the outcome
    arrived.
    """
    places = iter(missing)  # several requests may be for one case, in other dtypes
    cached, fresh = len(found), 0

    def on_outcome(outcome: Outcome) -> None:
        nonlocal fresh
        fresh += 1
        n = next(places)
        if outcome.ok:
            known.put(abouts[n], outcome)
        context.on_progress(Progress(spec.name, cached + fresh, len(requests), fresh))

    outcomes = context.pool.run(
        program,
        [requests[n] for n in missing],
        checks=checks,
        on_outcome=on_outcome,
        on_observed=lambda seen: known.learn(seen, program.given),
        keep=lambda outputs: keep_outputs(context, outputs),
        draw=context.tensors.drawing([requests[n].case for n in missing]),
        cancel=context.cancel,
        trusted=spec.stage == stages.REFERENCE,
    )
    found.update(zip(missing, outcomes, strict=False))  # fewer after a cancellation
    if any(n not in found for n in missing):
        raise Interrupted


def keep_outputs(context: StageContext, outputs: Arrays) -> tuple[str, int]:
    """Store outputs as a blob, and keep them in memory; return their digest and their bytes."""
    from gpuemu_flow.workers.blobs import encode  # noqa: PLC0415 - loads numpy

    data = encode(outputs)
    digest = context.cache.blobs.add(data)
    context.tensors.keep_outputs(digest, outputs)
    return digest, len(data)


def _read(context: StageContext, record: Json | None) -> Outcome | None:
    """Return a stored outcome; None if there is none, it is damaged, or its blob is lost."""
    if record is None:
        return None
    try:
        outcome = Outcome.from_json(record)
        there = context.cache.blobs.has(outcome.blob)
    except MALFORMED:
        return None
    promised = context.shared is not None and context.shared.promises(outcome.blob)
    return outcome if there or promised else None
