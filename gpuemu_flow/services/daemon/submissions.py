"""Read clients' submissions: an op's inputs and its output, or the error that it raised."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.cases.op_schema import BUILTIN_SCHEMAS, SAME_SHAPE_BUILTINS, TensorDef
from gpuemu_flow.config.model import OpConfig
from gpuemu_flow.fuzz.wire_ops import Query, WireSubject, precision_of, tolerance_of
from gpuemu_flow.judge.judge_requests import GivenCase
from gpuemu_flow.judge.verdicts import EXCEPTION
from gpuemu_flow.model.errors import Problem, UsageError, did_you_mean
from gpuemu_flow.model.expressions import ExpressionError, compute, names_in
from gpuemu_flow.model.types import (
    DTYPES,
    Case,
    CheckResult,
    Failure,
    FailureKind,
    InputSpec,
    Json,
    Verdict,
)
from gpuemu_flow.numerics.dtypes import bytes_of, dtype_name, numpy_dtype
from gpuemu_flow.services.daemon.fields import Fields, invalid
from gpuemu_flow.services.daemon.issuing import issued_case, issued_inputs
from gpuemu_flow.services.daemon.jobs import Job
from gpuemu_flow.services.daemon.replies import RequestError
from gpuemu_flow.services.daemon.service import Configured, Issued, Service, digest_of, seed_of

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
        """Read the fields of a request that apply to all of its cases."""
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
        """Read a submission whose inputs the client made."""
        inputs = fields.tensors("inputs")
        seed = seed_of(common.name, inputs, common.asked)
        return self._read(common, fields, seed, inputs, None, "validate")

    def submitted(self, common: CommonFields, fields: Fields, job: Job) -> Submission:
        """Read a submission for a handed-out case."""
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
        """Read one submission, and find or make the subject that judges it."""
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
        """Return the `_Form` for a case's inputs, and check inputs whose form is new.

        Cases whose inputs have equal names, shapes and dtypes get the same object, if `is_issued`
        and `dtype` are equal, too.

        Raises UsageError: The inputs do not match the op's declaration.
        """
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
    """Return a failure for each input that the op changed but that is not in `mutates`."""
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
    """Return the outputs by name; the single output of protocol v1 has the empty name."""
    if fields.has("outputs"):
        outputs = fields.tensors("outputs")
        if not outputs:
            raise invalid("outputs is empty")
        return outputs
    return {"": fields.tensor("output")}


def _ordered(inputs: Mapping[str, NDArray[Any]], names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Sort inputs in the order of the op's declaration, with undeclared inputs last."""
    known = {name: inputs[name] for name in names if name in inputs}
    return {**known, **inputs}


def _leading_dtype(arrays: Any) -> str:
    """Return the dtype of a case: that of the first float input, else of the first input."""
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
    """Count, for each input, the elements that differ from the handed-out elements.

    A client may convert the inputs before it runs its op. Therefore, a handed-out input is
    converted to the dtype of the submitted input before the two are compared.
    """
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
    """Raise UsageError if a declared input is missing or a submitted input is not declared.

    An op without declared inputs takes any inputs.
    """
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
    """Raise UsageError if inputs that a client made do not match the op's declaration.

    A schema lists the sizes to test with. Other sizes are accepted, too, under three conditions: a
    named dim has the same size in all inputs, a fixed dim has its fixed size, and each size is a
    multiple of the dim's ``multiple_of``. Do not call this for cases that the daemon handed out:
    protocol v1 gives all inputs the same shape and restricts the dtypes, so they need not match.
    """
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
    """Yield a problem for each derived dim whose size differs from its expression's value."""
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
