"""Judge clients' submissions, record failures, and store the results."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from gpuemu_flow.daemon.cases import Issued
from gpuemu_flow.daemon.issuing import wire_strides
from gpuemu_flow.daemon.jobs import Job
from gpuemu_flow.daemon.recording import record_failure
from gpuemu_flow.daemon.replies import RequestError, reproduction_info, validation_result
from gpuemu_flow.daemon.service import Service
from gpuemu_flow.daemon.submissions import Submission
from gpuemu_flow.fuzz.wire_ops import WireSubject
from gpuemu_flow.judging.judge_requests import GivenCase
from gpuemu_flow.judging.verdicts import with_violations
from gpuemu_flow.numerics.weakness import note_of_tolerance, note_of_zeros
from gpuemu_flow.store.result_records import CountedResult, NewResult
from gpuemu_flow.types import BAD, CheckResult, FailureKind, Json, Shape, Verdict
from gpuemu_flow.verdicts import weakness_alone

AT_ONCE, BYTES_AT_ONCE = 128, 8 << 20
"""Largest number of cases, and of bytes of their tensors, in one message to a worker."""

Numbered = tuple[int, Submission]


def judged(
    service: Service, submissions: Iterable[Submission], job: Job
) -> Iterator[tuple[int, Submission, CheckResult]]:
    """Yield submissions with their numbers and results, grouped by subject.

    Submissions are taken from the iterable while the worker judges earlier submissions. Their
    numbers are their positions in it, from 0.
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
    sent: deque[list[Numbered]] = deque()

    def of_subject() -> Iterator[Numbered]:
        yield first
        for number, one in following:
            if one.subject is subject and one.raised is None:
                yield number, one
            else:
                others.append((number, one))

    def groups() -> Iterator[list[GivenCase]]:
        for some in _groups(of_subject()):
            job.check()
            sent.append(some)
            yield [one.given for _, one in some]

    with service.references.checkout(subject, job) as session:
        for found in session.judge_groups(groups()):
            for (place, one), result in zip(sent.popleft(), found, strict=True):
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
            failure_id = self._record(one, result)
            new.result = {**new.result, "failure_id": failure_id}
            new.judged = replace(new.judged, failure_id=failure_id)
        self._service.results.add_many([new for _, _, new in self._judged])
        self._service.prune_results()
        return {number: new.result for number, _, new in self._judged}

    def _record(self, one: Submission, result: CheckResult) -> str:
        return record_failure(
            self._service,
            one.subject,
            one.given.case,
            result,
            one.given.inputs,
            output_shapes=_shapes(one),
            fuzz_config=None if one.issued is None else one.issued.fuzz_config,
        )


def _shapes(one: Submission) -> dict[str, Shape]:
    return {name: array.shape for name, array in one.given.outputs.items()}


def _repro_info(issued: Issued | None) -> Json:
    if issued is None:
        return None
    strides = wire_strides(issued.shape, issued.case.layout)
    return reproduction_info(issued.case, issued.shape, strides, issued.fuzz_config)
