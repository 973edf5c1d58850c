"""Tensors of programs: outputs as plain arrays by name, and as the bytes that caches keep."""

from __future__ import annotations

import json
import mmap
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from gpuemu_flow.model.errors import FlowError, Problem
from gpuemu_flow.model.types import DTYPES, ELEMENT_TYPES, MAX_DIMS, Json
from gpuemu_flow.numerics.dtypes import (
    ML_DTYPES_NAMES,
    ImpossibleShapeError,
    TensorBytesError,
    bytes_of,
    element_name,
    is_size,
    numpy_dtype,
    tensor_of,
)
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


# Tensors as safetensors bytes: written deterministically, checked before use.


Buffer = bytes | bytearray | memoryview | mmap.mmap

# The bytes are those of safetensors (github.com/huggingface/safetensors): eight bytes of
# little-endian header length, a JSON header ``{name: {"dtype", "shape", "data_offsets"}}``, then
# the tensors' bytes without holes. Its library's numpy front end cannot read bfloat16 and float8.

MAX_HEADER = 1 << 20
_LENGTH = struct.Struct("<Q")
_TAGS = {
    "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "float32": "F32", "float64": "F64", "int8": "I8", "int16": "I16", "int32": "I32",
    "int64": "I64", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
    "bool": "BOOL", "complex64": "C64", "complex128": "C128",
}  # fmt: skip
_NAMES = {tag: name for name, tag in _TAGS.items()}


class BlobError(FlowError):
    """Raised for bytes that are no valid blob."""


def _refuse(slug: str, message: str) -> BlobError:
    return BlobError(Problem(slug, message, "the blob is damaged; it can be made again"))


def encode(tensors: Mapping[str, np.ndarray]) -> bytes:
    """Return the blob of tensors."""
    named = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    header: dict[str, Json] = {}
    parts: list[bytes | memoryview] = [b""]
    offset = 0
    for name, array in named:
        if name == "__metadata__":
            raise ValueError("a tensor cannot be called __metadata__")
        end = offset + array.nbytes
        header[name] = {
            "dtype": _TAGS[element_type(array)],
            "shape": list(array.shape),
            "data_offsets": [offset, end],
        }
        if array.nbytes:
            parts.append(bytes_of(array).data)
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise ValueError(f"a header of {len(text)} bytes is over {MAX_HEADER}")
    parts[0] = _LENGTH.pack(len(text)) + text
    return b"".join(parts)


def _unique_keys(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a key occurs twice")
    return out


def _header(view: memoryview) -> tuple[dict[str, Json], memoryview]:
    if len(view) < _LENGTH.size:
        raise _refuse("blob-truncated", f"{len(view)} bytes cannot hold a header length")
    (length,) = _LENGTH.unpack_from(view)
    if length > MAX_HEADER or length > len(view) - _LENGTH.size:
        raise _refuse("blob-bad-header", f"a header of {length} bytes does not fit")
    data = view[_LENGTH.size + length :]
    text = bytes(view[_LENGTH.size : _LENGTH.size + length])
    try:
        header = json.loads(text, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise _refuse("blob-bad-header", f"the header is no JSON object: {error}") from None
    if not isinstance(header, dict):
        raise _refuse("blob-bad-header", "the header is no JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _refuse("blob-bad-header", "__metadata__ is not a table of strings")
    return header, data


def _fits(value: Json) -> bool:
    return is_size(value) and value < 1 << 62


def _entries(header: Mapping[str, Json]) -> Iterator[tuple[str, str, tuple[int, ...], int, int]]:
    for name, entry in header.items():
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise _refuse("blob-bad-header", f"tensor {name!r} is not described")
        tag, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(tag, str) or tag not in _NAMES:
            raise _refuse("blob-bad-dtype", f"tensor {name!r} has the unknown dtype {tag!r:.40}")
        if not isinstance(shape, list) or len(shape) > MAX_DIMS or not all(map(_fits, shape)):
            raise _refuse("blob-bad-shape", f"tensor {name!r} has no valid shape")
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_fits, offsets)):
            raise _refuse("blob-bad-offsets", f"tensor {name!r} has no valid offsets")
        begin, end = offsets
        nbytes = ELEMENT_TYPES[_NAMES[tag]].itemsize
        for dim in shape:
            nbytes *= dim
        if end - begin != nbytes:
            raise _refuse("blob-bad-offsets", f"tensor {name!r}: {end - begin} bytes, not {nbytes}")
        yield name, _NAMES[tag], tuple(shape), begin, end


def decode(data: Buffer) -> dict[str, np.ndarray]:
    """Return the tensors in a blob, as read-only views on its memory. Raises BlobError:
    ``blob-truncated``, ``blob-bad-header``, ``blob-bad-dtype``, ``blob-bad-shape``,
    ``blob-bad-offsets``, ``blob-bad-values``: the bytes are no valid blob. A size in the header
    alone never makes this function allocate memory."""
    header, view = _header(memoryview(data).cast("B").toreadonly())
    entries = sorted(_entries(header), key=lambda entry: (entry[3], entry[4]))
    position = 0
    tensors: dict[str, np.ndarray] = {}
    for name, dtype, shape, begin, end in entries:
        if begin != position or end > len(view):
            raise _refuse("blob-bad-offsets", f"tensor {name!r} leaves a hole or exceeds the data")
        position = end
        raw = np.frombuffer(view[begin:end], dtype=np.uint8)
        try:
            tensors[name] = tensor_of(raw, shape, dtype)
        except ImpossibleShapeError as error:
            raise _refuse("blob-bad-shape", f"tensor {name!r} {error}") from None
        except TensorBytesError as error:
            raise _refuse("blob-bad-values", f"tensor {name!r} {error}") from None
    if position != len(view):
        raise _refuse("blob-bad-offsets", f"{len(view) - position} bytes belong to no tensor")
    return dict(sorted(tensors.items()))
