"""Find sizes of dims that satisfy all derived dims and limits of a schema."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from gpuemu_flow.cases.op_schema import Dim, OpSchema
from gpuemu_flow.expressions import names_in

MOST_TRIED = 4096
_NEAR = (0, 1, 2, 3, 4, 5, 8, 16, 17, 32, 33, 64, 128, 129, 256, 1024)


def allows_size(dim: Dim, size: int) -> bool:
    """Tell whether a dim may have a size."""
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
    for changed in _subsets([dim.name for dim in order]):
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
    sizes near the ends of its range. Every other dim takes its smallest and its largest size.
    """
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


def _subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for count in range(1, len(names) + 1):
        yield from itertools.combinations(names, count)


def _options(dim: Dim, sizes: Mapping[str, int]) -> list[int]:
    """Return sizes of a dim to try: its whole list, or else at most 24 sizes of its range.

    `sizes` has the wanted sizes of all dims. From a range, sizes equal or next to these are tried
    first, because limits compare dims with each other.
    """
    if dim.candidates:
        return list(dim.candidates)
    step = dim.multiple_of
    others = [n + more for n in sizes.values() for more in (0, -1, 1)]
    spread = [dim.smallest + (dim.largest - dim.smallest) * part // 4 for part in range(5)]
    near = [n // step * step for n in (*others, *_NEAR, *spread)]
    return [n for n in dict.fromkeys(near) if allows_size(dim, n)][:24]
