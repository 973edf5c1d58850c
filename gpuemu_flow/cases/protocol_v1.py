"""Make the cases, and their tensors, that wire protocol v1 defines for a ``fuzz_config``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuemu_flow.cases.fuzz_config import (
    LAYOUTS_V1,
    SchemaTensor,
    SequenceConfig,
    ShapeOptions,
    WireSchema,
    unknown_layout,
)
from gpuemu_flow.errors import Problem, UsageError
from gpuemu_flow.numerics.rng import SeededRng, derive_seed
from gpuemu_flow.types import DTYPES, Case, InputSpec, Shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "SchemaTensor",
    "SequenceConfig",
    "ShapeOptions",
    "WireSchema",
    "case_at",
    "nominal_strides",
    "representative_shape",
    "tensors",
]

EDGE_CASE_PROBABILITY = 0.1
DEFAULT_INPUT_NAME = "input"
MAX_CASE_BYTES = 1 << 33


def case_at(config: SequenceConfig, input_names: Sequence[str], n: int) -> Case:
    """Return case `n` of a configuration, equal to the case that gpuemu makes from the same seed.

    Each choice has its own random domain, so that changing one list does not change the choices
    from other lists.

    Raises UsageError: ``duplicate-input-name``. Raises ValueError when `n` is negative.
    """
    if n < 0:
        raise ValueError(f"there is no case {n}")
    names = tuple(input_names) or (DEFAULT_INPUT_NAME,)
    if len(set(names)) < len(names):
        raise UsageError(
            Problem("duplicate-input-name", f"an op's input names repeat: {', '.join(names)}")
        )
    case_seed = derive_seed(config.seed, f"iter_{n}")
    case_rng = SeededRng(case_seed)
    dtype = case_rng.derive("dtype").choice(config.dtypes)
    layout = case_rng.derive("layout").choice(config.layouts)
    shape_rng = case_rng.derive("shape")
    sizes: dict[str, int] = {}
    if config.op_schema is None:
        shape, shape_class = _draw_shape(config.shape_options, shape_rng)
        shapes = dict.fromkeys(names, shape)
    else:
        shape_class = "schema"
        sizes = {
            name: shape_rng.derive(name).choice(candidates) if candidates else 1
            for name, candidates in config.op_schema.dims
        }
        shapes = _schema_shapes(config.op_schema, sizes, names)
    return Case(
        index=n,
        seed=case_seed,
        dtype=dtype,
        layout=layout,
        strategy="uniform",
        inputs=tuple(
            InputSpec(name, shapes[name], dtype, layout, "uniform", position)
            for position, name in enumerate(names)
        ),
        shape_class=shape_class,
        dims=tuple(sizes.items()),
    )


def _draw_shape(options: ShapeOptions, rng: SeededRng) -> tuple[Shape, str]:
    if options.edge_cases and rng.gen_bool(EDGE_CASE_PROBABILITY):
        return rng.choice(options.edge_cases), "edge"
    batch = rng.choice(options.batch_sizes)
    seq = rng.choice(options.seq_lengths)
    return (batch, seq, rng.choice(options.hidden_dims)), "grid"


def _tensor_shape(tensor: SchemaTensor, sizes: Mapping[str, int]) -> Shape:
    return tuple(sizes.get(dim, 1) for dim in tensor.dims)


def _schema_shape(schema: WireSchema, sizes: Mapping[str, int]) -> Shape:
    """Return the shape that represents the whole case: the output's, or else the first input's."""
    if schema.output is not None:
        return _tensor_shape(schema.output, sizes)
    return _tensor_shape(schema.inputs[0], sizes) if schema.inputs else (1,)


def _schema_shapes(
    schema: WireSchema, sizes: Mapping[str, int], names: Sequence[str]
) -> dict[str, Shape]:
    known = {tensor.name: _tensor_shape(tensor, sizes) for tensor in schema.inputs}
    representative = _schema_shape(schema, sizes)
    return {name: known.get(name, representative) for name in names}


def representative_shape(config: SequenceConfig, case: Case) -> Shape:
    """Return the single shape that the protocol states for a whole case of `config`."""
    if config.op_schema is None:
        return case.inputs[0].shape
    return _schema_shape(config.op_schema, dict(case.dims))


def tensors(
    case: Case, protocol_v1: bool = True, *, max_bytes: int = MAX_CASE_BYTES
) -> dict[str, NDArray[Any]]:
    """Return the input tensors of a case of strategy ``uniform``, C-contiguous, by input name.

    Raises UsageError: ``case-too-large``, ``not-a-uniform-case`` or ``unknown-dtype``.
    """
    from gpuemu_flow.numerics.uniform import fill_uniform  # noqa: PLC0415 - it loads numpy

    wanted = sum(math.prod(s.shape) * DTYPES[s.dtype].itemsize for s in case.inputs)
    if wanted > max_bytes:
        shapes = ", ".join(f"{s.name} {list(s.shape)}" for s in case.inputs)
        raise UsageError(
            Problem("case-too-large", f"{wanted} bytes of inputs exceed {max_bytes}: {shapes}")
        )
    data_rng = SeededRng(case.seed).derive("data")
    made: dict[str, NDArray[Any]] = {}
    for spec in case.inputs:
        if spec.strategy != "uniform":
            raise UsageError(
                Problem("not-a-uniform-case", f"input {spec.name!r} has strategy {spec.strategy!r}")
            )
        input_rng = data_rng.derive(f"input_{spec.position}")
        count = math.prod(spec.shape)
        values = fill_uniform(input_rng, count, spec.dtype, protocol_v1=protocol_v1)
        made[spec.name] = values.reshape(spec.shape)
    return made


def nominal_strides(shape: Sequence[int], layout: str) -> tuple[int, ...]:
    """Return the strides, in elements, that the protocol states for a layout.

    These strides describe no memory: in the protocol's buffers, elements are always in C order.
    ``strided`` doubles the row-major strides. ``transposed`` exchanges the last two dims of the
    shape and gives the row-major strides of the result, in the order of the exchanged dims. For
    example, it gives (2, 1) for the shape (2, 3).

    Raises UsageError: ``unknown-layout`` for a layout that protocol v1 does not have.
    """
    if layout not in LAYOUTS_V1:
        raise UsageError(unknown_layout(layout, "layout"))
    dims = list(shape)
    if layout == "transposed" and len(dims) >= 2:
        dims[-2], dims[-1] = dims[-1], dims[-2]
    strides: list[int] = []
    step = 2 if layout == "strided" else 1
    for dim in reversed(dims):
        strides.append(step)
        step *= dim
    return tuple(reversed(strides))
