"""Stages ``op`` and ``reference``: run a program on every case; find its outputs again.

Both read the cases, and the program's script with all its imports. They write the digest of the
outputs, or the error, for each case, and have an action-cache entry for each. Durations are not
written. Therefore, equal outputs give an equal result, and the comparison does not run again.
"""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from gpuemu_flow.judge.known import MALFORMED, KnownResults
from gpuemu_flow.judge.subject import (
    FULL_CHECKS,
    PLAIN,
    expected_dtypes,
    own_dtypes,
    probe_case,
    widens,
)
from gpuemu_flow.judge.verdicts import StoredCase, input_error
from gpuemu_flow.model.errors import Problem, StoreError
from gpuemu_flow.model.types import WIDE, Json, Observation, dtypes_to_try
from gpuemu_flow.store.keys import Discovered, digest_json, digest_record
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import (
    Interrupted,
    Progress,
    ReferenceParams,
    StageContext,
    StageResult,
    TaskSpec,
    params_of,
    program_of,
    read_planned,
)
from gpuemu_flow.workers.api import Checks, Outcome, Program, Request, was_given_up

if TYPE_CHECKING:
    from gpuemu_flow.judge.judge_requests import GivenCase
    from gpuemu_flow.tasks.base import Arrays


def run_op(spec: TaskSpec, context: StageContext, code: Mapping[str, str]) -> StageResult:
    """Run the op on the cases that have no result yet."""
    cases, _ = read_planned(spec, context)
    execution = execute(
        spec,
        context,
        program=program_of(spec.settings),
        code=code,
        requests=[Request(case) for case in cases],
        checks=FULL_CHECKS,
    )
    content = {
        "stage": spec.stage,
        "version": stages.VERSIONS[spec.stage],
        "outcomes": execution.records(),
    }
    return StageResult(
        content,
        complete=all(outcome.ok for outcome in execution.outcomes),
        executed=execution.executed > 0,
        values={
            "cases": len(execution.outcomes),
            "executed": execution.executed,
            "duration_s": execution.duration_s,
        },
        discovered=execution.used,
    )


def run_reference(spec: TaskSpec, context: StageContext, code: Mapping[str, str]) -> StageResult:
    """Run the reference on the cases that have no result yet, in float64 where it can.

    Float inputs are converted to float64, so that a low-precision op is compared with an accurate
    result. If the reference fails on a case in float64, it is run again in the dtype of the case.
    If this fails, too, its error is recorded. One more run shows the dtypes that outputs should
    have: it takes the smallest of the sample cases, and does not convert its inputs to float64.
    `judge.subject` implements these rules.
    """
    program = program_of(spec.settings)
    asked = params_of(ReferenceParams, spec.params).dtype
    cases, samples = read_planned(spec, context)

    def execute_all(requests: Sequence[Request]) -> BatchOutcomes:
        return execute(
            spec,
            context,
            program=program,
            code=code,
            requests=requests,
            checks=PLAIN,
        )

    runs: list[BatchOutcomes] = []
    records: dict[int, dict[str, Json]] = {}
    expected: dict[str, list[str]] = {}
    refused = cases
    for input_dtype in dtypes_to_try(widened=widens(spec.dtype, asked)):
        if refused:
            requests = [Request(case, input_dtype) for case in refused]
            probes = [Request(probe_case(samples))] if input_dtype == WIDE else []
            found = execute_all([*requests, *probes])
            runs.append(found)
            outcomes = found.outcomes[: len(requests)]
            of_cases = found.records()[: len(requests)]
            records.update({record["index"]: record for record in of_cases})
            if probes:
                probe = found.outcomes[-1]
                if was_given_up(probe):
                    runs.append(execute_all(probes))
                    probe = runs[-1].outcomes[0]
                expected = expected_dtypes(probe, outcomes, spec.dtype)
            elif not expected:
                ran = next((o for o in outcomes if o.ok), outcomes[0])
                expected = own_dtypes(ran, spec.dtype)
            pairs = zip(refused, outcomes, strict=True)
            refused = [case for case, outcome in pairs if not outcome.ok]
    content = {
        "stage": spec.stage,
        "version": stages.VERSIONS[spec.stage],
        "outcomes": [records[case.index] for case in cases],
        "expected_dtypes": expected,
    }
    return StageResult(
        content,
        complete=all(record["ok"] for record in records.values()),
        executed=any(r.executed for r in runs),
        values={
            "cases": len(records),
            "executed": sum(r.executed for r in runs),
            "duration_s": sum(r.duration_s for r in runs),
        },
        discovered=functools.reduce(operator.or_, (r.used for r in runs), Discovered()),
    )


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
    abouts: dict[int, str] = {}
    for n, request in enumerate(requests):
        error = input_error(request.case)
        if error is not None:
            found[n] = Outcome(request.case.index, ok=False, error=error)
            continue
        abouts[n] = digest_record((request.case.identity(), request.input_dtype))
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
    abouts: Mapping[int, str],
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
    from gpuemu_flow.workers.tensors import encode  # noqa: PLC0415 - loads numpy

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


# Find the output tensors that results name: in memory, in the cache, or by running again.


def with_outputs(
    spec: TaskSpec, context: StageContext, stored: Sequence[StoredCase]
) -> list[StoredCase]:
    """Return cases whose outputs exist. Those that are nowhere, not even in a shared cache, are
    made again: if these are other bytes, the case's record names them. Nothing of the pool may be
    held meanwhile, as running needs a worker of it. Raises Interrupted: The run was cancelled."""
    cases = list(stored)
    for role in (stages.OP, stages.REFERENCE):

        def lost(among: Iterable[int], role: str = role) -> list[int]:
            return [n for n in among if _found(context, getattr(cases[n], role)["blob"]) is None]

        missing = lost(range(len(cases)))
        if missing and context.shared is not None:
            context.shared.fetch_blobs(getattr(cases[n], role)["blob"] for n in missing)
            missing = lost(missing)
        again = _run_again(role, spec.settings[role], context, [cases[n] for n in missing])
        for n, one in zip(missing, again, strict=True):
            cases[n] = one
    return cases


def with_tensors(
    context: StageContext, batch: Sequence[StoredCase]
) -> list[tuple[StoredCase, GivenCase]]:
    """Return cases with their tensors. Raises StoreError: outputs were lost a moment ago."""
    from gpuemu_flow.judge.judge_requests import GivenCase  # noqa: PLC0415 - loads numpy

    draw = context.tensors.drawing([one.case for one in batch])
    given = []
    for one in batch:
        actual, expected = (_found(context, record["blob"]) for record in (one.op, one.reference))
        if actual is None or expected is None:
            message = "outputs of a case were deleted or damaged while it was judged"
            raise StoreError(Problem("cache-result", message, "run again"))
        given.append((one, GivenCase(one.case, draw(one.case), actual, expected=expected)))
    return given


def _found(context: StageContext, digest: str) -> Arrays | None:
    from gpuemu_flow.workers.tensors import BlobError, decode  # noqa: PLC0415 - loads numpy

    outputs = context.tensors.outputs(digest)
    if outputs is None and digest:
        data = context.cache.blobs.read(digest)
        if data is None:
            return None
        try:
            outputs = decode(data)
        except BlobError:
            return None
        context.tensors.keep_outputs(digest, outputs)
    return outputs


def _run_again(
    role: str, maker: Mapping[str, Json], context: StageContext, lost: Sequence[StoredCase]
) -> list[StoredCase]:
    if not lost:
        return []
    records = [getattr(stored, role) for stored in lost]
    requests = [
        Request(stored.case, record["input_dtype"])
        for stored, record in zip(lost, records, strict=True)
    ]
    outcomes = context.pool.run(
        program_of(maker),
        requests,
        # An op is watched as before: it may have damaged the file to be run without.
        checks=FULL_CHECKS if role == "op" else PLAIN,
        keep=lambda outputs: keep_outputs(context, outputs),
        draw=context.tensors.drawing([stored.case for stored in lost]),
        cancel=context.cancel,
    )
    context.cache.blobs.flush()
    if len(outcomes) != len(lost):
        raise Interrupted
    found = []
    for stored, old, request, outcome in zip(lost, records, requests, outcomes, strict=True):
        new = outcome_record(request, outcome)
        new["violations"] = old["violations"] or new["violations"]
        found.append(replace(stored, op=new) if role == "op" else replace(stored, reference=new))
    return found
