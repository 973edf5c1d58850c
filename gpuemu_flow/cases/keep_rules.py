"""Change smaller versions of a case so that they satisfy the schema and the inputs' rules."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from gpuemu_flow.cases.candidates import Candidate, make_candidate
from gpuemu_flow.cases.op_schema import OpSchema, TensorDef
from gpuemu_flow.cases.rule_values import fit_to_rule, setting_of
from gpuemu_flow.errors import UsageError
from gpuemu_flow.expressions import ExpressionError
from gpuemu_flow.numerics.dtypes import dtype_name
from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.types import InputSpec

Correct = Callable[[Candidate], "Candidate | None"]


def corrector(schema: OpSchema | None, start: Candidate) -> Correct:
    """Return a function that corrects a candidate so that it satisfies the schema.

    The function returns the corrected candidate, or None if the candidate cannot be corrected.
    """
    if schema is None or not _has_rules(schema):
        return lambda candidate: candidate
    names = {tensor.name for tensor in schema.inputs}
    if names != set(start.inputs):
        return lambda candidate: candidate
    known: OpSchema = schema
    generated = any(tensor.rule and tensor.rule.generate for tensor in known.inputs)
    if generated:
        return lambda candidate: _as_returned(known, start, candidate)
    return lambda candidate: _corrected(known, candidate)


def _as_returned(schema: OpSchema, start: Candidate, candidate: Candidate) -> Candidate | None:
    """Correct a candidate, provided that it has the sizes and the generated inputs of `start`.

    `start` is the original case, whose generated inputs were returned by functions of the user. It
    is not known what these functions would return for other sizes. Therefore, the result is None
    if a size or a generated input differs. It is also None if the candidate cannot be corrected.
    """
    if dict(candidate.dims) != dict(start.dims):
        return None
    for tensor in schema.inputs:
        before, after = start.inputs[tensor.name], candidate.inputs[tensor.name]
        if before.shape != after.shape:
            return None
        if tensor.rule and tensor.rule.generate and before.tobytes() != after.tobytes():
            return None
    return _corrected(schema, candidate)


def _has_rules(schema: OpSchema) -> bool:
    ruled = any(tensor.rule is not None for tensor in schema.inputs)
    return ruled or bool(schema.derived or schema.limits)


def _corrected(schema: OpSchema, candidate: Candidate) -> Candidate | None:
    fitted = _fitted(schema, candidate) if schema.derived or schema.limits else candidate
    if fitted is None:
        return None
    inputs = dict(fitted.inputs)
    shapes = {name: array.shape for name, array in inputs.items()}
    for tensor in _in_order(schema):
        if tensor.rule is None:
            continue
        values = inputs[tensor.name]
        spec = InputSpec(
            tensor.name,
            values.shape,
            dtype_name(values.dtype) or "",
            low=tensor.low,
            high=tensor.high,
            rule=tensor.rule,
        )
        try:
            setting = setting_of(spec, SeededRng(0), fitted.dims, shapes)
        except UsageError:
            return None
        corrected = fit_to_rule(values, setting, inputs)
        if corrected is None:
            return None
        if corrected.tobytes() != values.tobytes():
            inputs[tensor.name] = corrected
    return make_candidate(inputs, fitted.layouts, fitted.dims)


def _in_order(schema: OpSchema) -> list[TensorDef]:
    """Return the inputs, sorted so that a rule compares its input only with earlier inputs."""
    done: list[TensorDef] = []
    rest = list(schema.inputs)
    while rest:
        names = {tensor.name for tensor in done}
        ready = [t for t in rest if not (t.rule and t.rule.relation) or t.rule.other in names]
        done += ready or rest
        rest = [tensor for tensor in rest if tensor not in done]
    return done


def _fitted(schema: OpSchema, candidate: Candidate) -> Candidate | None:
    """Return the candidate with inputs cut to the new sizes of derived dims.

    Return None if the sizes are not allowed, or if an input is too small to be cut.
    """
    try:
        free = {dim.name: candidate.dims[dim.name] for dim in schema.dims}
    except KeyError:
        return candidate  # a case of whole shapes
    if not schema.allows(free):
        return None
    try:
        dims = schema.all_sizes(free)
    except ExpressionError:
        return None
    inputs = dict(candidate.inputs)
    for tensor, shape in zip(schema.inputs, schema.shapes(dims), strict=True):
        values = inputs[tensor.name]
        if tensor.rule is not None and tensor.rule.optional and not any(values.shape):
            continue  # None stands in its place
        if values.ndim != len(shape) or any(
            a < b for a, b in zip(values.shape, shape, strict=True)
        ):
            return None
        if values.shape != shape:
            inputs[tensor.name] = np.array(values[tuple(slice(0, size) for size in shape)])
    return replace(make_candidate(inputs, candidate.layouts, dims))
