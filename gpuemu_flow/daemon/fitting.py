"""Check that submitted inputs fit the op: names, shapes and dtypes as declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from gpuemu_flow.cases.op_schema import BUILTIN_SCHEMAS, SAME_SHAPE_BUILTINS, TensorDef
from gpuemu_flow.config.model_ops import OpConfig
from gpuemu_flow.errors import Problem, UsageError, did_you_mean
from gpuemu_flow.expressions import ExpressionError, compute, names_in
from gpuemu_flow.numerics.dtypes import dtype_name

UNSAID = ("input",)
"""The input names of an op that declares none."""
_ANY_RANK = {BUILTIN_SCHEMAS[name].inputs[0].dims for name in SAME_SHAPE_BUILTINS}

Arrays = Mapping[str, NDArray[Any]]


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

    Parameters
    ----------
    op : OpConfig
    inputs : mapping of str to ndarray
    dtype : str
        Dtype of the case; must be one of the op's.
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
