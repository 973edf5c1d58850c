"""Choose the cases on which an op's traits are found if a client sends inputs of its own.

The traits, such as exactness, decide the ``auto`` tolerance; see `judging.traits`.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuemu_flow.cases.op_schema import OpSchema
from gpuemu_flow.errors import FlowError
from gpuemu_flow.fuzz.subjects import OpTasks
from gpuemu_flow.types import Case, InputSpec

TINY = 64
"""Number of elements below which a case shows no traits: softmax of one element is exact."""


def planned_samples(tasks: OpTasks) -> list[Case]:
    """Plan the cases on which ``run`` decides an op's traits, such as exactness.

    Return an empty list if the op's schema allows no such cases.
    """
    try:
        return tasks.samples()
    except FlowError:
        return []


def stand_for(schema: OpSchema, own: Sequence[Case], case: Case) -> bool:
    """Tell whether traits that were found on sample cases also hold for another case.

    The traits hold if the case's inputs fit the op's schema, or are too small to have other traits.
    If there are no sample cases (`own` is empty), the result is False.
    """
    return bool(own) and (fits(schema, case.inputs) or case.numel < TINY)


def fits(schema: OpSchema, inputs: Sequence[InputSpec]) -> bool:
    """Tell whether inputs match a schema's names, ranks and dims, each dim having only one size."""
    if [spec.name for spec in inputs] != [tensor.name for tensor in schema.inputs]:
        return False
    shapes = {spec.shape for spec in inputs}
    if len(shapes) == 1 and shapes <= set(schema.fixed_shapes):
        return True
    sizes: dict[str, int] = {}
    derived = {dim.name for dim in schema.derived}
    for spec, tensor in zip(inputs, schema.inputs, strict=True):
        if tensor.rule is not None and tensor.rule.optional and not any(spec.shape):
            continue  # the optional input is None
        if len(spec.shape) != len(tensor.dims):
            return False
        for size, dim in zip(spec.shape, tensor.dims, strict=True):
            wanted = dim if isinstance(dim, int) else sizes.setdefault(dim, size)
            if size != wanted:
                return False
    free = {name: size for name, size in sizes.items() if name not in derived}
    if schema.derived and free.keys() == {dim.name for dim in schema.dims}:
        return schema.allows(free) and sizes.items() <= schema.all_sizes(free).items()
    return True
