"""Tensors as safetensors bytes: written deterministically, checked before use.

Format (github.com/huggingface/safetensors): eight bytes of little-endian header length, a JSON
header ``{name: {"dtype", "shape", "data_offsets"}}``, then the tensors' bytes without holes. This
module does not use the safetensors library, whose numpy front end cannot read bfloat16 and float8.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterator, Mapping

import numpy as np

from gpuemu_flow.model.errors import FlowError, Problem
from gpuemu_flow.model.types import ELEMENT_TYPES, MAX_DIMS, Json
from gpuemu_flow.numerics.dtypes import (
    ImpossibleShapeError,
    TensorBytesError,
    bytes_of,
    is_size,
    tensor_of,
)
from gpuemu_flow.workers.tensors import element_type

Buffer = bytes | bytearray | memoryview | mmap.mmap

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
    ``blob-truncated``, ``blob-bad-header``, ``blob-bad-dtype``, ``blob-bad- shape``,
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
