"""ValidateOp, SubmitOutput, SubmitOutputs: judge clients' outputs against the reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from gpuemu_flow.daemon.fields import Fields
from gpuemu_flow.daemon.jobs import Job
from gpuemu_flow.daemon.judging import JudgedReplies, broken_reference, judged
from gpuemu_flow.daemon.replies import RequestError
from gpuemu_flow.daemon.service import Service
from gpuemu_flow.daemon.submissions import CommonFields, Reader, Submission, seeds_of
from gpuemu_flow.errors import UsageError
from gpuemu_flow.types import Json

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
    """Yield the submissions of a request."""
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
