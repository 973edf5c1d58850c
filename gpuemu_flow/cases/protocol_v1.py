"""Make the cases, and their tensors, that wire protocol v1 defines for a ``fuzz_config``."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from msgspec import Struct, field
from msgspec.structs import force_setattr

from gpuemu_flow.model.decoding import plain
from gpuemu_flow.model.errors import Problem, UsageError, did_you_mean
from gpuemu_flow.model.types import DTYPES, Case, InputSpec, Json, Shape, canonical_dtype
from gpuemu_flow.numerics.rng import MASK64, SeededRng, derive_seed

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
    from other lists. Raises UsageError: ``duplicate-input-name``. Raises ValueError when `n` is
    negative."""
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
            dim.name: shape_rng.derive(dim.name).choice(dim.candidates) if dim.candidates else 1
            for dim in config.op_schema.dims
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
    Raises UsageError: ``case-too-large``, ``not-a-uniform-case`` or ``unknown-dtype``."""
    from gpuemu_flow.numerics.rng_arrays import fill_uniform  # noqa: PLC0415 - it loads numpy

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
    """Return the strides, in elements, that the protocol states for a layout. These strides
    describe no memory: in the protocol's buffers, elements are always in C order. ``strided``
    doubles the row-major strides. ``transposed`` exchanges the last two dims of the shape and gives
    the row-major strides of the result, in the order of the exchanged dims. For example, it gives
    (2, 1) for the shape (2, 3). Raises UsageError: ``unknown-layout`` for a layout that protocol v1
    does not have."""
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


# The ``fuzz_config`` of wire protocol v1, read from a request and checked.


T = TypeVar("T")

LAYOUTS_V1 = ("contiguous", "strided", "transposed")
MAX_DIM = (1 << 32) - 1  # what an input snapshot of the protocol can hold
MAX_RANK = 32  # what numpy 1.x can hold
MAX_SHOWN = 60  # characters of a wrong value that a message repeats
_REQUIRED_LISTS = ("batch_sizes", "seq_lengths", "hidden_dims")


class ShapeOptions(Struct, frozen=True):
    """Sizes of (batch, sequence, hidden) to draw from, and whole shapes of edge cases. Repeated
    entries are drawn more often. The defaults are those of gpuemu's own CI runs."""

    batch_sizes: tuple[int, ...] = (1, 2, 4, 8)
    seq_lengths: tuple[int, ...] = (64, 128, 256, 512)
    hidden_dims: tuple[int, ...] = (512, 768, 1024)
    edge_cases: tuple[Shape, ...] = ((1,), (1, 1), (1, 1, 1))


class SchemaDim(Struct, frozen=True):
    """A dim of a `WireSchema` and its candidate sizes; without any, its size is 1."""

    name: str
    candidates: tuple[int, ...]


class SchemaTensor(Struct, frozen=True):
    """A tensor of a `WireSchema` and the names of its dims."""

    name: str
    dims: tuple[str, ...]


class WireSchema(Struct, frozen=True):
    """Shapes of tensors in terms of shared dims, as in the protocol's ``op_schema``."""

    name: str
    dims: tuple[SchemaDim, ...]  # if a name is repeated, its last entry counts
    inputs: tuple[SchemaTensor, ...]
    output: SchemaTensor | None = None


class SequenceConfig(Struct, frozen=True):
    """Everything that decides a sequence of cases, except the names of the op's inputs. Raises
    UsageError: ``fuzz-config-empty-list`` when a list that is drawn from is empty."""

    seed: int  # Master seed; reduced modulo 2**64
    # Not used with an `op_schema`
    shape_options: ShapeOptions = field(default_factory=ShapeOptions)
    # Canonical names; repeated ones are drawn more often
    dtypes: tuple[str, ...] = ("float32", "float16")
    layouts: tuple[str, ...] = LAYOUTS_V1
    op_schema: WireSchema | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "seed", operator.index(self.seed) & MASK64)
        drawn: dict[str, Sequence[Any]] = {"dtypes": self.dtypes, "layouts": self.layouts}
        if self.op_schema is None:
            for name in _REQUIRED_LISTS:
                drawn[f"shape_options.{name}"] = getattr(self.shape_options, name)
        for name, values in drawn.items():
            if not values:
                _refuse("fuzz-config-empty-list", f"fuzz_config.{name} is empty")

    @classmethod
    def from_json(cls, data: Json) -> SequenceConfig:
        """Read a request's ``fuzz_config``; unknown keys are ignored, as the protocol demands.
        Names of layouts and dtypes may be written in upper or lower case, and dtypes also by an
        alias. A seed may have any size. ``shape_options`` may be missing when ``op_schema`` is
        given; ``edge_cases`` may always be missing. Raises UsageError: ``fuzz-config-missing-key``,
        ``fuzz-config-wrong-type``, ``fuzz-config-out-of-range``, ``unknown-dtype``,
        ``unknown-layout`` or ``fuzz-config-empty-list``, for the first problem that is found."""
        config = _object(data, "fuzz_config")
        schema_json = config.get("op_schema")
        schema = None if schema_json is None else _schema(schema_json, "fuzz_config.op_schema")
        options = ShapeOptions()
        if schema is None or config.get("shape_options") is not None:
            options = _required(config, "shape_options", _shape_options, "fuzz_config")
        return cls(
            seed=_required(config, "seed", _integer, "fuzz_config"),
            shape_options=options,
            dtypes=_required(config, "dtypes", _list_of(_dtype), "fuzz_config"),
            layouts=_required(config, "layouts", _list_of(_layout), "fuzz_config"),
            op_schema=schema,
        )

    def to_json(self) -> dict[str, Json]:
        """Return the configuration as a request states it, with the protocol's layout names."""
        layouts = [layout.capitalize() for layout in self.layouts]
        return {**plain(self), "layouts": layouts}


def unknown_layout(value: str, path: str) -> Problem:
    """Return the problem that reports a layout unknown to protocol v1."""
    shown = value[:MAX_SHOWN]
    hint = did_you_mean(shown.lower(), LAYOUTS_V1)
    return Problem("unknown-layout", f"{path}: unknown layout {shown!r}", hint)


# Readers: each takes a JSON value and the path to it, which its errors name.


def _refuse(slug: str, message: str, hint: str = "") -> NoReturn:
    raise UsageError(Problem(slug, message, hint))


def _wrong_type(value: Json, path: str, wanted: str) -> NoReturn:
    found = "null" if value is None else type(value).__name__
    _refuse("fuzz-config-wrong-type", f"{path} must be {wanted}, not {found}")


def _object(value: Json, path: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        _wrong_type(value, path, "an object")
    return value


def _string(value: Json, path: str) -> str:
    if not isinstance(value, str):
        _wrong_type(value, path, "a string")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        # JSON can carry half of a surrogate pair; no random domain can be derived from one.
        _refuse("fuzz-config-wrong-type", f"{path} is not valid Unicode")
    return value


def _integer(value: Json, path: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        _wrong_type(value, path, "an integer")
    return value


def _list_of(read: Callable[[Json, str], T]) -> Callable[[Json, str], tuple[T, ...]]:
    def read_list(value: Json, path: str) -> tuple[T, ...]:
        if not isinstance(value, list):
            _wrong_type(value, path, "an array")
        return tuple(read(item, f"{path}[{index}]") for index, item in enumerate(value))

    return read_list


def _required(parent: Mapping[str, Json], key: str, read: Callable[[Json, str], T], path: str) -> T:
    if key not in parent:
        _refuse("fuzz-config-missing-key", f"{path} lacks {key!r}")
    return read(parent[key], f"{path}.{key}")


def _size(value: Json, path: str) -> int:
    size = _integer(value, path)
    if not 0 <= size <= MAX_DIM:
        _refuse("fuzz-config-out-of-range", f"{path} must lie between 0 and {MAX_DIM}")
    return size


def _edge_case(value: Json, path: str) -> Shape:
    shape = _list_of(_size)(value, path)
    if len(shape) > MAX_RANK:
        _refuse("fuzz-config-out-of-range", f"{path} has {len(shape)} dims, more than {MAX_RANK}")
    return shape


def _dtype(value: Json, path: str) -> str:
    text = _string(value, path)
    canonical = canonical_dtype(text)
    if canonical is None:
        shown = text.strip()[:MAX_SHOWN]
        hint = did_you_mean(shown.lower(), tuple(DTYPES))
        _refuse("unknown-dtype", f"{path}: unknown dtype {shown!r}", hint)
    return canonical


def _layout(value: Json, path: str) -> str:
    text = _string(value, path)
    if text.lower() not in LAYOUTS_V1:
        raise UsageError(unknown_layout(text, path))
    return text.lower()


def _shape_options(value: Json, path: str) -> ShapeOptions:
    options = _object(value, path)
    batch_sizes, seq_lengths, hidden_dims = (
        _required(options, name, _list_of(_size), path) for name in _REQUIRED_LISTS
    )
    edge_cases = _list_of(_edge_case)(options.get("edge_cases", []), f"{path}.edge_cases")
    return ShapeOptions(batch_sizes, seq_lengths, hidden_dims, edge_cases)


def _schema_dim(value: Json, path: str) -> SchemaDim:
    dim = _object(value, path)
    return SchemaDim(
        _required(dim, "name", _string, path),
        _required(dim, "candidates", _list_of(_size), path),
    )


def _schema_tensor(value: Json, path: str) -> SchemaTensor:
    tensor = _object(value, path)
    dims = _required(tensor, "dims", _list_of(_string), path)
    if len(dims) > MAX_RANK:
        _refuse("fuzz-config-out-of-range", f"{path} has {len(dims)} dims, more than {MAX_RANK}")
    return SchemaTensor(_required(tensor, "name", _string, path), dims)


def _schema(value: Json, path: str) -> WireSchema:
    schema = _object(value, path)
    output = schema.get("output")
    return WireSchema(
        name=_required(schema, "name", _string, path),
        dims=_required(schema, "dims", _list_of(_schema_dim), path),
        inputs=_required(schema, "inputs", _list_of(_schema_tensor), path),
        output=None if output is None else _schema_tensor(output, f"{path}.output"),
    )
