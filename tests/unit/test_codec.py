"""The script protocol's codec: exact in both directions, strict with what comes back."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from for_each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuemu_flow.model.types import DTYPES
from gpuemu_flow.numerics.dtypes import numpy_dtype
from gpuemu_flow.workers.api import OpError
from gpuemu_flow.workers.script import decode_response, encode_request


def tensor(array: np.ndarray, **changes: Any) -> dict[str, Any]:
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    made = {"shape": list(array.shape), "dtype": array.dtype.name, "data": data}
    return {**made, **changes}


def random_array(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(0)
    size = int(np.prod(shape)) * DTYPES[dtype].itemsize
    raw = rng.integers(0, 2 if dtype == "bool" else 256, size, dtype=np.uint8)
    return raw.view(numpy_dtype(dtype)).reshape(shape)


SHAPES = [(), (0,), (1,), (3, 4), (2, 0, 5)]


@for_each("dtype", DTYPES)
def test_a_request_is_what_the_protocol_says(dtype: str) -> None:
    for shape in SHAPES:
        array = random_array(dtype, shape)
        document = json.loads(encode_request({"x": array, "y": array}, {"alpha": 1.5}))
        assert set(document) == {"inputs", "kwargs"}
        assert list(document["inputs"]) == ["x", "y"]
        assert document["kwargs"] == {"alpha": "1.5"}
        sent = document["inputs"]["x"]
        assert sent == {
            "shape": list(shape),
            "strides": [s // array.itemsize for s in array.strides],
            "dtype": dtype,
            "data": base64.b64encode(array.tobytes()).decode(),
        }


@for_each("indent", [None, 2])
@for_each("dtype", DTYPES)
def test_a_response_comes_back_bit_by_bit(dtype: str, indent: int | None) -> None:
    for shape in SHAPES:
        array = random_array(dtype, shape)
        for document in (
            tensor(array),
            {"output": tensor(array)},
            {"outputs": {"x": tensor(array)}},
        ):
            (result,) = decode_response(json.dumps(document, indent=indent).encode()).values()
            assert (result.dtype, result.shape) == (array.dtype, shape)
            assert result.tobytes() == array.tobytes()


def test_data_is_in_c_order_whatever_the_layout() -> None:
    base = np.arange(24, dtype=np.int16).reshape(4, 6)
    for view in (base.T, base[::2, ::-1], base[:, :1]):
        sent = json.loads(encode_request({"x": view}, {}))["inputs"]["x"]
        assert base64.b64decode(sent["data"]) == np.ascontiguousarray(view).tobytes()
        assert sent["strides"] == [s // 2 for s in view.strides]


def test_input_names_are_quoted() -> None:
    name = 'x"\\\n\u20ac'
    document = json.loads(encode_request({name: np.zeros(2)}, {name: name}))
    assert list(document["inputs"]) == list(document["kwargs"]) == [name]


ONES = np.ones((2, 3), np.float32)
BROKEN = {
    "short": (tensor(ONES, shape=[2, 4]), "op-output-length"),
    "long": (tensor(ONES, shape=[5]), "op-output-length"),
    "wrong_width": (tensor(ONES, dtype="float64"), "op-output-length"),
    "no_length": (tensor(ONES, data=""), "op-output-length"),
    "alphabet": (tensor(ONES, data="!" * 32), "op-output-junk"),
    "newlines": (tensor(ONES, data="AAAA\nAAAA" * 4), "op-output-junk"),
    "padding": (tensor(ONES, data="AAAAA"), "op-output-junk"),
    "url_alphabet": (tensor(ONES, data="-_-_" * 8), "op-output-junk"),
    "not_ascii": (tensor(ONES, data="\u20ac" * 32), "op-output-junk"),
    "data_list": (tensor(ONES, data=[1, 2]), "op-output-junk"),
    "data_none": (tensor(ONES, data=None), "op-output-junk"),
    "negative": (tensor(ONES, shape=[-2, -3]), "op-output-shape"),
    "float_dim": (tensor(ONES, shape=[2.0, 3]), "op-output-shape"),
    "bool_dim": (tensor(ONES, shape=[True, 6]), "op-output-shape"),
    "text_dim": (tensor(ONES, shape=["2", "3"]), "op-output-shape"),
    "shape_text": (tensor(ONES, shape="23"), "op-output-shape"),
    "shape_none": (tensor(ONES, shape=None), "op-output-shape"),
    "endless": (tensor(ONES, shape=[1 << 40, 1 << 40]), "op-output-shape"),
    "empty_and_endless": (tensor(ONES, shape=[0, 10**30], data=""), "op-output-shape"),
    "empty_and_wide": (tensor(ONES, shape=[1 << 62, 0, 1 << 62], data=""), "op-output-shape"),
    "many_dims": (tensor(ONES, shape=[1] * 33), "op-output-shape"),
    "complex": (tensor(ONES, dtype="complex64"), "op-output-dtype"),
    "dtype_number": (tensor(ONES, dtype=4), "op-output-dtype"),
    "bool_bytes": (tensor(np.full(4, 2, np.uint8), dtype="bool"), "op-output-junk"),
    "tensor_list": ({"output": [1]}, "op-output-missing"),
    "outputs_none": ({"outputs": None}, "op-output-missing"),
    "no_outputs": ({"outputs": {}}, "op-output-missing"),
    "many_outputs": ({"outputs": {str(i): 0 for i in range(65)}}, "op-output-junk"),
    "error_object": ({"error": "it failed"}, "op-output-missing"),
    "list": ([tensor(ONES)], "op-output-junk"),
}


@for_each("name", BROKEN)
def test_a_broken_response_has_its_slug(name: str) -> None:
    document, slug = BROKEN[name]
    with pytest.raises(OpError) as caught:
        decode_response(json.dumps(document).encode())
    assert caught.value.error.slug == slug
    assert caught.value.error.message


NO_JSON = [b"{", b"{}x", b"hello", b"\xff\xfe", b"\xef\xbb\xbf{}", b"[" * 100_000, b'{"a": 1e}']


@for_each("data", NO_JSON)
def test_no_json_is_junk_with_a_hint(data: bytes) -> None:
    with pytest.raises(OpError) as caught:
        decode_response(data)
    assert caught.value.error.slug == "op-output-junk"
    assert "stderr" in caught.value.error.hint


@pytest.mark.parametrize("data", [b"", b" \n"])
def test_silence(data: bytes) -> None:
    with pytest.raises(OpError) as caught:
        decode_response(data)
    assert caught.value.error.slug == "op-output-missing"


def test_declared_names() -> None:
    two = {"outputs": {"a": tensor(ONES), "b": tensor(2 * ONES)}}
    decoded = decode_response(json.dumps(two).encode(), ("b", "a"))
    assert list(decoded) == ["b", "a"]
    assert decoded["b"].tolist() == (2 * ONES).tolist()
    for document, names in ((two, ("a", "c")), (two, ("a",)), (tensor(ONES), ("a", "b"))):
        with pytest.raises(OpError) as caught:
            decode_response(json.dumps(document).encode(), names)
        assert caught.value.error.slug == "op-output-missing"


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_give_a_tensor_or_an_error(data: bytes) -> None:
    try:
        decode_response(data)
    except OpError as error:
        assert error.error.slug.startswith("op-output-")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["shape", "dtype", "data", "strides", "output"]), JSON_VALUES),
    st.booleans(),
)
def test_any_document_gives_a_tensor_or_an_error(document: dict[str, Any], named: bool) -> None:
    text = json.dumps({"outputs": {"y": document}} if named else document)
    try:
        decode_response(text.encode())
    except OpError as error:
        assert error.error.slug.startswith("op-output-")
