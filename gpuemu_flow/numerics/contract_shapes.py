"""Check tensors against the shapes, dtypes and bounds that the configuration declares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.contract import PROMOTE, SAME_AS, UNKNOWN_SIZE, OutputContract
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name, numpy_dtype, to_float64
from gpuemu_flow.numerics.statistics import multi_index
from gpuemu_flow.types import DTYPES, Failure, FailureKind

Array = NDArray[Any]
Arrays = Mapping[str, Array]
Dims = Mapping[str, Sequence[str | int]]


def sizes_of_dims(input_dims: Dims, inputs: Arrays, named: Mapping[str, int]) -> dict[str, int]:
    """Return the size of each dim, taken from the inputs if any of them has the dim."""
    found: dict[str, set[int]] = {}
    for name, dims in input_dims.items():
        shape = inputs[name].shape if name in inputs else ()
        if len(shape) == len(dims):
            for dim, size in zip(dims, shape, strict=True):
                if isinstance(dim, str):
                    found.setdefault(dim, set()).add(size)
    sizes = {dim: min(seen) for dim, seen in found.items() if len(seen) == 1}
    return {**{dim: size for dim, size in named.items() if dim not in found}, **sizes}


def shape_fault(
    contract: OutputContract, array: Array, sizes: Mapping[str, int], whose: str
) -> Failure | None:
    """Return the failure of an output whose shape differs from the declared one, or None.

    An axis whose size is not known may have any size. `whose` begins the message: it says whether
    the op or the reference made the output.
    """
    if contract.dims is None:
        return None
    wanted = [
        axis if isinstance(axis, int) else None if axis == UNKNOWN_SIZE else sizes.get(axis)
        for axis in contract.dims
    ]
    fits = len(wanted) == array.ndim and all(
        size in (None, found) for size, found in zip(wanted, array.shape, strict=True)
    )
    if fits:
        return None
    declared = ", ".join(
        str(axis) if size in (None, axis) else f"{axis} = {size}"
        for axis, size in zip(contract.dims, wanted, strict=True)
    )
    message = f"{whose} {contract.name!r} has shape {list(array.shape)}, declared as [{declared}]"
    return Failure(FailureKind.SHAPE, message, output=contract.name)


def declared_dtype(contract: OutputContract, inputs: Arrays) -> str | None:
    """Return the dtype that the configuration demands of an output; None if it demands none.

    The configuration may demand the dtype of an input, or the dtype to which all inputs promote.
    The dtypes are then those of `inputs`.
    """
    if not contract.dtype:
        return None
    if contract.dtype == PROMOTE:
        return promoted([dtype_name(array.dtype) or "" for array in inputs.values()])
    if contract.dtype.startswith(SAME_AS):
        source = inputs.get(contract.dtype.removeprefix(SAME_AS))
        return None if source is None else dtype_name(source.dtype)
    return contract.dtype


def declared_dtypes(contracts: Iterable[OutputContract], inputs: Arrays) -> dict[str, str]:
    """Map each output for which the configuration demands a dtype to that dtype."""
    found = {contract.name: declared_dtype(contract, inputs) for contract in contracts}
    return {name: dtype for name, dtype in found.items() if dtype is not None}


def promoted(names: Sequence[str]) -> str | None:
    """Return the dtype to which PyTorch would promote the given dtypes; None if none is known.

    If any is a float, integers do not count: the result is the widest float, or float32 for two
    different floats of that width. Integers and booleans follow numpy's rules, by which a signed
    integer and uint64 give float64. The result is the same as PyTorch's, except that PyTorch
    refuses to promote float8, and to promote uint16, uint32 and uint64 with other integers.
    """
    known = [DTYPES[name] for name in dict.fromkeys(names) if name in DTYPES]
    floats = [dtype for dtype in known if dtype.kind == "float"]
    if floats:
        widest = max(dtype.itemsize for dtype in floats)
        largest = [dtype.name for dtype in floats if dtype.itemsize == widest]
        return largest[0] if len(largest) == 1 else "float32"
    if not known:
        return None
    return dtype_name(np.result_type(*(numpy_dtype(dtype.name) for dtype in known)))


def bounds_fault(contract: OutputContract, values: Array) -> tuple[int, Failure] | None:
    """Return the flat position of the first element outside of the declared bounds, and a failure.

    Return None if no element is outside. A float may lie beyond a bound by two units in its last
    place, since rounding can cause such an error; bounds of 0, and bounds of integers, are exact.
    NaN lies within any bounds.
    """
    if (contract.low is None and contract.high is None) or not values.size:
        return None
    dtype = dtype_name(values.dtype) or ""
    limits = FLOAT_LIMITS.get(dtype)
    values = np.abs(values) if values.dtype.kind == "c" else values
    numbers = values if values.dtype.kind in "biu" else to_float64(values)
    outside = np.zeros(values.shape, np.bool_)
    with np.errstate(all="ignore"):
        if contract.low is not None:
            slack = abs(contract.low) * 2.0 * limits.eps if limits else 0.0
            outside |= numbers < contract.low - slack
        if contract.high is not None:
            slack = abs(contract.high) * 2.0 * limits.eps if limits else 0.0
            outside |= numbers > contract.high + slack
    number = int(np.count_nonzero(outside))
    if not number:
        return None
    position = int(np.flatnonzero(outside)[0])
    index = multi_index(position, values.shape)
    value = float(numbers[index])
    low = "-inf" if contract.low is None else f"{contract.low:g}"
    high = "inf" if contract.high is None else f"{contract.high:g}"
    message = (
        f"{number} of {values.size} elements of {contract.name!r} lie outside of the declared "
        f"range [{low}, {high}]; first {value:g}"
    )
    return position, Failure(
        FailureKind.INVARIANT, message, output=contract.name, index=index, actual=value
    )
