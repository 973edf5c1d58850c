"""Transform outputs for comparison so that differences which a contract allows disappear.

The op's outputs, the reference's outputs, and the reference's outputs on perturbed inputs are
transformed in the same way, so that the tolerance is measured on the values that are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.model.types import Failure, FailureKind
from gpuemu_flow.numerics.contract import Mask, OutputContract
from gpuemu_flow.numerics.dtypes import to_float64
from gpuemu_flow.numerics.layouts import multi_index

Array = NDArray[Any]
Arrays = Mapping[str, Array]

MOST_PAIRED = 2048
"""Largest number of rows of floats paired by distance; more are sorted and paired in order."""


def mask_of(mask: Mask, inputs: Arrays, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return a boolean array of the given output shape: True for elements that are compared."""
    source = inputs[mask.input]
    order = sorted(range(len(mask.axes)), key=mask.axes.__getitem__)
    spread = source.transpose(order).reshape(
        [source.shape[mask.axes.index(i)] if i in mask.axes else 1 for i in range(len(shape))]
    )
    if mask.test == "<":
        places = np.arange(shape[mask.along]).reshape(
            [-1 if i == mask.along else 1 for i in range(len(shape))]
        )
        counts = places < to_float64(spread) if spread.dtype.kind not in "biu" else places < spread
    elif mask.test in ("==", "!="):
        equal = spread == mask.value
        counts = equal if mask.test == "==" else ~equal
    else:
        counts = spread.astype(np.bool_)
        counts = counts if mask.test == "true" else ~counts
    return np.broadcast_to(counts, shape)


def chosen(indices: Array, source: Array, axis: int) -> Array:
    """Return the elements of `source` that indices along an axis select. `indices` has the axes of
    `source`, or all of them but `axis`; the result has the same axes as `indices`. Indices out of
    range are clipped, since `index_fault` reports them."""
    dropped = indices.ndim == source.ndim - 1
    wide = np.expand_dims(indices, axis) if dropped else indices
    size = source.shape[axis]
    inside = np.clip(wide.astype(np.int64), 0, max(size - 1, 0))
    taken: Array = np.take_along_axis(source, inside, axis)
    return taken.squeeze(axis) if dropped else taken


def index_fault(name: str, indices: Array, source: Array, axis: int, of: str) -> Failure | None:
    """Check the indices that an output holds; return the first failure, or None. The indices select
    elements of an input along one of its axes. They must be integers, of a shape that fits the
    input, and in range. If they have as many axes as the input, no index may occur twice along
    `axis`."""

    def fault(message: str, index: tuple[int, ...] | None = None) -> Failure:
        value = None if index is None else float(indices[index])
        return Failure(FailureKind.INVARIANT, message, output=name, index=index, actual=value)

    if indices.dtype.kind not in "iu":
        return fault(f"{name!r} is of {indices.dtype.name}: no indices into {of!r}")
    rest = list(source.shape)
    del rest[axis]
    own = list(indices.shape)
    if indices.ndim == source.ndim:
        del own[axis]
    if own != rest:
        shapes = f"{list(indices.shape)} into {of!r} of {list(source.shape)}"
        return fault(f"{name!r} has a shape that indices along axis {axis} have not: {shapes}")
    size = source.shape[axis]
    wrong = np.flatnonzero((indices < 0) | (indices >= size))
    if wrong.size:
        index = multi_index(int(wrong[0]), indices.shape)
        text = f"{wrong.size} of {indices.size} indices of {name!r} are not in 0 to {size - 1}"
        return fault(f"{text}; first {int(indices[index])} at {list(index)}", index)
    if indices.ndim < source.ndim:
        return None
    order = np.argsort(indices, axis=axis, kind="stable")
    ordered = np.take_along_axis(indices, order, axis)
    later = np.moveaxis(ordered, axis, 0)[1:] == np.moveaxis(ordered, axis, 0)[:-1]
    if not later.any():
        return None
    first = np.argwhere(later)[0]
    places = np.moveaxis(order, axis, 0)
    others = [int(i) for i in first[1:]]
    at = (int(first[0]) + 1, *others)
    place = int(places[at])
    others.insert(axis % source.ndim, place)
    index = tuple(others)
    text = f"{name!r} names one element of {of!r} twice"
    return fault(f"{text}: index {int(indices[index])} again at {list(index)}", index)


def in_order_of(values: Array, expected: Array, axis: int) -> Array:
    """Return the entries of `values` along an axis, in the order that fits `expected` best. Axes
    before `axis` are batches; each batch is ordered independently. Axes after it belong to the
    entries, which move as a whole."""
    axis %= max(values.ndim, 1)
    count = values.shape[axis]
    batches = int(np.prod(values.shape[:axis], dtype=np.int64))
    flat_v = values.reshape(batches, count, -1) if values.size else values
    if not values.size:
        return values
    flat_e = expected.reshape(batches, count, -1)
    out = np.empty_like(flat_v)
    for batch in range(batches):
        out[batch] = flat_v[batch][_pairing(flat_v[batch], flat_e[batch])]
    return out.reshape(values.shape)


def _pairing(values: Array, expected: Array) -> NDArray[np.intp]:
    """Return, for each expected row, the index of the row of `values` that is paired with it."""
    exact = values.dtype.kind in "biu" and expected.dtype.kind in "biu"
    wide_v = values if exact else to_float64(values)
    wide_e = expected if exact else to_float64(expected)
    if not exact and values.shape[1] > 1 and len(values) <= MOST_PAIRED:
        return _nearest(wide_v, wide_e)
    pairing = np.empty(len(values), np.intp)
    # The last key decides first; NaN comes last.
    pairing[np.lexsort(wide_e.T[::-1])] = np.lexsort(wide_v.T[::-1])
    return pairing


def _nearest(values: NDArray[np.float64], expected: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return, for each expected row, the index of the nearest row that is still unpaired."""
    pairing = np.empty(len(values), np.intp)
    left = np.ones(len(values), np.bool_)
    with np.errstate(all="ignore"):
        for i, row in enumerate(expected):
            gap = np.where(values == row, 0.0, np.abs(values - row))
            gap[np.isnan(values) & np.isnan(row)] = 0.0
            gap[np.isnan(gap)] = np.inf
            distance = np.where(left, gap.max(axis=1), np.nan)
            pairing[i] = np.nanargmin(distance)
            left[pairing[i]] = False
    return pairing


def signed_like(values: Array, expected: Array, axis: int) -> Array:
    """Return the vectors along an axis, each negated where that brings it nearer to `expected`."""
    with np.errstate(all="ignore"):
        product = to_float64(values) * to_float64(expected)
        opposed = np.nansum(np.where(np.isfinite(product), product, 0.0), axis, keepdims=True) < 0.0
    return np.where(opposed, -values, values)


def relabelled(values: Array, axis: int | None) -> Array:
    """Number labels in the order in which they first occur, and return these numbers. Two outputs
    that group the elements in the same way thus give equal results, whatever labels they use for
    the groups. Labels are numbered separately for each index on the axes before `axis`; if `axis`
    is None, they are numbered over all elements."""
    start = 0 if axis is None else axis % max(values.ndim, 1)
    batches = int(np.prod(values.shape[:start], dtype=np.int64))
    if not values.size:
        return values.astype(np.int64)
    out = np.empty((batches, values.size // batches), np.int64)
    for batch, row in enumerate(values.reshape(batches, -1)):
        _, first, number = np.unique(row, return_index=True, return_inverse=True)
        rank = np.empty(len(first), np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        out[batch] = rank[number.reshape(-1)]
    return out.reshape(values.shape)


def view_of(  # noqa: PLR0911 - one for each kind
    contract: OutputContract, values: Array, expected: Array, inputs: Arrays
) -> Array:
    """Return one output in the form that is compared; `expected` is the reference's output."""
    values = np.asarray(values)
    if contract.ties:
        source = inputs[contract.ties]
        axis = _axis(contract, source.ndim)
        taken = chosen(values, source, axis)
        if not contract.order or values.shape != expected.shape or values.ndim != source.ndim:
            return taken
        return in_order_of(taken, chosen(np.asarray(expected), source, axis), axis)
    if values.shape != expected.shape:
        return values
    if contract.up_to == "phase":
        values = turned_like(values, expected, _axis(contract, values.ndim))
    if expected.dtype.kind == "c" or values.dtype.kind == "c":
        return _complex_view(contract, values, expected)
    if contract.order:
        return in_order_of(values, expected, _axis(contract, values.ndim))
    if contract.up_to == "sign":
        return signed_like(values, expected, _axis(contract, values.ndim))
    if contract.up_to == "permutation":
        return relabelled(values, contract.axis)
    return values


def _complex_view(contract: OutputContract, values: Array, expected: Array) -> Array:
    axis = _axis(contract, values.ndim)
    if contract.order:
        pairs = [np.stack([a.real, a.imag], -1) for a in (values, expected)]
        pairs = [pairs[0].astype(np.float64), pairs[1].astype(np.float64)]
        ordered = in_order_of(pairs[0], pairs[1], axis)
        narrow = values.dtype
        values = (ordered[..., 0] + 1j * ordered[..., 1]).astype(narrow)
    if contract.up_to == "sign":
        opposed = _product(values, expected, axis).real < 0.0
        values = np.where(opposed, -values, values)
    return distances(values, expected)


def distances(values: Array, expected: Array) -> Array:
    """Convert complex values to real numbers, and keep their distances from the expected values. A
    finite value v with the expected value e becomes ``|e| + |v - e|``. The expected value itself
    becomes ``|e|``. A comparison of the two results therefore judges v by ``|v - e|``. All numbers
    with an infinite part count as one infinity (C17, annex G.3), because the direction of an
    infinity depends on the order of the operations."""
    with np.errstate(all="ignore"):
        wide, wanted = values.astype(np.complex128), expected.astype(np.complex128)
        size = np.abs(wanted)
        gap = np.abs(wide - wanted)
        infinite = np.isinf(wide)
        far = np.where(np.isnan(wide) & ~infinite, np.nan, -np.inf)  # from a non-finite value
        unlike = np.where(np.isfinite(size), size + gap, far)
        result = np.where(wide == wanted, size, unlike)
        result = np.where(infinite & np.isinf(wanted), np.inf, result)
    return result.astype(np.float32 if values.dtype == np.complex64 else np.float64)


def _product(values: Array, expected: Array, axis: int) -> Array:
    """Return the inner products of vectors along an axis, with 0 for non-finite terms."""
    with np.errstate(all="ignore"):
        product = values.astype(np.complex128) * np.conj(expected.astype(np.complex128))
        total: Array = np.where(np.isfinite(product), product, 0.0).sum(axis, keepdims=True)
    return total


def turned_like(values: Array, expected: Array, axis: int) -> Array:
    """Return the vectors along an axis, each rotated by the phase that fits `expected` best."""
    total = _product(values, expected, axis)
    size = np.abs(total)
    turn = np.where(size > 0.0, np.conj(total) / np.where(size > 0.0, size, 1.0), 1.0)
    with np.errstate(all="ignore"):
        turned = values.astype(np.complex128) * turn
    return turned.astype(values.dtype if values.dtype.kind == "c" else np.complex128)


def _axis(contract: OutputContract, ndim: int) -> int:
    axis = contract.axis or 0
    return axis + ndim if axis < 0 else axis


_MARK = " ~ "
WITH_GRADIENTS = "inputs that require gradients"
"""The label of the outputs that the op returns in training, which must be right, too."""


IN_PLACE = "the content that it left in its inputs"
"""The label of the outputs that an op also returns, as it left them in inputs of their names."""
_AFTER = " after the call"


def after_call(name: str) -> str:
    """Return the output's name of an input's content after the call, if no output is named so."""
    return name + _AFTER


def variant_name(output: str, label: str) -> str:
    """Return the name under which a variant's output is kept among the op's outputs. `label` names
    the variant."""
    return f"{output}{_MARK}{label}"


def split_variants(outputs: Arrays) -> tuple[dict[str, Array], dict[str, Arrays]]:
    """Separate the op's own outputs from those of its variants."""
    own = {name: array for name, array in outputs.items() if _MARK not in name}
    changed: dict[str, dict[str, Array]] = {}
    for name, array in outputs.items():
        output, mark, label = name.partition(_MARK)
        if mark:
            changed.setdefault(label, {})[output] = array
    return own, {label: {**own, **arrays} for label, arrays in changed.items()}
