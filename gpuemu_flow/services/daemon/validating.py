"""ValidateOp, SubmitOutput, SubmitOutputs: judge clients' outputs against the reference."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.fuzz.failures import CODE, code_key
from gpuemu_flow.fuzz.wire_ops import WireSubject
from gpuemu_flow.judge.subject import provenance_of
from gpuemu_flow.judge.verdicts import with_violations
from gpuemu_flow.model.errors import UsageError
from gpuemu_flow.model.types import BAD, Case, CheckResult, FailureKind, Json, Shape, Verdict
from gpuemu_flow.model.verdicts import weakness_alone
from gpuemu_flow.numerics.checked_output import note_of_tolerance, note_of_zeros
from gpuemu_flow.services.daemon.fields import Fields
from gpuemu_flow.services.daemon.jobs import Job
from gpuemu_flow.services.daemon.replies import RequestError, reproduction_info, validation_result
from gpuemu_flow.services.daemon.service import Issued, Service
from gpuemu_flow.services.daemon.submissions import CommonFields, Reader, Submission, seeds_of
from gpuemu_flow.store.failures import SUBMITTED, FailureRecord
from gpuemu_flow.store.results import CountedResult, NewResult
from gpuemu_flow.workers import blobs

MAX_CASES = 10_000
"""Largest number of cases in one `SubmitOutputs`."""

VALIDATE, SUBMIT = "ValidateOp", "SubmitOutput"
_REPLY = {VALIDATE: "ValidationResult", SUBMIT: "SubmitResult"}


def validate_op(service: Service, fields: Fields, job: Job) -> dict[str, Json]:
    """Answer ``ValidateOp`` and ``SubmitOutput``: judge one output.

    The inputs are the client's own, or those of a case that the daemon handed out before.
    """
    replies = JudgedReplies(service)
    name = fields.name("op_name")
    common = CommonFields.of(service, fields, name)
    if fields.type == VALIDATE:
        one = Reader(service).validated(common, fields)
    else:
        handed_out = service.issued.handed_out(name, seeds_of([fields]))
        one = Reader(service, handed_out).submitted(common, fields, job)
    _judge_all(service, replies, [one], job)
    return {"type": _REPLY[fields.type], "result": replies.store()[0]}


def submit_outputs(service: Service, fields: Fields, job: Job) -> dict[str, Json]:
    """Answer ``SubmitOutputs``: judge the outputs for several cases, and store all results at once.

    If a case cannot be read or its reference fails, no result is stored.
    """
    replies = JudgedReplies(service)
    name = fields.name("op_name")
    common = CommonFields.of(service, fields, name)
    cases = fields.objects("cases", MAX_CASES)
    count = len(cases)
    reader = Reader(service, service.issued.handed_out(name, seeds_of(cases)))
    _judge_all(service, replies, _read_all(reader, common, cases, job), job)
    results = replies.store()
    return {"type": "Results", "results": [results[number] for number in range(count)]}


def _read_all(
    reader: Reader, common: CommonFields, cases: Sequence[Fields], job: Job
) -> Iterator[Submission]:
    for number, fields in enumerate(cases):
        job.check()
        try:
            yield reader.submitted(common, fields, job)
        except RequestError as error:
            raise RequestError(error.code, f"cases[{number}]: {error}") from None
        except UsageError as error:
            where = f"cases[{number}]"
            problems = [replace(p, message=f"{where}: {p.message}") for p in error.problems]
            raise UsageError(*problems) from None


def _judge_all(
    service: Service, replies: JudgedReplies, submissions: Iterable[Submission], job: Job
) -> None:
    """Judge the submissions of one request; raise RequestError if a reference fails."""
    refusals: dict[int, RequestError] = {}
    for number, one, result in judged(service, submissions, job):
        refusal = broken_reference(result)
        if refusal is None:
            replies.put(number, one, result)
        else:
            refusals[number] = refusal
    job.check()
    if refusals:
        raise refusals[min(refusals)]


# Judge clients' submissions, record failures, and store the results.


AT_ONCE, BYTES_AT_ONCE = 128, 8 << 20
"""Largest number of cases, and of bytes of their tensors, in one message to a worker."""

Numbered = tuple[int, Submission]


def judged(
    service: Service, submissions: Iterable[Submission], job: Job
) -> Iterator[tuple[int, Submission, CheckResult]]:
    """Yield submissions with their numbers and results, grouped by subject.

    Their numbers are their positions in the iterable, from 0.
    """
    left: Iterable[Numbered] = enumerate(submissions)
    while True:
        others: list[Numbered] = []
        first = None
        for number, one in left:
            if one.raised is None:
                first = number, one
                break
            yield number, one, one.raised
        if first is None:
            return
        yield from _judged_of_subject(service, first, left, others, job)
        left = others


def _judged_of_subject(
    service: Service,
    first: Numbered,
    following: Iterable[Numbered],
    others: list[Numbered],
    job: Job,
) -> Iterator[tuple[int, Submission, CheckResult]]:
    """Judge `first` and those of the `following` submissions that have the same subject.

    Yield them as `judged` does. All other submissions are appended to `others`.
    """
    subject = first[1].subject

    def of_subject() -> Iterator[Numbered]:
        yield first
        for number, one in following:
            if one.subject is subject and one.raised is None:
                yield number, one
            else:
                others.append((number, one))

    with service.references.checkout(subject, job) as session:
        for some in _groups(of_subject()):
            job.check()
            results = session.judge_given([one.given for _, one in some])
            for (place, one), result in zip(some, results, strict=True):
                yield place, one, result


def _groups(submissions: Iterable[Numbered]) -> Iterator[list[Numbered]]:
    """Split submissions into groups, each of which fits one message to a worker."""
    some: list[Numbered] = []
    size = 0
    for number, one in submissions:
        given = one.given
        nbytes = sum(a.nbytes for a in (*given.inputs.values(), *given.outputs.values()))
        if some and (len(some) >= AT_ONCE or size + nbytes > BYTES_AT_ONCE):
            yield some
            some, size = [], 0
        some.append((number, one))
        size += nbytes
    if some:
        yield some


def broken_reference(result: CheckResult) -> RequestError | None:
    """Return error ``ReferenceScriptFailed`` if the reference or a generator failed; else None."""
    first = result.failures[0] if result.failures else None
    if first is not None and first.kind in (FailureKind.REFERENCE, FailureKind.GENERATOR):
        text = "\n".join([first.message, *result.all_notes])
        return RequestError("ReferenceScriptFailed", text)
    return None


class JudgedReplies:
    """Collects judged submissions and makes the replies; `store` records results and failures."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._begin = time.perf_counter()
        self._judged: list[tuple[int, WireSubject, NewResult]] = []
        self._bad: list[tuple[Submission, CheckResult, NewResult]] = []

    def put(self, number: int, one: Submission, found: CheckResult) -> None:
        """Add a submission's verdict, and make its reply."""
        notes = (*one.notes, *note_of_tolerance(found))
        notes = notes if one.issued is not None else (*notes, *note_of_zeros(found))
        result = replace(found, notes=(*notes, *found.notes)) if notes else found
        result = with_violations(result, one.violations)
        # Stored, and counted with the op's other cases, is the verdict on the case.
        alone = one.source == "validate" and weakness_alone(result)
        told = replace(result, verdict=Verdict.INCONCLUSIVE) if alone else result
        seconds = time.perf_counter() - self._begin
        seed = one.given.case.seed
        judged = CountedResult.of(result)
        name = one.common.name
        reply = validation_result(
            name,
            seed,
            told,
            output_shapes=_shapes(one) if result.failures else None,
            duration_s=seconds / (len(self._judged) + 1),
            repro_info=_repro_info(one.issued),
        )
        new = NewResult(
            name,
            seed,
            one.dtype,
            judged,
            reply,
            one.source,
            client=one.common.client,
        )
        if result.verdict in BAD:
            self._bad.append((one, result, new))
        self._judged.append((number, one.subject, new))

    def store(self) -> dict[int, Mapping[str, Json]]:
        """Store all results in one transaction, and return replies by submission number.

        Raises StoreError: The results cannot be stored. None of them is.
        """
        judged_by: dict[int, str] = {}
        for _, subject, new in self._judged:
            if id(subject) not in judged_by:
                judged_by[id(subject)] = subject.judged_by
            new.judged_by = judged_by[id(subject)]
        for one, result, new in self._bad:
            failure_id = record_failure(
                self._service,
                one.subject,
                one.given.case,
                result,
                one.given.inputs,
                output_shapes=_shapes(one),
                fuzz_config=None if one.issued is None else one.issued.fuzz_config,
            )
            new.result = {**new.result, "failure_id": failure_id}
            new.judged = replace(new.judged, failure_id=failure_id)
        self._service.results.add_many([new for _, _, new in self._judged])
        self._service.prune_results()
        return {number: new.result for number, _, new in self._judged}


def _shapes(one: Submission) -> dict[str, Shape]:
    return {name: array.shape for name, array in one.given.outputs.items()}


def _repro_info(issued: Issued | None) -> Json:
    if issued is None:
        return None
    return reproduction_info(issued.case, issued.shape, issued.fuzz_config)


# Record failures that the daemon found, so that all commands can use them.


def record_failure(
    service: Service,
    subject: WireSubject,
    case: Case,
    result: CheckResult,
    inputs: Mapping[str, NDArray[Any]],
    *,
    output_shapes: Mapping[str, Shape],
    fuzz_config: Json,
) -> str:
    """Record a failing case with its inputs, and return its id."""
    programs = subject.subject
    workspace = service.configured().workspace
    runs_here = programs.op.kind != SUBMITTED
    code = {CODE: code_key(workspace, programs.name, case.dtype)} if runs_here else {}
    record = FailureRecord.of(
        programs.name,
        case,
        result,
        source="daemon",
        provenance={
            **provenance_of(programs),
            **code,
            "fuzz_config": fuzz_config,
            "output_shapes": {name: list(shape) for name, shape in output_shapes.items()},
        },
        environment=workspace.environment,
    )
    values = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
    with service.failures_lock:
        return service.failures.add(record, blobs.encode(values))
