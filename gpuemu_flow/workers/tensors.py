"""Convert outputs of a program to plain arrays by name."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from gpuemu_flow.model.types import DTYPES, MAX_DIMS
from gpuemu_flow.numerics.dtypes import ML_DTYPES_NAMES, element_name, numpy_dtype
from gpuemu_flow.workers.api import DEFAULT_OUTPUT, OpError, RunError

MAX_OUTPUT_BYTES = 1 << 33


def element_type(array: np.ndarray) -> str:
    """Return the canonical name of an array's dtype; raise TypeError if it has none."""
    name = element_name(array.dtype)
    if name is None:
        raise TypeError(f"tensors of dtype {array.dtype} have no name in the protocol")
    return name


def demand_bools(arrays: Mapping[str, np.ndarray]) -> None:
    """Raise OpError ``op-output-junk`` if an output of bools holds bytes other than 0 and 1."""
    for name, array in arrays.items():
        if array.dtype == np.bool_ and array.size and int(array.view(np.uint8).max()) > 1:
            raise _fail("op-output-junk", f"output {name!r} holds bytes that are no bool")


NOTHING = 'return the array, or name the input that the op writes to: `mutates = ["x"]`'


def _fail(slug: str, message: str, hint: str = "") -> OpError:
    return OpError(RunError(slug, message, hint))


def _from_torch(value: Any) -> Any:
    """Convert a torch tensor to numpy; for bfloat16 and float8, reinterpret the bits.

    A lazy negation or conjugation is carried out first, since the stored bits do not show it.
    """
    torch = sys.modules["torch"]
    tensor = value.detach().cpu()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_neg() and str(tensor.dtype).startswith("torch.float8"):
        return -_from_torch(tensor._neg_view())  # PyTorch cannot negate float8 itself
    tensor = tensor.resolve_conj().resolve_neg()
    name = str(tensor.dtype).removeprefix("torch.")
    if name in ML_DTYPES_NAMES:
        words = torch.uint8 if DTYPES[name].itemsize == 1 else torch.int16
        return tensor.contiguous().view(words).numpy().view(numpy_dtype(name))
    return tensor.numpy()


def _from_dlpack(value: Any, name: str) -> Any:
    """Convert a tensor of any framework to numpy by DLPack.

    A tensor of bfloat16 or float8 can be converted only if PyTorch is loaded.

    Raises OpError: ``op-output-dtype``: the tensor is on a device, or has a dtype that neither
    numpy nor PyTorch can convert.
    """
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        torch = sys.modules.get("torch")
        if torch is not None:
            with suppress(BufferError, RuntimeError, TypeError, ValueError):
                return _from_torch(torch.from_dlpack(value))
        text = f"output {name!r} cannot be taken over by DLPack: {error}"
        raise _fail("op-output-dtype", text, "return a tensor on the CPU") from None


def as_plain_array(value: Any, name: str) -> np.ndarray:
    """Return one returned value as a base-class ndarray of a known dtype in native byte order.

    Raises OpError: ``op-output-missing`` (no array at all), ``op-output-dtype``, ``op-output-
    shape``; ``op-output-junk`` (masked elements).
    """
    # A view, since the program could still change the shape of the array that it returned.
    given = value if type(value) is np.ndarray else _as_array(value, name)
    array = np.ndarray.view(given, np.ndarray)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if element_name(array.dtype) is None:
        raise _fail("op-output-dtype", f"output {name!r} has the dtype {array.dtype.name!r:.60}")
    if array.ndim > MAX_DIMS or array.nbytes > MAX_OUTPUT_BYTES:
        raise _fail(
            "op-output-shape",
            f"output {name!r} of shape {array.shape} is over the limit of "
            f"{MAX_DIMS} dims and {MAX_OUTPUT_BYTES} bytes",
        )
    return array


def _as_array(value: Any, name: str) -> np.ndarray:
    """Convert a returned value to an ndarray, with the errors of `as_plain_array`."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
        value = _from_torch(value)
    elif hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        value = _from_dlpack(value, name)
    masked = sys.modules.get("numpy.ma")  # where it is not loaded, no array is of its type
    if isinstance(value, getattr(masked, "MaskedArray", ())) and np.ma.is_masked(value):
        text = f"output {name!r} is a masked array, whose masked elements have no value"
        raise _fail("op-output-junk", text, "return an array with a value for every element")
    if not _is_array_like(value):
        kind = type(value).__name__
        raise _fail(
            "op-output-missing",
            f"output {name!r} is of type {kind}, not an array",
            NOTHING if value is None else "",
        )
    try:
        return np.asarray(value)
    except OverflowError:
        raise _fail("op-output-dtype", f"output {name!r} fits no integer type") from None


def _is_array_like(value: Any) -> bool:
    if hasattr(value, "__array__") or hasattr(value, "__dlpack__"):
        return True
    return isinstance(value, (bool, int, float, complex, np.generic))


def name_outputs(returned: Any, output_names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the outputs of a callable as arrays, by name; see `name_values`.

    Raises OpError: See `name_values` and `as_plain_array`.
    """
    values = name_values(returned, output_names)
    return {name: as_plain_array(value, name) for name, value in values.items()}


def name_values(returned: Any, output_names: Sequence[str]) -> dict[str, Any]:
    """Return the outputs of a callable by name, without converting them.

    Raises OpError: ``op-output-missing`` if a name has no array, or the number of arrays is wrong.
    """
    names = tuple(output_names) or (DEFAULT_OUTPUT,)
    if isinstance(returned, Mapping):
        return _from_mapping(returned, output_names)
    if isinstance(returned, (tuple, list)) and all(map(_is_array_like, returned)):
        if not output_names and len(returned) > 1:
            return {f"{DEFAULT_OUTPUT}{at}": value for at, value in enumerate(returned)}
        if len(returned) != len(names):
            raise _fail(
                "op-output-missing",
                f"{len(returned)} outputs returned where {len(names)} are declared: "
                f"{', '.join(names)}",
                "declare them as `outputs` in the op's schema",
            )
        values = dict(zip(names, returned, strict=True))
    elif len(names) == 1:
        values = {names[0]: returned}
    else:
        raise _fail(
            "op-output-missing",
            f"one {type(returned).__name__} returned where {len(names)} outputs are declared: "
            f"{', '.join(names)}",
            "return a tuple in this order, or a dict",
        )
    return values


def _from_mapping(returned: Mapping[Any, Any], output_names: Sequence[str]) -> dict[str, Any]:
    if not returned or not all(isinstance(key, str) for key in returned):
        raise _fail("op-output-missing", "a mapping of outputs needs string keys, at least one")
    wanted = tuple(output_names)
    if len(returned) == 1 and len(wanted) <= 1:
        (value,) = returned.values()
        name = wanted[0] if wanted else DEFAULT_OUTPUT
        return {name: value}
    if wanted and set(returned) != set(wanted):
        raise _fail(
            "op-output-missing",
            f"the outputs are {', '.join(sorted(returned))}, but {', '.join(wanted)} are declared",
        )
    return {name: returned[name] for name in wanted or sorted(returned)}
