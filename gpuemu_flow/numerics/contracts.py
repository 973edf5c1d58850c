"""Apply the contracts of one case: transform outputs, and make checks without expected values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.model.types import DTYPES, Case, Failure, FailureKind, Shape, Tolerance
from gpuemu_flow.numerics.contract import PROMOTE, SAME_AS, UNKNOWN_SIZE, OutputContract
from gpuemu_flow.numerics.contract_views import index_fault, mask_of, view_of
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name, numpy_dtype, to_float64
from gpuemu_flow.numerics.layouts import multi_index

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
    """Return the failure of an output whose shape differs from the declared one, or None. An axis
    whose size is not known may have any size. `whose` begins the message: it says whether the op or
    the reference made the output."""
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
    """Return the dtype that the configuration demands of an output; None if it demands none. The
    configuration may demand the dtype of an input, or the dtype to which all inputs promote. The
    dtypes are then those of `inputs`."""
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
    """Return the dtype to which PyTorch would promote the given dtypes; None if none is known. If
    any is a float, integers do not count: the result is the widest float, or float32 for two
    different floats of that width. Integers and booleans follow numpy's rules, by which a signed
    integer and uint64 give float64. The result is the same as PyTorch's, except that PyTorch
    refuses to promote float8, and to promote uint16, uint32 and uint64 with other integers."""
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
    NaN lies within any bounds."""
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


Array = NDArray[Any]
Arrays = Mapping[str, Array]

REAL_PARTS = {"complex64": "float32", "complex128": "float64"}
REFERENCE, OP = "the reference's output", "output"


class CaseContracts:
    """The contracts of the outputs of one case, and the reference's outputs transformed by them."""

    def __init__(
        self,
        contracts: Iterable[OutputContract],
        input_dims: Dims,
        case: Case,
        inputs: Arrays,
        expected: Arrays,
    ) -> None:
        self._contracts = {c.name: c for c in contracts if c.name in expected}
        for name, array in expected.items():
            if array.dtype.kind == "c":
                self._contracts.setdefault(name, OutputContract(name))
        self._inputs = inputs
        self._raw = expected
        self._sizes: dict[str, int] = {}
        if self._contracts:
            self._sizes = sizes_of_dims(input_dims, inputs, dict(case.dims))
        self._masks: dict[str, NDArray[np.bool_]] = {}
        self.refused = tuple(self._refused())
        self.expected: dict[str, Array] = {} if self.refused else self.views(expected)

    def __bool__(self) -> bool:
        return bool(self._contracts)

    @property
    def of_form(self) -> bool:
        """Tell whether the contracts declare nothing but dims and dtypes."""
        return all(contract.of_form for contract in self._contracts.values())

    @property
    def empty_by_values(self) -> bool:
        """Tell whether the inputs' values, not their sizes, make all outputs empty."""
        unknown = {n for n, c in self._contracts.items() if UNKNOWN_SIZE in (c.dims or ())}
        given = any(array.size for array in self._inputs.values())
        empty = all(not array.size for array in self._raw.values())
        return given and empty and unknown == self._raw.keys()

    def _refused(self) -> list[Failure]:
        found = []
        for name, contract in self._contracts.items():
            fault = shape_fault(contract, self._raw[name], self._sizes, REFERENCE)
            if fault is None and contract.ties:
                fault = self._index_fault(contract, self._raw[name])
            if fault is not None:
                text = fault.message
                if not text.startswith(REFERENCE):
                    text = f"the reference: {text}"
                found.append(Failure(FailureKind.REFERENCE, text, output=name, index=fault.index))
        return found

    def _index_fault(self, contract: OutputContract, indices: Array) -> Failure | None:
        source = self._inputs[contract.ties]
        axis = contract.axis or 0
        if not -source.ndim <= axis < source.ndim:
            text = f"{contract.ties!r} has no axis {axis}"
            return Failure(FailureKind.SHAPE, text, output=contract.name)
        return index_fault(contract.name, indices, source, axis % source.ndim, contract.ties)

    def apart(self) -> list[OutputContract]:
        return [contract for contract in self._contracts.values() if contract.apart]

    def whole(self, name: str) -> Array:
        """Return one output of the reference, not transformed and not masked."""
        return self._raw[name]

    @property
    def of_any_shape(self) -> set[str]:
        """Return the names of the outputs that may differ in shape from the reference's."""
        return {name for name, c in self._contracts.items() if c.compare is not None}

    def dtype(self, name: str) -> str | None:
        contract = self._contracts.get(name)
        return None if contract is None else declared_dtype(contract, self._inputs)

    def dtypes(self, wanted: Mapping[str, str]) -> dict[str, str]:
        """Return the dtype in which each output is compared, by the output's name. `wanted` maps
        each output to its dtype before any conversion. Outputs that are judged as a whole are left
        out."""
        return {
            name: REAL_PARTS.get(dtype)
            or ((dtype_name(self.expected[name].dtype) or "") if self._changes(name) else dtype)
            for name, dtype in wanted.items()
            if name in self.expected
        }

    def _changes(self, name: str) -> bool:
        """Tell whether an output is converted to another dtype before it is compared."""
        contract = self._contracts.get(name)
        if contract is None:
            return False
        other = bool(contract.ties) or contract.up_to == "permutation"
        return other or self._raw[name].dtype.kind == "c"

    @property
    def tolerances(self) -> dict[str, Tolerance]:
        own = {name: contract.tolerance for name, contract in self._contracts.items()}
        return {
            name: tolerance
            for name, tolerance in own.items()
            if tolerance is not None and name in self.expected
        }

    def shape_faults(self, actual: Arrays) -> list[Failure]:
        """List the failures of the op's outputs whose shape differs from the declared one."""
        faults = [
            shape_fault(contract, actual[name], self._sizes, OP)
            for name, contract in self._contracts.items()
            if name in actual
        ]
        return [fault for fault in faults if fault is not None]

    def means(self, contract: OutputContract) -> Array:
        """Return the declared means of a random output's elements, without masked elements."""
        declared = contract.statistics
        expected = self._raw[contract.name]
        mean = "" if declared is None else declared.mean
        if isinstance(mean, float):
            means = np.full(expected.shape, mean)
        else:
            means = self._inputs[mean] if mean else expected
        if means.shape != expected.shape:
            means = np.broadcast_to(means, expected.shape)
        return self.masked(contract.name, means)

    def faults(self, actual: Arrays) -> list[Failure]:
        """List the failures that can be found without expected values."""
        found: list[Failure] = []
        for name, contract in self._contracts.items():
            if contract.ties and (fault := self._index_fault(contract, actual[name])) is not None:
                found.append(fault)
            outside = bounds_fault(contract, self.masked(name, actual[name]))
            if outside is not None:
                position, fault = outside
                index = self.index(name, (position,), actual[name].shape)
                found.append(replace(fault, index=index))
        return found

    def views(self, outputs: Arrays) -> dict[str, Array]:
        """Convert `outputs`, computed from the case's own inputs, to the form that is compared."""
        return {
            name: self.masked(name, self._view(name, values))
            for name, values in outputs.items()
            if not self._is_apart(name)
        }

    def views_of_moved(self, outputs: Arrays) -> dict[str, Array]:
        """Convert outputs of the reference on perturbed inputs to the form that is compared. An
        output with a tolerance of its own is replaced by the case's expected output, so that no
        tolerance is measured for it."""
        views = {}
        for name, values in outputs.items():
            if name not in self.expected:
                continue
            contract = self._contracts.get(name)
            if values.dtype == np.complex64:
                values = np.asarray(values).astype(np.complex128)  # noqa: PLW2901
            fits = np.asarray(values).shape == self._raw[name].shape
            if contract is not None and contract.tolerance is not None:
                views[name] = self.expected[name]
            else:
                views[name] = self.masked(name, self._view(name, values)) if fits else values
        return views

    def _is_apart(self, name: str) -> bool:
        contract = self._contracts.get(name)
        return contract is not None and contract.apart

    def _view(self, name: str, values: Array) -> Array:
        contract = self._contracts.get(name)
        if contract is None:
            return values
        return view_of(contract, values, self._raw[name], self._inputs)

    def masked(self, name: str, values: Array) -> Array:
        """Return the elements of `values` that the mask of the output `name` selects, in 1-d. If
        the output has no mask, return `values` unchanged."""
        mask = self._mask(name)
        return values if mask is None else values[mask]

    def _mask(self, name: str) -> NDArray[np.bool_] | None:
        contract = self._contracts.get(name)
        if contract is None or contract.only is None:
            return None
        if name not in self._masks:
            self._masks[name] = mask_of(contract.only, self._inputs, self._raw[name].shape)
        return self._masks[name]

    def index(self, name: str, index: Shape | None, shape: Shape | None = None) -> Shape | None:
        """Convert an element's index in the compared form to its index in the output itself."""
        mask = self._mask(name)
        if index is None:
            return None
        if mask is None:
            return index if shape is None else multi_index(index[0], shape)
        return multi_index(int(np.flatnonzero(mask)[index[0]]), mask.shape)

    def note(self, name: str) -> str:
        """Explain, for a failure's message, how an output was transformed; "" if it was not."""
        contract = self._contracts.get(name)
        if contract is None:
            return ""
        if contract.ties:
            order = ", in the order that fits best" if contract.order else ""
            return f"the elements of {contract.ties!r} at these indices{order}"
        if contract.up_to == "permutation":
            return "labels numbered in the order in which they first occur"
        if self._raw[name].dtype.kind == "c":
            return "absolute values, the actual one that of the expected and of the difference"
        if contract.order:
            return "in the order that fits the expected ones best"
        return ""

    def is_masked(self, name: str) -> bool:
        """Tell whether an output is compared in part only."""
        return self._mask(name) is not None

    def with_properties(
        self, name: str, raw: Array, view: Array, exempt: NDArray[np.bool_] | None
    ) -> tuple[Array, NDArray[np.bool_] | None]:
        """Return the array on which invariants are checked, and a mask of its exempt elements."""
        mask = self._mask(name)
        if mask is not None:
            left_out = ~mask
            if exempt is not None:
                left_out[mask] = exempt
            return raw, left_out
        return (raw, None) if self._changes(name) else (view, exempt)


class PairedReference:
    """A reference that returns complex outputs as pairs of floats."""

    def __init__(self, evaluate: Any) -> None:
        self._evaluate = evaluate

    @property
    def has_source(self) -> bool:
        return bool(self._evaluate.has_source)

    def __call__(self, inputs: Arrays, **options: Any) -> Arrays:
        outputs = self._evaluate(inputs, **options)
        return {
            name: np.stack([array.real, array.imag]) if array.dtype.kind == "c" else array
            for name, array in outputs.items()
        }


class SeenOutputs(Struct, frozen=True):
    """The op's outputs in one case, with the contracts that transform them."""

    contracts: CaseContracts
    actual: Arrays  # the outputs before any transformation


class ViewedReference:
    """A reference that returns outputs in the form that is compared; see `envelope.Evaluate`."""

    def __init__(self, evaluate: Any, contracts: CaseContracts) -> None:
        self._evaluate = evaluate
        self._contracts = contracts

    @property
    def has_source(self) -> bool:
        return bool(self._evaluate.has_source)

    def __call__(self, inputs: Arrays, **options: Any) -> Arrays:
        outputs = self._evaluate(inputs, **options)
        return self._contracts.views_of_moved(outputs)
