"""Values that an input takes from another input, so that ops meet equal values when they compare.

Two inputs, such as values and a threshold, or sorted edges and the values that are looked up in
them, would otherwise hardly ever have equal elements. An op that uses ``<`` in place of ``<=``
would then pass. The strategies `ties` and `integers` do not prevent this: they give equal elements
only to inputs that are drawn in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpuemu_flow.types import DTYPES, InputSpec
from gpuemu_flow.value_rules import ABSENT, SCALAR, ValueRule

if TYPE_CHECKING:  # plans of cases need no numpy
    import numpy as np
    from numpy.typing import NDArray

    from gpuemu_flow.numerics.rng import SeededRng

    Array = NDArray[Any]

SHARING = "normal"
"""The strategy whose first cases share values: it has no structure that these could spoil."""
SHARING_TURNS = (1, 2)
SHARE = 0.25
LEAST = 4
"""Number of elements from which on an input takes some from another."""
MAX_TAKEN = 4096
"""Largest number of elements of an input that others take."""
COMPARABLE = ("", "sorted", "unique", SCALAR)
"""Kinds of inputs whose values an op may compare with those of others."""


def lenders_of(spec: InputSpec, inputs: Sequence[InputSpec]) -> tuple[InputSpec, ...]:
    """Return the lenders of an input: the case's inputs from which `spec` can take values.

    The result is empty if `spec` must keep its own values, or has too few elements. A lender has
    the dtype of `spec`, or is a Python number of the same family, such as the integers.

    Two more conditions apply to a lender whose rule does not set ``kind``. The lender must come
    before `spec`, so that no two inputs take values from each other. Its bounds or its rule must
    differ from those of `spec`, because inputs that are drawn alike share values anyway.
    """
    rule = spec.rule or ValueRule()
    whole = rule.kind or rule.values or rule.concerns_whole
    family = DTYPES[spec.dtype].kind
    if spec.strategy != SHARING or whole or family == "bool" or math.prod(spec.shape) < LEAST:
        return ()
    return tuple(other for other in inputs if other is not spec and _lends(other, spec, family))


def _lends(other: InputSpec, spec: InputSpec, family: str) -> bool:
    rule = other.rule or ValueRule()
    if rule.kind not in COMPARABLE or rule.relation or rule.generate or other.strategy == ABSENT:
        return False
    alike = other.dtype == spec.dtype
    if rule.kind == SCALAR:
        alike = DTYPES[other.dtype].kind == family
    if not alike or not math.prod(other.shape):
        return False
    if rule.kind:
        return True
    drawn_alike = (other.low, other.high, other.rule) == (spec.low, spec.high, spec.rule)
    return other.position < spec.position and other.strategy == SHARING and not drawn_alike


def put_shared(
    values: Array,
    dtype: str,
    rng: SeededRng,
    lenders: Sequence[Array],
    low: float | None,
    high: float | None,
) -> None:
    """Write values of other inputs into about a quarter of the elements, in place.

    The smallest and the largest of the values to be taken are always written. If another input has
    this input's shape, half of the written values come from the same positions of that input.
    """
    import numpy as np  # noqa: PLC0415

    flat = values.reshape(-1)
    rng = rng.derive("shared")
    places = np.flatnonzero(rng.derive("places").f64(flat.size) < SHARE)
    if places.size < 2:
        first = rng.derive("some").gen_range(0, flat.size)
        places = np.array([first, (first + 1) % flat.size])
    pools = [_allowed(array, dtype, low, high) for array in lenders]
    pool = np.concatenate([taken[kept][:MAX_TAKEN] for taken, kept in pools])
    if not pool.size:
        return
    flat[places] = pool[rng.ranges(places.size, 0, pool.size)]
    flat[places[0]], flat[places[-1]] = pool.min(), pool.max()
    for array, (taken, kept) in zip(lenders, pools, strict=True):
        if array.shape == values.shape:
            beside = places[1::2]
            beside = beside[kept[beside]]
            flat[beside] = taken[beside]


def _allowed(
    lender: Array, dtype: str, low: float | None, high: float | None
) -> tuple[Array, NDArray[np.bool_]]:
    """Convert values to a dtype; also return a mask of those that are exact and in range."""
    import numpy as np  # noqa: PLC0415

    from gpuemu_flow.numerics.dtypes import numpy_dtype  # noqa: PLC0415

    flat = np.ascontiguousarray(lender).reshape(-1)
    target = numpy_dtype(dtype)
    with np.errstate(all="ignore"):
        taken = flat.astype(target)
        kept = taken.astype(flat.dtype) == flat
    if DTYPES[dtype].kind == "float":
        exact = taken.astype(np.float64)
        kept &= np.isfinite(exact)
    else:
        exact = taken
    if low is not None:
        kept &= exact >= low
    if high is not None:
        kept &= exact <= high
    return taken, kept
