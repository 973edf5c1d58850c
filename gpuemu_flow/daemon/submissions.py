"""Read clients' submissions: an op's inputs and its output, or the error that it raised."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.config.model_ops import OpConfig
from gpuemu_flow.daemon.cases import Issued, digest_of, seed_of
from gpuemu_flow.daemon.changed_inputs import changed_elements
from gpuemu_flow.daemon.fields import Fields, invalid
from gpuemu_flow.daemon.fitting import demand_fit, demand_names
from gpuemu_flow.daemon.issuing import issued_case, issued_inputs
from gpuemu_flow.daemon.jobs import Job
from gpuemu_flow.daemon.reload import Configured
from gpuemu_flow.daemon.replies import RequestError
from gpuemu_flow.daemon.service import Service
from gpuemu_flow.fuzz.wire_ops import Query, WireSubject, precision_of, tolerance_of
from gpuemu_flow.judging.judge_given import GivenCase
from gpuemu_flow.judging.verdicts import EXCEPTION
from gpuemu_flow.numerics.dtypes import dtype_name, numpy_dtype
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import (
    DTYPES,
    Case,
    CheckResult,
    Failure,
    FailureKind,
    InputSpec,
    Json,
    Verdict,
)

OTHER_INPUTS = (
    "judged as inputs of the client's own: they have other shapes or dtypes than those that the "
    "case was handed out with"
)

MAX_ERROR = 4096
"""Largest number of characters that are kept of an exception's text."""

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class CommonFields:
    """The fields of a request that apply to all of its cases.

    Attributes
    ----------
    asked : tuple
        A key for the keyword arguments, the tolerance and the precision. Two requests have equal
        keys if they agree in all three.
    client : mapping of str to JSON
        The client's description of itself.
    """

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


@dataclass(frozen=True)
class Submission:
    """One output to be judged.

    Attributes
    ----------
    raised : CheckResult or None
        Verdict if the op raised an exception in the client; None if it returned outputs.
    issued : Issued or None
        The handed-out case; None if the client made the inputs.
    violations : tuple of Failure
        A failure for each input that the op changed although it must not.
    """

    common: CommonFields
    given: GivenCase
    subject: WireSubject
    dtype: str
    raised: CheckResult | None
    issued: Issued | None
    source: str
    violations: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass
class _Form:
    """The properties that cases share if their inputs have equal names, shapes and dtypes.

    Attributes
    ----------
    dtype : str
        Dtype of the cases.
    specs : tuple of InputSpec
    subjects : dict of tuple to WireSubject
        Subjects of these cases by `CommonFields.asked`. Cases with the same subject object are
        judged together, and the subject's files are checked only once.
    """

    dtype: str
    specs: tuple[InputSpec, ...]
    subjects: dict[tuple[object, ...], WireSubject] = field(default_factory=dict)


@dataclass
class Reader:
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
        """Read one submission, and find or make the subject that judges it.

        Parameters
        ----------
        common : CommonFields
        fields : Fields
        seed : int
        inputs : mapping of str to ndarray
        issued : Issued or None
            The handed-out case; None if the client made the inputs.
        source : str
            ``submit`` or ``validate``, to be recorded with the verdict.
        """
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

        Parameters
        ----------
        op : OpConfig
        inputs : mapping of str to ndarray
        is_issued : bool
            True if the case was handed out. Otherwise, the inputs must fit the op's declaration.
        dtype : str
            Dtype of the case; empty to find it from the inputs.

        Raises
        ------
        UsageError
            The inputs do not match the op's declaration.
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
    """Return the arrays with those of float dtypes converted to bfloat16."""
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
