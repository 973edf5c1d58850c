"""Read clients' submissions: an op's inputs and its output, or the error that it raised."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.cases.op_schema import BUILTIN_SCHEMAS, SAME_SHAPE_BUILTINS, TensorDef
from gpuemu_flow.config.model import OpConfig
from gpuemu_flow.fuzz.failures import CODE, code_key
from gpuemu_flow.fuzz.wire_ops import Query, WireSubject, precision_of, tolerance_of
from gpuemu_flow.judge.judge_requests import GivenCase
from gpuemu_flow.judge.subject import provenance_of
from gpuemu_flow.judge.verdicts import EXCEPTION, with_violations
from gpuemu_flow.model.errors import Problem, UsageError, did_you_mean
from gpuemu_flow.model.syntax import ExpressionError, compute, names_in
from gpuemu_flow.model.types import (
    BAD,
    DTYPES,
    Case,
    CheckResult,
    Failure,
    FailureKind,
    InputSpec,
    Json,
    Shape,
    Verdict,
)
from gpuemu_flow.model.verdicts import weakness_alone
from gpuemu_flow.numerics.checked_output import note_of_tolerance, note_of_zeros
from gpuemu_flow.numerics.dtypes import bytes_of, dtype_name, numpy_dtype
from gpuemu_flow.services.daemon.issuing import issued_case, issued_inputs
from gpuemu_flow.services.daemon.replies import (
    Fields,
    RequestError,
    invalid,
    reproduction_info,
    validation_result,
)
from gpuemu_flow.services.daemon.service import Configured, Issued, Job, Service, digest_of, seed_of
from gpuemu_flow.store.failures import SUBMITTED, FailureRecord
from gpuemu_flow.store.results import CountedResult, NewResult
from gpuemu_flow.workers.tensors import encode

OTHER_INPUTS = (
    "judged as inputs of the client's own: they have other shapes or dtypes than those that the "
    "case was handed out with"
)

MAX_ERROR = 4096
"""Largest number of characters that are kept of an exception's text."""

Arrays = Mapping[str, NDArray[Any]]


class CommonFields(Struct, frozen=True):
    """The fields of a request that apply to all of its cases."""

    name: str
    op: OpConfig
    configured: Configured
    kwargs: Mapping[str, Json]
    tolerance: tuple[float, float] | None
    precision: str
    client: Mapping[str, Json]
    asked: tuple[object, ...]

    @classmethod
    def of(
        cls,
        service: Service,
        fields: Fields,
        name: str,
    ) -> CommonFields:
        configured, op = service.op(name)
        try:
            tolerance, kwargs = tolerance_of(fields.kwargs(), op)
        except ValueError as error:
            raise invalid(str(error)) from None
        precision, kwargs = precision_of(kwargs, op)
        asked = (tuple((key, repr(kwargs[key])) for key in sorted(kwargs)), tolerance, precision)
        client = fields.client()
        return cls(name, op, configured, kwargs, tolerance, precision, client, asked)


class Submission(Struct, frozen=True):
    """One output to be judged."""

    common: CommonFields
    given: GivenCase
    subject: WireSubject
    dtype: str
    raised: CheckResult | None
    issued: Issued | None
    source: str
    violations: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()


class _Form(Struct):
    """The properties that cases share if their inputs have equal names, shapes and dtypes."""

    dtype: str
    specs: tuple[InputSpec, ...]
    subjects: dict[tuple[object, ...], WireSubject] = field(default_factory=dict)


class Reader(Struct):
    """Reads the submissions of one request."""

    service: Service
    handed_out: Collection[int] = ()
    _forms: dict[tuple[object, ...], _Form] = field(default_factory=dict)

    def validated(self, common: CommonFields, fields: Fields) -> Submission:
        inputs = fields.tensors("inputs")
        seed = seed_of(common.name, inputs, common.asked)
        return self._read(common, fields, seed, inputs, None, "validate")

    def submitted(self, common: CommonFields, fields: Fields, job: Job) -> Submission:
        seed = fields.u64("seed")
        inputs = fields.tensors("inputs")
        issued = None
        if seed in self.handed_out:
            issued = issued_case(self.service, common.name, seed, job)
        if issued is None or digest_of(inputs) == issued.digest:
            return self._read(common, fields, seed, inputs, issued, "submit")
        sent = issued_inputs(self.service, common.name, seed, job) or {}
        changed = changed_elements(sent, inputs) if digest_of(sent) == issued.digest else {}
        if changed:
            # The op changed its arguments in place: the reference must see what the op saw.
            found = self._read(common, fields, seed, sent, issued, "submit")
            violations = _violations(changed, common.op, sent)
            return replace(found, violations=(*found.violations, *violations))
        found = self._read(common, fields, seed, inputs, None, "validate")
        return replace(found, notes=(OTHER_INPUTS,))

    def _read(
        self,
        common: CommonFields,
        fields: Fields,
        seed: int,
        inputs: Arrays,
        issued: Issued | None,
        source: str,
    ) -> Submission:
        op = common.op
        if tuple(inputs) != op.input_names:
            inputs = _ordered(inputs, op.input_names)
        form = self._form(op, inputs, is_issued=issued is not None)
        raised = _raised(fields)
        outputs = _outputs(fields) if raised is None else {}
        if issued is not None and issued.case.dtype == "bfloat16" and form.dtype != "bfloat16":
            # bfloat16 cases are sent as float32, which the published client converts to float16.
            inputs, outputs = _narrowed(inputs), _narrowed(outputs)
            form = self._form(op, inputs, is_issued=True, dtype="bfloat16")
        elif not inputs:
            dtype = _leading_dtype(outputs.values())
            form = self._form(op, inputs, is_issued=issued is not None, dtype=dtype)
        case = _case(issued, form.specs, form.dtype, seed)
        subject = form.subjects.get(common.asked)
        if subject is None:
            query = _query(common, form.dtype, inputs)
            subject = form.subjects[common.asked] = common.configured.subjects.make(query, case)
        outputs = {key or subject.output_name: array for key, array in outputs.items()}
        given = GivenCase(case, inputs, outputs)
        modified = fields.counts("modified", inputs)
        violations = _violations(modified, op, inputs) if modified else ()
        return Submission(common, given, subject, form.dtype, raised, issued, source, violations)

    def _form(self, op: OpConfig, inputs: Arrays, *, is_issued: bool, dtype: str = "") -> _Form:
        """Return the `_Form` for a case's inputs, and check inputs whose form is new. Cases whose
        inputs have equal names, shapes and dtypes get the same object, if `is_issued` and `dtype`
        are equal, too. Raises UsageError: The inputs do not match the op's declaration."""
        arrays = tuple([(name, array.shape, array.dtype) for name, array in inputs.items()])
        key = is_issued, dtype, arrays
        form = self._forms.get(key)
        if form is None:
            demand_names(op, inputs)
            dtype = dtype or _leading_dtype(inputs.values())
            if inputs and not is_issued:
                demand_fit(op, inputs, dtype)
            form = self._forms[key] = _Form(dtype, _specs(inputs, dtype))
        return form


def _specs(inputs: Arrays, dtype: str) -> tuple[InputSpec, ...]:
    return tuple(
        InputSpec(name, array.shape, dtype_name(array.dtype) or dtype, position=position)
        for position, (name, array) in enumerate(inputs.items())
    )


def _query(common: CommonFields, dtype: str, inputs: Iterable[str]) -> Query:
    own = tuple(inputs)
    names = own if set(own) != set(common.op.input_names) else ()
    return Query(common.name, dtype, common.kwargs, common.tolerance, names, common.precision)


def seeds_of(submitted: Iterable[Fields]) -> set[int]:
    """Return the seeds of cases; skip invalid seeds, which are refused when the case is read."""
    seeds = set()
    for fields in submitted:
        with suppress(RequestError):
            seeds.add(fields.u64("seed"))
    return seeds


def _raised(fields: Fields) -> CheckResult | None:
    """Return the verdict on an exception of the op in the client; None if it returned outputs."""
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


def _violations(modified: Mapping[str, int], op: OpConfig, inputs: Arrays) -> tuple[Failure, ...]:
    return tuple(
        Failure(
            FailureKind.INPUT_MODIFIED,
            f"the op changed {count} of {inputs[name].size} elements of input {name!r}; run it on "
            "copies, or name the input in the op's `mutates` if that is meant",
            name,
        )
        for name, count in modified.items()
        if name not in op.mutates
    )


def _outputs(fields: Fields) -> dict[str, NDArray[Any]]:
    if fields.has("outputs"):
        outputs = fields.tensors("outputs")
        if not outputs:
            raise invalid("outputs is empty")
        return outputs
    return {"": fields.tensor("output")}


def _ordered(inputs: Mapping[str, NDArray[Any]], names: Sequence[str]) -> dict[str, NDArray[Any]]:
    known = {name: inputs[name] for name in names if name in inputs}
    return {**known, **inputs}


def _leading_dtype(arrays: Any) -> str:
    names = [dtype_name(array.dtype) or "float32" for array in arrays]
    floats = [name for name in names if DTYPES[name].kind == "float"]
    return (floats or names or ["float32"])[0]


def _narrowed(arrays: Arrays) -> dict[str, NDArray[Any]]:
    bfloat16 = numpy_dtype("bfloat16")
    with np.errstate(over="ignore", invalid="ignore"):
        return {
            name: array.astype(bfloat16)
            if DTYPES[dtype_name(array.dtype) or ""].kind == "float"
            else array
            for name, array in arrays.items()
        }


def _case(issued: Issued | None, specs: tuple[InputSpec, ...], dtype: str, seed: int) -> Case:
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


def changed_elements(sent: Arrays, submitted: Arrays) -> dict[str, int]:
    """Count, for each input, the elements that differ from the handed-out elements. A client may
    convert the inputs before it runs its op. Therefore, a handed-out input is converted to the
    dtype of the submitted input before the two are compared."""
    if {name: array.shape for name, array in sent.items()} != {
        name: array.shape for name, array in submitted.items()
    }:
        return {}
    counts = {name: _count(array, submitted[name]) for name, array in sent.items()}
    return {name: count for name, count in counts.items() if count}


def _count(sent: NDArray[Any], submitted: NDArray[Any]) -> int:
    """Count differing elements: compare bits if the dtypes are equal, else values."""
    if sent.dtype == submitted.dtype:
        width = max(1, sent.itemsize)
        differs = bytes_of(sent).reshape(-1, width) != bytes_of(submitted).reshape(-1, width)
        return int(np.count_nonzero(differs.any(axis=1)))
    with np.errstate(all="ignore"):
        converted = sent.astype(submitted.dtype)
    both_nan = np.isnan(converted) & np.isnan(submitted)
    return int(np.count_nonzero((converted != submitted) & ~both_nan))


UNSAID = ("input",)
"""The input names of an op that declares none."""
_ANY_RANK = {BUILTIN_SCHEMAS[name].inputs[0].dims for name in SAME_SHAPE_BUILTINS}


def demand_names(op: OpConfig, inputs: Arrays) -> None:
    """Raise UsageError if a declared input is missing or a submitted input is not declared. An op
    without declared inputs takes any inputs."""
    if op.input_names == UNSAID:
        return
    known = ", ".join(op.input_names)
    problems = [
        Problem(
            "request-unknown-input",
            f"inputs.{name[:60]}: {op.name} has no input of this name; its inputs are {known}",
            did_you_mean(name[:60], op.input_names),
        )
        for name in inputs
        if name not in op.input_names
    ]
    problems += [
        Problem(
            "request-missing-input",
            f"inputs.{name}: {op.name} takes this input, and the request has none",
            f"send all of {known}",
        )
        for name in op.input_names
        if name not in inputs
    ]
    if problems:
        raise UsageError(*problems)


def demand_fit(op: OpConfig, inputs: Arrays, dtype: str) -> None:
    """Raise UsageError if inputs that a client made do not match the op's declaration. A schema
    lists the sizes to test with. Other sizes are accepted, too, under three conditions: a named dim
    has the same size in all inputs, a fixed dim has its fixed size, and each size is a multiple of
    the dim's ``multiple_of``. Do not call this for cases that the daemon handed out: protocol v1
    gives all inputs the same shape and restricts the dtypes, so they need not match."""
    problems = []
    free = not op.has_schema or any(tensor.dtype is None for tensor in op.schema.inputs)
    if op.says_dtypes and free and dtype not in op.dtypes:
        text = f"{op.name} declares the dtypes {', '.join(op.dtypes)}; the inputs are {dtype}"
        hint = "send one of these, or add it to `dtypes` of the op"
        problems.append(Problem("request-dtype-undeclared", text, hint))
    if op.has_schema and set(inputs) == {tensor.name for tensor in op.schema.inputs}:
        problems += _dtypes(op, inputs)
        problems += _shapes(op, inputs)
    if problems:
        raise UsageError(*problems)


def _dtypes(op: OpConfig, inputs: Arrays) -> Iterator[Problem]:
    for tensor in op.schema.inputs:
        found = dtype_name(inputs[tensor.name].dtype) or "?"
        if tensor.dtype is not None and found != tensor.dtype:
            text = f"inputs.{tensor.name}: the schema of {op.name} says {tensor.dtype}, not {found}"
            yield Problem("request-dtype-undeclared", text, "convert it, or fix the schema")


def _shapes(op: OpConfig, inputs: Arrays) -> Iterator[Problem]:
    tensors = op.schema.inputs
    if not op.schema.dims or (
        all(tensor.dims in _ANY_RANK for tensor in tensors)
        and len({inputs[tensor.name].shape for tensor in tensors}) == 1
    ):
        return
    multiples = {dim.name: dim.multiple_of for dim in op.schema.dims}
    seen: dict[str, tuple[str, int]] = {}
    for tensor in tensors:
        shape = inputs[tensor.name].shape
        if tensor.rule is not None and tensor.rule.optional and shape and not any(shape):
            continue  # an optional input that is absent travels as an empty one
        if len(shape) != len(tensor.dims):
            yield _unfit(op, tensor, shape, f"it has {len(shape)} dims instead of this")
            continue
        for axis, (dim, size) in enumerate(zip(tensor.dims, shape, strict=True)):
            if isinstance(dim, int):
                if size != dim:
                    yield _unfit(op, tensor, shape, f"axis {axis} must have the size {dim}")
                continue
            where, known = seen.setdefault(dim, (tensor.name, size))
            if size != known:
                yield _unfit(op, tensor, shape, f"{dim} is {size} here and {known} in {where}")
            elif size % multiples.get(dim, 1):
                reason = f"{dim} is {size}, no multiple of {multiples[dim]}"
                yield _unfit(op, tensor, shape, reason)
    yield from _derived(op, {dim: size for dim, (_, size) in seen.items()}, seen, inputs)


def _derived(
    op: OpConfig, sizes: Mapping[str, int], seen: Mapping[str, tuple[str, int]], inputs: Arrays
) -> Iterator[Problem]:
    tensors = {tensor.name: tensor for tensor in op.schema.inputs}
    for dim in op.schema.derived:
        if dim.name in sizes and names_in(dim.expression) <= sizes.keys():
            try:
                wanted: object = compute(dim.expression, sizes, {})
            except ExpressionError as error:
                wanted = str(error)
            if sizes[dim.name] != wanted:
                name = seen[dim.name][0]
                reason = f"{dim.name} is {sizes[dim.name]}, and {dim.expression} is {wanted}"
                yield _unfit(op, tensors[name], inputs[name].shape, reason)


def _unfit(op: OpConfig, tensor: TensorDef, shape: tuple[int, ...], reason: str) -> Problem:
    dims = ", ".join(map(str, tensor.dims))
    return Problem(
        "request-shape-unfit",
        f"inputs.{tensor.name} is of shape {tuple(shape)}, and the schema of {op.name} says "
        f"[{dims}]: {reason}",
        "send what fits, or fix the schema",
    )


# ValidateOp, SubmitOutput, SubmitOutputs: judge clients' outputs against the reference.

MAX_CASES = 10_000
"""Largest number of cases in one `SubmitOutputs`."""

VALIDATE, SUBMIT = "ValidateOp", "SubmitOutput"
_REPLY = {VALIDATE: "ValidationResult", SUBMIT: "SubmitResult"}


def validate_op(service: Service, fields: Fields, job: Job) -> dict[str, Json]:
    """Answer ``ValidateOp`` and ``SubmitOutput``: judge one output. The inputs are the client's
    own, or those of a case that the daemon handed out before."""
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
    If a case cannot be read or its reference fails, no result is stored."""
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
    """Yield submissions with their numbers and results, grouped by subject. Their numbers are their
    positions in the iterable, from 0."""
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
    """Judge `first` and those of the `following` submissions that have the same subject."""
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
        notes = (*one.notes, *note_of_tolerance(found))
        notes = notes if one.issued is not None else (*notes, *note_of_zeros(found))
        result = replace(found, notes=(*notes, *found.notes)) if notes else found
        result = with_violations(result, one.violations)
        measured, result = result.measured, replace(result, measured=())
        # Stored, and counted with the op's other cases, is the verdict on the case.
        alone = one.source == "validate" and weakness_alone(result)
        told = replace(result, verdict=Verdict.INCONCLUSIVE) if alone else result
        seconds = time.perf_counter() - self._begin
        seed = one.given.case.seed
        judged = replace(CountedResult.of(result), measured=measured)
        name = one.common.name
        reply = validation_result(
            name,
            seed,
            told,
            output_shapes=_shapes_of(one) if result.failures else None,
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
        """Store all results in one transaction, and return replies by submission number. Raises
        StoreError: The results cannot be stored. None of them is."""
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
                output_shapes=_shapes_of(one),
                fuzz_config=None if one.issued is None else one.issued.fuzz_config,
            )
            new.result = {**new.result, "failure_id": failure_id}
            new.judged = replace(new.judged, failure_id=failure_id)
        self._service.results.add_many([new for _, _, new in self._judged])
        self._service.prune_results()
        return {number: new.result for number, _, new in self._judged}


def _shapes_of(one: Submission) -> dict[str, Shape]:
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
        return service.failures.add(record, encode(values))
