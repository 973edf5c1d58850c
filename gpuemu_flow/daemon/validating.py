"""ValidateOp, SubmitOutput, SubmitOutputs: judge what clients computed against the reference."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.config.model_ops import OpConfig
from gpuemu_flow.daemon.cases import Issued, digest_of
from gpuemu_flow.daemon.fields import Fields, invalid
from gpuemu_flow.daemon.fitting import demand_fit, demand_names
from gpuemu_flow.daemon.issuing import issued_case
from gpuemu_flow.daemon.jobs import Job
from gpuemu_flow.daemon.making import wire_strides
from gpuemu_flow.daemon.recording import record_failure
from gpuemu_flow.daemon.reload import Configured
from gpuemu_flow.daemon.replies import RequestError, reproduction_info, validation_result
from gpuemu_flow.daemon.service import Service
from gpuemu_flow.errors import UsageError
from gpuemu_flow.fuzz.wire_ops import Query, WireSubject, precision_of, tolerance_of
from gpuemu_flow.judging.judge_given import GivenCase
from gpuemu_flow.judging.verdicts import EXCEPTION
from gpuemu_flow.numerics.dtypes import dtype_name, numpy_dtype
from gpuemu_flow.numerics.weakness import note_of_zeros
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.store.results import CountedResult, NewResult
from gpuemu_flow.types import (
    BAD,
    DTYPES,
    Case,
    CheckResult,
    Failure,
    FailureKind,
    InputSpec,
    Json,
    Verdict,
)

CHANGED_INPUTS = (
    "these are not the inputs that the case was handed out with: an op that changes its inputs in "
    "place must be given copies"
)

MAX_ERROR = 4096
"""Characters of the text of an exception that are taken."""

AT_ONCE, BYTES_AT_ONCE = 256, 8 << 20
"""Cases, and bytes of their tensors, in one message to a worker."""

Arrays = Mapping[str, NDArray[Any]]


MAX_CASES = 10_000
"""Cases in one `SubmitOutputs`."""


@dataclass(frozen=True)
class Terms:
    """The part of a request that holds for all of its cases."""

    name: str
    op: OpConfig
    configured: Configured
    kwargs: Mapping[str, Json]
    tolerance: tuple[float, float] | None
    precision: str
    client: Mapping[str, Json]
    files: Mapping[str, str]

    @classmethod
    def of(cls, service: Service, fields: Fields) -> Terms:
        """Read the part of a request that holds for all of its cases."""
        name = fields.name("op_name")
        configured, op = service.op(name)
        client, files = fields.client(), fields.client_files()
        try:
            tolerance, kwargs = tolerance_of(fields.kwargs(), op)
        except ValueError as error:
            raise invalid(str(error)) from None
        precision, kwargs = precision_of(kwargs, op)
        known = _known_files(files, configured.workspace.root)
        return cls(name, op, configured, kwargs, tolerance, precision, client, known)


@dataclass(frozen=True)
class Submission:
    """One output to be judged.

    Attributes
    ----------
    raised : CheckResult or None
        The verdict on an op that raised an exception in the client.
    issued : Issued or None
        The case that was handed out; None where the inputs are the client's own.
    """

    given: GivenCase
    subject: WireSubject
    dtype: str
    raised: CheckResult | None
    issued: Issued | None
    notes: tuple[str, ...]
    source: str


def validate_op(service: Service, fields: Fields, job: Job) -> dict[str, Json]:
    """Answer ``ValidateOp``: judge the client's own inputs and output."""
    begin = time.perf_counter()
    terms = Terms.of(service, fields)
    one = _read(terms, fields, service.results.time_ns(), None, "validate", {})
    (result,) = _judge(service, terms, [one], job, begin)
    return {"type": "ValidationResult", "result": result}


def submit_output(service: Service, fields: Fields, job: Job) -> dict[str, Json]:
    """Answer ``SubmitOutput``: judge the output for a case that was handed out."""
    begin = time.perf_counter()
    terms = Terms.of(service, fields)
    handed_out = service.issued.handed_out(terms.name, [fields.u64("seed")])
    one = _submitted(service, terms, fields, job, handed_out, {})
    (result,) = _judge(service, terms, [one], job, begin)
    return {"type": "SubmitResult", "result": result}


def submit_outputs(service: Service, fields: Fields, job: Job) -> dict[str, Json]:
    """Answer ``SubmitOutputs``: judge the outputs for several cases, and store all results at once.

    Where one of the cases cannot be read, or has no reference to compare with, none is stored.
    """
    begin = time.perf_counter()
    terms = Terms.of(service, fields)
    subjects: dict[tuple[object, ...], WireSubject] = {}
    submissions = []
    cases = list(fields.objects("cases", MAX_CASES))
    handed_out = service.issued.handed_out(terms.name, _seeds(cases))
    for number, case in enumerate(cases):
        job.check()
        try:
            submissions.append(_submitted(service, terms, case, job, handed_out, subjects))
        except RequestError as error:
            raise RequestError(error.code, f"cases[{number}]: {error}") from None
        except UsageError as error:
            where = f"cases[{number}]"
            problems = [replace(p, message=f"{where}: {p.message}") for p in error.problems]
            raise UsageError(*problems) from None
    return {"type": "Results", "results": _judge(service, terms, submissions, job, begin)}


def _seeds(cases: Iterable[Fields]) -> set[int]:
    """Return the seeds of cases; one that is none is refused when its case is read."""
    seeds = set()
    for case in cases:
        with suppress(RequestError):
            seeds.add(case.u64("seed"))
    return seeds


def _submitted(
    service: Service,
    terms: Terms,
    fields: Fields,
    job: Job,
    handed_out: Collection[int],
    subjects: dict[tuple[object, ...], WireSubject],
) -> Submission:
    seed = fields.u64("seed")
    issued = issued_case(service, terms.name, seed, job) if seed in handed_out else None
    return _read(terms, fields, seed, issued, "submit", subjects)


def _read(
    terms: Terms,
    fields: Fields,
    seed: int,
    issued: Issued | None,
    source: str,
    subjects: dict[tuple[object, ...], WireSubject],
) -> Submission:
    """Read one case of a request, and find its subject.

    Parameters
    ----------
    subjects : dict
        Subjects of the request's earlier cases, since each is compared with its files.
    """
    op = terms.op
    inputs = _ordered(fields.tensors("inputs"), op.input_names)
    demand_names(op, inputs)
    dtype = _leading_dtype(inputs.values())
    if issued is None and inputs:
        demand_fit(op, inputs, dtype)
    raised = _raised(fields)
    outputs = _outputs(fields) if raised is None else {}
    notes: tuple[str, ...] = ()
    if issued is not None and digest_of(inputs) != issued.digest:
        # Judged as what it is: inputs of the client's own.
        notes = (CHANGED_INPUTS,)
        issued = None
        source = "validate"
    if issued is not None and issued.case.dtype == "bfloat16" and dtype != "bfloat16":
        # Such cases travel as float32, or as the float16 that the published client makes of them.
        dtype = "bfloat16"
        inputs, outputs = _narrowed(inputs), _narrowed(outputs)
    elif not inputs:
        dtype = _leading_dtype(outputs.values())
    names = tuple(inputs) if set(inputs) != set(op.input_names) else ()
    case = _case(issued, inputs, dtype, seed)
    key = (dtype, names, tuple((spec.name, spec.shape, spec.dtype) for spec in case.inputs))
    subject = subjects.get(key)
    if subject is None:
        query = Query(terms.name, dtype, terms.kwargs, terms.tolerance, names, terms.precision)
        subject = subjects[key] = terms.configured.subjects.make(query, case)
    outputs = {key or subject.output_name: array for key, array in outputs.items()}
    given = GivenCase(case, inputs, outputs)
    return Submission(given, subject, dtype, raised, issued, notes, source)


def _judge(
    service: Service, terms: Terms, submissions: Sequence[Submission], job: Job, begin: float
) -> list[dict[str, Json]]:
    """Judge cases, record those that failed, and store all results; return the replies."""
    results = _judged(service, submissions, job)
    job.check()
    for result in results:
        refuse_broken_reference(result)
    seconds = (time.perf_counter() - begin) / max(1, len(submissions))
    keys = {id(one.subject): one.subject for one in submissions}
    judged_by = {key: subject.judged_by for key, subject in keys.items()}
    new = []
    for one, found in zip(submissions, results, strict=True):
        case, outputs = one.given.case, one.given.outputs
        notes = one.notes if one.issued is not None else (*one.notes, *note_of_zeros(found))
        result = replace(found, notes=(*notes, *found.notes)) if notes else found
        shapes = {key: array.shape for key, array in outputs.items()}
        reply = validation_result(
            terms.name,
            case.seed,
            result,
            output_shapes=shapes,
            duration_s=seconds,
            repro_info=_repro_info(one.issued),
        )
        if result.verdict in BAD:
            reply["failure_id"] = record_failure(
                service,
                one.subject,
                case,
                result,
                one.given.inputs,
                output_shapes=shapes,
                fuzz_config=None if one.issued is None else one.issued.fuzz_config,
            )
        judged = CountedResult.of(result, reply.get("failure_id", ""))
        new.append(
            NewResult(
                terms.name,
                case.seed,
                one.dtype,
                judged,
                reply,
                one.source,
                judged_by=judged_by[id(one.subject)],
                client=terms.client,
                files=terms.files,
            )
        )
    service.results.add_many(new)
    return [dict(one.result) for one in new]


def _judged(service: Service, submissions: Sequence[Submission], job: Job) -> list[CheckResult]:
    """Judge cases, those of one subject by the same warm programs."""
    results: list[CheckResult | None] = [one.raised for one in submissions]
    waiting: dict[int, list[int]] = {}
    for number, one in enumerate(submissions):
        if one.raised is None:
            waiting.setdefault(id(one.subject), []).append(number)
    for numbers in waiting.values():
        with service.references.checkout(submissions[numbers[0]].subject, job) as session:
            for some in _groups(numbers, submissions):
                job.check()
                found = session.judge_given([submissions[number].given for number in some])
                for number, result in zip(some, found, strict=True):
                    results[number] = result
    return [result for result in results if result is not None]


def _groups(numbers: Iterable[int], submissions: Sequence[Submission]) -> Iterator[list[int]]:
    """Yield cases that go to a worker together: a few large ones, or many small ones."""
    some: list[int] = []
    size = 0
    for number in numbers:
        given = submissions[number].given
        nbytes = sum(a.nbytes for a in (*given.inputs.values(), *given.outputs.values()))
        if some and (len(some) >= AT_ONCE or size + nbytes > BYTES_AT_ONCE):
            yield some
            some, size = [], 0
        some.append(number)
        size += nbytes
    if some:
        yield some


def _known_files(files: Mapping[str, str], root: Path) -> dict[str, str]:
    """Return those files of a client's code that exist here, relative to the workspace if inside.

    Files that are not here, such as those of a client in a container, cannot be checked later.
    """
    found = {}
    for path, digest in files.items():
        if Path(path).is_file():
            inside = Path(path).is_relative_to(root)
            found[str(Path(path).relative_to(root)) if inside else path] = digest
    return found


def refuse_broken_reference(result: CheckResult) -> None:
    """Raise RequestError ``ReferenceScriptFailed`` if there is nothing to compare with."""
    first = result.failures[0] if result.failures else None
    if first is not None and first.kind in (FailureKind.REFERENCE, FailureKind.GENERATOR):
        raise RequestError("ReferenceScriptFailed", "\n".join([first.message, *result.all_notes]))


def _raised(fields: Fields) -> CheckResult | None:
    """Return the verdict on a case whose op raised in the client; None if it returned outputs."""
    if not fields.has("error"):
        return None
    if fields.has("output") or fields.has("outputs"):
        raise invalid("the request has both an error and an output: an op gives only one of them")
    text = fields.string("error").strip()
    if not 0 < len(text) <= MAX_ERROR:
        raise invalid(f"error must be a text of 1 to {MAX_ERROR} characters")
    shown = "".join(c if c.isprintable() else " " for c in text)
    kind = shown.partition(":")[0]
    why = kind if kind.isidentifier() else EXCEPTION
    failure = Failure(FailureKind.EXECUTION, f"the op: {shown}", why=why)
    return CheckResult(Verdict.ERROR, (failure,))


def _outputs(fields: Fields) -> dict[str, NDArray[Any]]:
    """Return the outputs by name; the protocol's single one has the empty name."""
    if fields.has("outputs"):
        outputs = fields.tensors("outputs")
        if not outputs:
            raise invalid("outputs is empty")
        return outputs
    return {"": fields.tensor("output")}


def _ordered(inputs: Mapping[str, NDArray[Any]], names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Sort names in the op's own order, with unknown names last."""
    known = {name: inputs[name] for name in names if name in inputs}
    return {**known, **inputs}


def _leading_dtype(arrays: Any) -> str:
    """Return the dtype of a case: that of the first float input, else of the first input."""
    names = [dtype_name(array.dtype) or "float32" for array in arrays]
    floats = [name for name in names if DTYPES[name].kind == "float"]
    return (floats or names or ["float32"])[0]


def _narrowed(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Return float tensors as bfloat16."""
    bfloat16 = numpy_dtype("bfloat16")
    with np.errstate(over="ignore", invalid="ignore"):
        return {
            name: array.astype(bfloat16)
            if DTYPES[dtype_name(array.dtype) or ""].kind == "float"
            else array
            for name, array in arrays.items()
        }


def _case(issued: Issued | None, inputs: Arrays, dtype: str, seed: int) -> Case:
    specs = tuple(
        InputSpec(name, array.shape, dtype_name(array.dtype) or dtype, position=position)
        for position, (name, array) in enumerate(inputs.items())
    )
    if issued is not None:
        given = [(spec.name, spec.shape, spec.dtype) for spec in issued.case.inputs]
        if given == [(spec.name, spec.shape, spec.dtype) for spec in specs]:
            return issued.case
    return Case(
        index=0,
        seed=seed,
        dtype=dtype,
        layout="contiguous",
        strategy="uniform",
        inputs=specs,
        shape_class="submitted",
    )


def _repro_info(issued: Issued | None) -> Json:
    if issued is None:
        return None
    strides = wire_strides(issued.shape, issued.case.layout)
    return reproduction_info(issued.case, issued.shape, strides, issued.fuzz_config)
