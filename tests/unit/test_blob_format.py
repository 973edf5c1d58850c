"""Blobs are deterministic safetensors files, readable by the library, and hostile ones refused."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from for_each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuemu_flow.model.types import DTYPES
from gpuemu_flow.numerics.dtypes import numpy_dtype
from gpuemu_flow.workers import tensors


def sample(dtype: str, shape: tuple[int, ...] = (3, 5)) -> np.ndarray:
    rng = np.random.default_rng(1)
    size = int(np.prod(shape)) * DTYPES[dtype].itemsize
    raw = rng.integers(0, 2 if dtype == "bool" else 256, size, dtype=np.uint8)
    return raw.view(numpy_dtype(dtype)).reshape(shape)


def same(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> bool:
    return first.keys() == second.keys() and all(
        (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
        for a, b in ((first[k], second[k]) for k in first)
    )


EVERYTHING = {name: sample(name) for name in DTYPES} | {
    "scalar": sample("float64", ()),
    "empty": sample("bfloat16", (4, 0, 2)),
}


def test_round_trip_of_every_dtype() -> None:
    assert same(tensors.decode(tensors.encode(EVERYTHING)), EVERYTHING)
    assert tensors.decode(tensors.encode({})) == {}


def test_layouts_are_made_contiguous() -> None:
    base = np.arange(24, dtype=np.int32).reshape(4, 6)
    views = {"t": base.T, "s": base[::2, ::-1], "e": np.broadcast_to(base[:1], (4, 6))}
    assert same(tensors.decode(tensors.encode(views)), views)


def test_the_bytes_do_not_depend_on_the_order() -> None:
    backwards = dict(reversed(EVERYTHING.items()))
    assert tensors.encode(backwards) == tensors.encode(EVERYTHING)


def test_every_tensor_is_aligned() -> None:
    for array in tensors.decode(tensors.encode(EVERYTHING)).values():
        assert array.flags.aligned
        assert array.ctypes.data % array.itemsize == 0


def test_the_library_reads_ours() -> None:
    data = tensors.encode(EVERYTHING)
    for name, entry in safetensors.deserialize(data):
        assert bytes(entry["data"]) == EVERYTHING[name].tobytes()
        assert tuple(entry["shape"]) == EVERYTHING[name].shape
    known = {k: v for k, v in EVERYTHING.items() if v.dtype.isbuiltin == 1}
    assert same(safetensors.numpy.load(tensors.encode(known)), known)


def test_we_read_the_librarys() -> None:
    data = safetensors.numpy.save(EVERYTHING, metadata={"made": "by the library"})
    assert same(tensors.decode(data), EVERYTHING)


def test_a_decoded_blob_is_read_only() -> None:
    array = tensors.decode(tensors.encode({"x": sample("float32")}))["x"]
    assert not array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def made(header: Any, data: bytes = b"\0" * 16) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(**changes: Any) -> dict[str, Any]:
    return {"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16], **changes}}


TWICE = b'{"x": {"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
TWICE += b'"x": {"dtype":"F32","shape":[2],"data_offsets":[8,16]}}'
HOSTILE = {
    "empty": (b"", "blob-truncated"),
    "short": (b"\0" * 7, "blob-truncated"),
    "no_header": (b"\0" * 8, "blob-bad-header"),
    "long_header": (struct.pack("<Q", 1 << 63) + b"{}", "blob-bad-header"),
    "header_over_limit": (struct.pack("<Q", 2 << 20) + b" " * (2 << 20), "blob-bad-header"),
    "not_json": (made(b"nonsense"), "blob-bad-header"),
    "not_utf8": (made(b"\xff\xff"), "blob-bad-header"),
    "deep": (made(b"[" * 100_000), "blob-bad-header"),
    "list": (made([]), "blob-bad-header"),
    "twice": (made(TWICE), "blob-bad-header"),
    "metadata": (made({"__metadata__": {"a": 1}}, b""), "blob-bad-header"),
    "metadata_list": (made({"__metadata__": []}, b""), "blob-bad-header"),
    "entry_list": (made({"x": []}), "blob-bad-header"),
    "entry_incomplete": (made({"x": {"dtype": "F32"}}), "blob-bad-header"),
    "entry_more": (made(entry(more=1)), "blob-bad-header"),
    "dtype": (made(entry(dtype="C32")), "blob-bad-dtype"),
    "dtype_type": (made(entry(dtype=["F32"])), "blob-bad-dtype"),
    "shape_negative": (made(entry(shape=[-4])), "blob-bad-shape"),
    "shape_bool": (made(entry(shape=[4, True])), "blob-bad-shape"),
    "shape_float": (made(entry(shape=[4.0])), "blob-bad-shape"),
    "shape_deep": (made(entry(shape=[1] * 33)), "blob-bad-shape"),
    "shape_huge": (made(entry(shape=[1 << 62, 1 << 62, 0, 4])), "blob-bad-shape"),
    "shape_empty": (made(entry(shape=[1 << 61, 0, 8], data_offsets=[0, 0]), b""), "blob-bad-shape"),
    "shape_product": (made(entry(shape=[1 << 61, 8])), "blob-bad-offsets"),
    "offsets_negative": (made(entry(data_offsets=[-16, 0])), "blob-bad-offsets"),
    "offsets_backwards": (made(entry(data_offsets=[16, 0])), "blob-bad-offsets"),
    "offsets_beyond": (made(entry(data_offsets=[16, 32])), "blob-bad-offsets"),
    "offsets_three": (made(entry(data_offsets=[0, 8, 16])), "blob-bad-offsets"),
    "length": (made(entry(shape=[3])), "blob-bad-offsets"),
    "hole": (made(entry(data_offsets=[4, 20]), b"\0" * 20), "blob-bad-offsets"),
    "overlap": (made({**entry(), "y": entry()["x"]}), "blob-bad-offsets"),
    "truncated": (made(entry(), b"\0" * 15), "blob-bad-offsets"),
    "trailing": (made(entry(), b"\0" * 17), "blob-bad-offsets"),
    "bool": (
        made({"x": {"dtype": "BOOL", "shape": [2], "data_offsets": [0, 2]}}, b"\1\2"),
        "blob-bad-values",
    ),
}  # fmt: skip


@for_each("name", HOSTILE)
def test_hostile_bytes_are_refused(name: str) -> None:
    data, slug = HOSTILE[name]
    with pytest.raises(tensors.BlobError) as caught:
        tensors.decode(data)
    assert caught.value.slug == slug


def test_every_truncation_is_refused() -> None:
    data = tensors.encode({"x": sample("float32"), "y": sample("bool")})
    for length in range(len(data)):
        with pytest.raises(tensors.BlobError):
            tensors.decode(data[:length])


@settings(deadline=None)
@given(st.data())
def test_a_changed_byte_gives_tensors_or_an_error(data: st.DataObject) -> None:
    blob = bytearray(tensors.encode({"x": sample("float32", (2, 2)), "y": sample("bool", (3,))}))
    position = data.draw(st.integers(0, len(blob) - 1))
    blob[position] = data.draw(st.integers(0, 255))
    try:
        tensors.decode(bytes(blob))
    except tensors.BlobError as error:
        assert error.slug.startswith("blob-")


def test_names_that_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="__metadata__"):
        tensors.encode({"__metadata__": np.zeros(1)})
    with pytest.raises(TypeError, match="datetime64"):
        tensors.encode({"x": np.zeros(1, "M8[s]")})
