"""ValidateOp, SubmitOutput, SubmitOutputs: judge clients' outputs against the reference."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache

from gpuemu_flow.daemon.fields import Fields
from gpuemu_flow.daemon.jobs import CancelledJobError, Job, JobGroup
from gpuemu_flow.daemon.judging import JudgedReplies, broken_reference, judged
from gpuemu_flow.daemon.replies import RequestError
from gpuemu_flow.daemon.service import Service
from gpuemu_flow.daemon.submissions import CommonFields, Reader, Submission, seeds_of
from gpuemu_flow.errors import CancelledRunError, FlowError, UsageError
from gpuemu_flow.types import Json
from gpuemu_flow.wire.envelope import Encoded, ParsedMessage

MAX_CASES = 10_000
"""Largest number of cases in one `SubmitOutputs`."""
TOGETHER_BYTES = 1 << 16
"""Largest size of a message that may be answered in a group."""

VALIDATE, SUBMIT = "ValidateOp", "SubmitOutput"
_REPLY = {VALIDATE: "ValidationResult", SUBMIT: "SubmitResult"}


def validate_op(service: Service, fields: Fields, job: Job) -> Encoded:
    """Answer ``ValidateOp`` and ``SubmitOutput``: judge one output.

    The inputs are the client's own, or those of a case that the daemon handed out before.
    """
    replies = JudgedReplies(service)
    name = fields.name("op_name")
    common = CommonFields.of(service, fields, name, service.op(name))
    one = _read(_reader(service, name, [fields]), common, fields, job)
    _judge_all(service, replies, [one], job)
    return _reply(fields, replies.store()[0])


def submit_outputs(service: Service, fields: Fields, job: Job) -> Encoded:
    """Answer ``SubmitOutputs``: judge the outputs for several cases, and store all results at once.

    If a case cannot be read or its reference fails, no result is stored.
    """
    replies = JudgedReplies(service)
    name = fields.name("op_name")
    common = CommonFields.of(service, fields, name, service.op(name))
    cases = fields.take_objects("cases", MAX_CASES)
    count = len(cases)
    reader = Reader(service, service.issued.handed_out(name, seeds_of(cases)))
    _judge_all(service, replies, _read_all(reader, common, cases, job), job)
    texts = replies.store()
    joined = ",".join(texts[number] for number in range(count))
    return Encoded(f'{{"type":"Results","results":[{joined}]}}')


def _read_all(
    reader: Reader, common: CommonFields, cases: deque[Fields], job: Job
) -> Iterator[Submission]:
    """Yield the submissions of a request; remove each from `cases` as it is read."""
    for number in range(len(cases)):
        job.check()
        try:
            yield reader.submitted(common, cases.popleft(), job)
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
        if result is None:
            raise RuntimeError("each case of a request has a verdict")
        refusal = broken_reference(result)
        if refusal is None:
            replies.put(number, one, result)
        else:
            refusals[number] = refusal
    job.check()
    if refusals:
        raise refusals[min(refusals)]


def op_of_group(envelope: ParsedMessage, size: int) -> str:
    """Return a request's op if the request can be answered in a group; else an empty string.

    Such a request has a single case of small tensors.

    Parameters
    ----------
    envelope : ParsedMessage
    size : int
        Size of the message in bytes.
    """
    fields = envelope.fields
    kind, name = fields.get("type"), fields.get("op_name")
    if size > TOGETHER_BYTES or kind not in (VALIDATE, SUBMIT) or not isinstance(name, str):
        return ""
    held = [fields.get("output"), *_values(fields.get("inputs")), *_values(fields.get("outputs"))]
    by_file = any(isinstance(tensor, dict) and "file" in tensor for tensor in held)
    return "" if by_file else name


def _values(value: Json) -> list[Json]:
    return list(value.values()) if isinstance(value, dict) else []


def judge_group(
    service: Service, name: str, requests: Sequence[tuple[Fields, Job]]
) -> list[Encoded | Exception | None]:
    """Answer several requests for one op together, to save messages and transactions.

    Returns
    -------
    list
        For each request: its reply, or the error with which the request is refused, or None if the
        request must be answered alone. That happens if the group gave no verdict for it, or if an
        error may have been caused by another request.
    """
    replies = JudgedReplies(service)
    answers: list[Encoded | Exception | None] = [None] * len(requests)
    read: list[tuple[int, Submission]] = []
    try:
        found = service.op(name)
    except (RequestError, FlowError):
        return answers
    reader = _reader(service, name, [fields for fields, _ in requests])
    # If an input has changed, all requests of the group are judged again, each alone.
    reader.checked_later = True
    is_file = cache(os.path.isfile)  # clients that run the same program name the same files
    for number, (fields, job) in enumerate(requests):
        try:
            job.check()
            common = CommonFields.of(service, fields, name, found, is_file)
            read.append((number, _read(reader, common, fields, job)))
        except (CancelledJobError, RequestError, FlowError) as error:
            answers[number] = error
    numbers = [number for number, _ in read]
    jobs = JobGroup([requests[number][1] for number in numbers])
    try:
        for place, one, result in judged(service, [one for _, one in read], jobs):
            number = numbers[place]
            if result is None:
                continue
            if requests[number][1].cancelled.is_set():
                answers[number] = CancelledJobError()
                continue
            answers[number] = broken_reference(result)
            if answers[number] is None:
                replies.put(number, one, result)
    except (CancelledJobError, CancelledRunError):
        # Also those that a reference refused, which may have changed since it was loaded.
        return [None if number in numbers else answers[number] for number in range(len(answers))]
    try:
        for number, text in replies.store().items():
            answers[number] = _reply(requests[number][0], text)
    except FlowError as error:
        for number in replies.numbers():
            answers[number] = error
    return answers


def _reader(service: Service, name: str, requests: Sequence[Fields]) -> Reader:
    """Return a reader for requests of one op that have already arrived."""
    submitted = [fields for fields in requests if fields.type == SUBMIT]
    seeds = seeds_of(submitted)
    return Reader(service, service.issued.handed_out(name, seeds) if seeds else ())


def _read(reader: Reader, common: CommonFields, fields: Fields, job: Job) -> Submission:
    """Read a request that has only one case."""
    if fields.type == VALIDATE:
        return reader.validated(common, fields)
    return reader.submitted(common, fields, job)


def _reply(fields: Fields, text: str) -> Encoded:
    return Encoded(f'{{"type":"{_REPLY[fields.type]}","result":{text}}}')
