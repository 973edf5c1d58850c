"""ValidateOp and SubmitOutput: judge outputs that clients computed against the reference."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.daemon.cases import Issued, digest_of
from gpuemu_flow.daemon.fields import Fields, invalid
from gpuemu_flow.daemon.fitting import demand_fit, demand_names
from gpuemu_flow.daemon.issuing import issued_case
from gpuemu_flow.daemon.jobs import Job
from gpuemu_flow.daemon.making import wire_strides
from gpuemu_flow.daemon.recording import record_failure
from gpuemu_flow.daemon.replies import RequestError, reproduction_info, validation_result
from gpuemu_flow.daemon.service import Service
from gpuemu_flow.fuzz.wire_ops import Query, precision_of, tolerance_of
from gpuemu_flow.judging.verdicts import EXCEPTION
from gpuemu_flow.numerics.dtypes import dtype_name, numpy_dtype
from gpuemu_flow.store.results import Judged, NewResult
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

CHANGED_INPUTS = (
    "these are not the inputs that the case was handed out with: an op that changes its inputs in "
    "place must be given copies"
)

MAX_ERROR = 4096
"""Characters of the text of an exception that are taken."""

Arrays = Mapping[str, NDArray[Any]]


def validate_op(service: Service, fields: Fields, job: Job) -> dict[str, Json]:
    """Answer ``ValidateOp``: judge the client's own inputs and output."""
    seed = service.results.time_ns()
    result = _judge(service, fields, job, seed, None, "validate")
    return {"type": "ValidationResult", "result": result}


def submit_output(service: Service, fields: Fields, job: Job) -> dict[str, Json]:
    """Answer ``SubmitOutput``: judge the output for a case that was handed out."""
    seed = fields.u64("seed")
    issued = issued_case(service, fields.name("op_name"), seed, job)
    result = _judge(service, fields, job, seed, issued, "submit")
    return {"type": "SubmitResult", "result": result}


def _judge(
    service: Service, fields: Fields, job: Job, seed: int, issued: Issued | None, source: str
) -> dict[str, Json]:
    begin = time.perf_counter()
    name = fields.name("op_name")
    configured, op = service.op(name)
    inputs = _ordered(fields.tensors("inputs"), op.input_names)
    demand_names(op, inputs)
    client, files = fields.client(), fields.client_files()
    tolerance, kwargs = tolerance_of(fields.kwargs(), op)
    precision, kwargs = precision_of(kwargs, op)
    dtype = _leading_dtype(inputs.values())
    if issued is None and inputs:
        demand_fit(op, inputs, dtype)
    raised = _raised(fields)
    outputs = _outputs(fields) if raised is None else {}
    notes = []
    if issued is not None and digest_of(inputs) != issued.digest:
        # Judged as what it is: inputs of the client's own.
        notes.append(CHANGED_INPUTS)
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
    query = Query(name, dtype, kwargs, tolerance, names, precision)
    subject = configured.subjects.make(query, case)
    outputs = {key or subject.output_name: array for key, array in outputs.items()}
    if raised is not None:
        result = raised
    else:
        with service.references.checkout(subject, job) as session:
            result = session.judge_outputs(case, inputs, outputs)
    job.check()
    refuse_broken_reference(result)
    result = replace(result, notes=(*notes, *result.notes))
    shapes = {key: array.shape for key, array in outputs.items()}
    reply = validation_result(
        name,
        seed,
        result,
        output_shapes=shapes,
        duration_s=time.perf_counter() - begin,
        repro_info=_repro_info(issued),
    )
    if result.verdict in (Verdict.FAILED, Verdict.ERROR):
        reply["failure_id"] = record_failure(
            service,
            subject,
            case,
            result,
            inputs,
            output_shapes=shapes,
            fuzz_config=None if issued is None else issued.fuzz_config,
        )
    service.results.add(
        NewResult(
            name,
            seed,
            dtype,
            Judged.of(result, reply.get("failure_id", "")),
            reply,
            source,
            judged_by=subject.judged_by,
            client=client,
            files=_known_files(files, configured.workspace.root),
        )
    )
    return reply


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
        raise invalid("there is an error beside the output: an op gives one of them")
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
