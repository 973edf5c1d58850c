"""Op schemas: dims and the sizes they allow, tensors that share them, and built-in schemas."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.model.syntax import ExpressionError, compute, names_in
from gpuemu_flow.model.types import Number, Shape, ValueRule

SCHEMA_KEYS = ("dims", "inputs", "output", "outputs", "name", "constraints", "scalars")
"""Keys of a schema's table."""
WARNING_SLUGS = frozenset(
    {"schema-unused-dim", "schema-index-without-range", "schema-separate-orders"}
)
"""Problems with which a schema can still be used."""
LIST = "list"


class ArgumentGroup(Struct, frozen=True):
    """One argument that is made of several inputs."""

    kind: str  # ``list``, ``complex64`` or ``complex128``
    members: tuple[str, ...]  # names of the inputs, in order


class Dim(Struct, frozen=True):
    """One symbolic dim."""

    name: str
    # If not empty, exactly these sizes are used; otherwise the range below
    candidates: tuple[int, ...] = ()
    # Smallest and largest size of the range, both included
    min: int = 1
    max: int = 0
    multiple_of: int = 1  # Sizes of the range are multiples of this number

    @property
    def smallest(self) -> int:
        if self.candidates:
            return min(self.candidates)
        return -(-self.min // self.multiple_of) * self.multiple_of

    @property
    def largest(self) -> int:
        if self.candidates:
            return max(self.candidates)
        return self.max // self.multiple_of * self.multiple_of


class DerivedDim(Struct, frozen=True):
    """A dim whose size follows from other dims."""

    # Name of the dim; for an axis that is declared by an expression, the text of the expression
    name: str
    expression: str


class TensorDef(Struct, frozen=True, omit_defaults=True):
    """One input or output: its dims and the configuration of its values."""

    name: str
    dims: tuple[str | int, ...]  # names of dims, derived ones too; an int is a fixed size
    dtype: str | None = None  # the tensor's own dtype, used instead of the case's
    # Range of the values, both ends included; None means unbounded
    low: Number | None = None
    high: Number | None = None
    strategy: str | None = None  # the tensor's own strategy, used instead of the case's
    rule: ValueRule | None = None  # further rules for the values


class OpSchema(Struct, frozen=True, omit_defaults=True):
    """Shapes of an op's tensors in terms of shared dims."""

    dims: tuple[Dim, ...]
    inputs: tuple[TensorDef, ...]  # in the order of the op's ``input_names``
    outputs: tuple[TensorDef, ...] = ()  # Empty if the schema does not define them
    # Whole shapes. A case takes one whole shape for every input. If there are dims, other cases
    # take their shapes from the dims.
    fixed_shapes: tuple[Shape, ...] = ()
    derived: tuple[DerivedDim, ...] = ()  # each derived dim comes after the dims that it needs
    # Comparisons of dims that hold in every case: ``("K", "<=", "N")``
    limits: tuple[tuple[str, str, str], ...] = ()
    # Numbers that the sources of reference and op compare values with
    constants: tuple[float, ...] = ()

    def all_sizes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of the dims and of all derived dims. Raises ExpressionError: A derived
        dim has no size, or a size below 0."""
        found = dict(sizes)
        for dim in self.derived:
            size = compute(dim.expression, found, {})
            if size < 0:
                raise ExpressionError(f"{dim.expression} is {size}")
            found[dim.name] = size
        return found

    def allows(self, sizes: Mapping[str, int]) -> bool:
        if not (self.derived or self.limits):
            return True
        try:
            found = self.all_sizes(sizes)
            return all(
                COMPARISONS[sign](compute(left, found, {}), compute(right, found, {}))
                for left, sign, right in self.limits
            )
        except ExpressionError:
            return False

    def shapes(self, sizes: Mapping[str, int]) -> tuple[Shape, ...]:
        return tuple(
            tuple(sizes[axis] if isinstance(axis, str) else axis for axis in tensor.dims)
            for tensor in self.inputs
        )


COMPARISONS: dict[str, Any] = {
    "<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


def _tensors(**dims: str) -> tuple[TensorDef, ...]:
    return tuple(TensorDef(name, tuple(text.split())) for name, text in dims.items())


def _ranges(**bounds: tuple[int, int]) -> tuple[Dim, ...]:
    return tuple(Dim(name, (), low, high) for name, (low, high) in bounds.items())


# The maxima lie a little above common tile sizes (64, 128, 256, 512, 1024, 2048), so that the last
# tile of the largest case is a partial one; no tensor exceeds a million elements.
BUILTIN_SCHEMAS: dict[str, OpSchema] = {
    "matmul": OpSchema(
        _ranges(M=(1, 260), K=(1, 520), N=(1, 260)),
        _tensors(a="M K", b="K N"),
        _tensors(output="M N"),
    ),
    "attention": OpSchema(
        _ranges(B=(1, 3), H=(1, 4), S=(1, 260), D=(1, 80)),
        _tensors(q="B H S D", k="B H S D", v="B H S D"),
        _tensors(output="B H S D"),
    ),
    "elementwise": OpSchema(
        _ranges(B=(1, 4), S=(1, 160), H=(1, 1040)),
        _tensors(input="B S H"),
        _tensors(output="B S H"),
    ),
    "reduction": OpSchema(_ranges(M=(1, 200), N=(1, 4100)), _tensors(input="M N")),
    "norm": OpSchema(
        _ranges(B=(1, 4), S=(1, 100), H=(1, 2060)),
        _tensors(input="B S H", weight="H", bias="H"),
        _tensors(output="B S H"),
    ),
    # The image is never smaller than the filter: R, S <= 5 < 8 <= H, W.
    "conv2d": OpSchema(
        _ranges(N=(1, 3), C=(1, 20), H=(8, 70), W=(8, 70), F=(1, 36), R=(1, 5), S=(1, 5)),
        _tensors(input="N C H W", weight="F C R S", bias="F"),
    ),
}
# Built-ins whose inputs all have one shape take any number of inputs. The others need at least this
# number of them; the last ones may be left out.
SAME_SHAPE_BUILTINS = frozenset({"elementwise", "reduction"})
FEWEST_INPUTS = {"norm": 1, "conv2d": 2}


PLAIN_DIMS = ("batch", "sequence", "hidden")
"""Dims of schemas that were given as plain lists of sizes."""


def default_schema(input_names: Sequence[str]) -> OpSchema:
    return same_shape_schema(BUILTIN_SCHEMAS["elementwise"], input_names)


def fixed_shapes_schema(input_names: Sequence[str], shapes: Sequence[Sequence[int]]) -> OpSchema:
    inputs = tuple(TensorDef(name, ()) for name in input_names or ("input",))
    return OpSchema((), inputs, (), tuple(dict.fromkeys(tuple(s) for s in shapes)))


def plain_shapes_schema(
    input_names: Sequence[str],
    batch_sizes: Sequence[int],
    sequence_lengths: Sequence[int],
    hidden_dims: Sequence[int],
    edge_cases: Sequence[Sequence[int]],
) -> OpSchema:
    lists = dict(zip(PLAIN_DIMS, (batch_sizes, sequence_lengths, hidden_dims), strict=True))
    dims = tuple(Dim(name, tuple(dict.fromkeys(sizes))) for name, sizes in lists.items() if sizes)
    axes = tuple(dim.name for dim in dims)
    inputs = tuple(TensorDef(name, axes) for name in input_names or ("input",))
    return OpSchema(dims, inputs, (), tuple(dict.fromkeys(tuple(s) for s in edge_cases)))


def takes_any_rank(schema: OpSchema) -> bool:
    """Tell whether the op's inputs share one shape of any rank. A user's schema fixes the rank.
    Plain lists of sizes do not, nor do the built-in schemas of ops whose inputs all have the same
    shape."""
    if len({tensor.dims for tensor in (*schema.inputs, *schema.outputs)}) != 1:
        return False
    if schema.derived or any(tensor.rule for tensor in schema.inputs):
        return False
    plain = not schema.outputs and {dim.name for dim in schema.dims} <= {*PLAIN_DIMS}
    return plain or any(schema.dims == BUILTIN_SCHEMAS[n].dims for n in SAME_SHAPE_BUILTINS)


def with_shapes(schema: OpSchema, shapes: Sequence[Sequence[int]]) -> list[OpSchema]:
    """Restrict the schema to exactly the given shapes; return one schema for each. If a shape has
    as many sizes as the schema has dims, these are the sizes of the dims in schema order (``7x3x5``
    for a matmul of M, K, N). Any other shape is given to every input, which is possible only for an
    op whose inputs may have any rank; see `takes_any_rank`. Raises ValueError: A shape cannot be
    used in either way; the message says which shapes are possible."""
    names = [dim.name for dim in schema.dims]
    any_rank = takes_any_rank(schema)
    out = []
    for sizes in shapes:
        if len(sizes) == len(names):
            dims = tuple(Dim(name, (size,)) for name, size in zip(names, sizes, strict=True))
            out.append(replace(schema, dims=dims, fixed_shapes=()))
        elif any_rank:
            bare = tuple(replace(tensor, dims=()) for tensor in schema.inputs)
            out.append(OpSchema((), bare, (), (tuple(sizes),)))
        else:
            shown = "x".join(str(size) for size in sizes)
            many = "1 dim" if len(names) == 1 else f"{len(names)} dims"
            message = f"{shown} has {len(sizes)} sizes; the op's schema has {many}"
            raise ValueError(f"{message}: {', '.join(names)}")
    return out


def same_shape_schema(schema: OpSchema, input_names: Sequence[str]) -> OpSchema:
    shape = schema.inputs[0]
    names = input_names or ("input",)
    return replace(schema, inputs=tuple(replace(shape, name=name) for name in names))


MOST_TRIED = 4096
_NEAR = (0, 1, 2, 3, 4, 5, 8, 16, 17, 32, 33, 64, 128, 129, 256, 1024)


def allows_size(dim: Dim, size: int) -> bool:
    if dim.candidates:
        return size in dim.candidates
    return dim.min <= size <= dim.max and size % dim.multiple_of == 0


def allowed_sizes(
    schema: OpSchema, wanted: Mapping[str, int] | None = None, keep: Sequence[str] = ()
) -> dict[str, int] | None:
    """Return sizes that the schema allows, near the wanted ones; None if a short search fails."""
    sizes = dict(wanted) if wanted else {dim.name: dim.smallest for dim in schema.dims}
    if schema.allows(sizes):
        return sizes
    order = sorted(schema.dims, key=lambda dim: dim.name in keep)
    options = {dim.name: _options(dim, sizes) for dim in order}
    tried = 0
    names = [dim.name for dim in order]
    for changed in (s for n in range(len(names)) for s in itertools.combinations(names, n + 1)):
        for chosen in itertools.product(*(options[name] for name in changed)):
            tried += 1
            if tried > MOST_TRIED:
                return None
            candidate = {**sizes, **dict(zip(changed, chosen, strict=True))}
            if schema.allows(candidate):
                return candidate
    return None


def some_sizes(schema: OpSchema, derived: str) -> Iterator[dict[str, int]]:
    """Yield allowed sizes of all dims, chosen so that a derived dim takes extreme sizes, too.
    `derived` is the name of this dim. A dim on which it depends takes all sizes of its list, or the
    sizes near the ends of its range. Every other dim takes its smallest and its largest size."""
    needed = {derived}
    for each in reversed(schema.derived):
        if each.name in needed:
            needed |= names_in(each.expression)
    options = [_near_ends(dim) if dim.name in needed else (dim.smallest, dim.largest)
               for dim in schema.dims]  # fmt: skip
    for chosen in itertools.islice(itertools.product(*options), MOST_TRIED):
        sizes = {dim.name: size for dim, size in zip(schema.dims, chosen, strict=True)}
        if schema.allows(sizes):
            yield schema.all_sizes(sizes)


def _near_ends(dim: Dim) -> Sequence[int]:
    if dim.candidates:
        return dim.candidates
    few = range(0, 4 * dim.multiple_of, dim.multiple_of)
    ends = [n for more in few for n in (dim.smallest + more, dim.largest - more)]
    return [n for n in dict.fromkeys(ends) if allows_size(dim, n)]


def _options(dim: Dim, sizes: Mapping[str, int]) -> list[int]:
    """Return sizes of a dim to try: its whole list, or else at most 24 sizes of its range. `sizes`
    has the wanted sizes of all dims. From a range, sizes equal or next to these are tried first,
    because limits compare dims with each other."""
    if dim.candidates:
        return list(dim.candidates)
    step = dim.multiple_of
    others = [n + more for n in sizes.values() for more in (0, -1, 1)]
    spread = [dim.smallest + (dim.largest - dim.smallest) * part // 4 for part in range(5)]
    near = [n // step * step for n in (*others, *_NEAR, *spread)]
    return [n for n in dict.fromkeys(near) if allows_size(dim, n)][:24]


MOST_NAMED = 8


def untried_sizes(schema: OpSchema, tried: Iterable[Mapping[str, int]]) -> tuple[str, ...]:
    """Return a text, such as ``N = 9, 11``, for each dim with listed sizes that no case had. Sizes
    that the schema's limits exclude are left out."""
    listed = [dim for dim in schema.dims if len(dim.candidates) > 1]
    if not listed:
        return ()
    had = {(name, size) for sizes in tried for name, size in sizes.items()}
    found = []
    for dim in listed:
        missing = [
            size
            for size in dim.candidates
            if (dim.name, size) not in had and _is_possible(schema, dim.name, size)
        ]
        if missing:
            more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
            found.append(f"{dim.name} = {', '.join(map(str, missing[:MOST_NAMED]))}{more}")
    return tuple(found)


def _is_possible(schema: OpSchema, name: str, size: int) -> bool:
    """Tell whether the schema allows a size of a dim together with some sizes of the other dims."""
    wanted = {dim.name: dim.smallest for dim in schema.dims}
    sizes = allowed_sizes(schema, {**wanted, name: size}, keep=(name,))
    return sizes is not None and sizes[name] == size
