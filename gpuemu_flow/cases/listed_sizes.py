"""Find the sizes that a schema lists but no case has tried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuemu_flow.cases.op_schema import OpSchema
from gpuemu_flow.cases.sizes_allowed import allowed_sizes

MOST_NAMED = 8


def untried_sizes(schema: OpSchema, tried: Iterable[Mapping[str, int]]) -> tuple[str, ...]:
    """Return a text, such as ``N = 9, 11``, for each dim with listed sizes that no case had.

    Sizes that the schema's limits exclude are left out.
    """
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
