"""Tensors survive the wire bit for bit; what is no tensor is refused with its place."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from for_each import for_each
from numpy.typing import NDArray

from gpuemu_flow.model.types import DTYPES
from gpuemu_flow.numerics.dtypes import numpy_dtype
from gpuemu_flow.wire import WireError, parse, render
from gpuemu_flow.wire.tensors import (
    FROM_BYTES,
    Exchange,
    c_strides,
    decode_tensor,
    decode_tensors,
    encode_tensor,
)

SHAPES = [(), (0,), (3,), (2, 0, 4), (2, 3, 4), (40, 50)]


def filled(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    rng = np.random.default_rng(3)
    if dtype == "bool":
        return np.asarray(rng.integers(0, 2, shape)).astype(bool)
    return np.asarray(rng.normal(size=shape) * 50).astype(numpy_dtype(dtype))


def there_and_back(array: NDArray[Any], exchange: Exchange | None = None) -> NDArray[Any]:
    message = parse(render({"t": encode_tensor(array, None, exchange)}))
    return decode_tensor(message["t"], "t", exchange)


@pytest.mark.parametrize("shape", SHAPES)
def test_there_and_back(shape: tuple[int, ...]) -> None:
    for dtype in DTYPES:
        array = filled(shape, dtype)
        back = there_and_back(array)
        assert back.dtype == array.dtype
        assert back.shape == array.shape
        assert back.tobytes() == array.tobytes()


def test_layouts_are_sent_in_c_order() -> None:
    array = filled((5, 6), "float32")
    for view in (array.T, array[::-1], array[:, ::2], np.broadcast_to(array[0], (3, 6))):
        np.testing.assert_array_equal(there_and_back(view), view)


def test_special_values_keep_their_bits() -> None:
    words = np.array([0x7FC00001, 0xFF800000, 0x80000000, 1], np.uint32)
    assert there_and_back(words.view(np.float32)).view(np.uint32).tolist() == words.tolist()


def test_strides_in_elements() -> None:
    assert c_strides((2, 3, 4)) == (12, 4, 1)
    assert c_strides(()) == ()
    assert encode_tensor(filled((2, 3), "int8"))["strides"] == [3, 1]


GOOD = json.loads(render({"t": encode_tensor(np.arange(3, dtype=np.float32))}))["t"]


@for_each(
    ("change", "message"),
    [
        ({"shape": None}, "shape"),
        ({"shape": [-3]}, "shape"),
        ({"shape": [3.0]}, "shape"),
        ({"shape": [True, 3]}, "shape"),
        ({"shape": [4]}, "takes 16 bytes; its data holds 12"),
        ({"shape": [1] * 40}, "dims"),
        ({"shape": [1 << 47, 0, 1 << 47], "data": ""}, "impossible"),
        ({"dtype": "float33"}, "float32"),
        ({"dtype": 3}, "dtype"),
        ({"data": 3}, "base64"),
        ({"data": "!!!!"}, "base64"),
        ({"data": "AAAA\n"}, "base64"),
        ({"dtype": "bool", "shape": [12]}, "bool"),
    ],
)
def test_what_is_no_tensor(change: dict[str, Any], message: str) -> None:
    with pytest.raises(WireError, match=message) as caught:
        decode_tensor({**GOOD, **change}, "inputs.x")
    assert "inputs.x" in str(caught.value)


@pytest.mark.parametrize("key", ["shape", "dtype", "data"])
def test_what_is_missing(key: str) -> None:
    with pytest.raises(WireError, match=key):
        decode_tensor({k: v for k, v in GOOD.items() if k != key}, "t")


def test_strides_of_clients_mean_nothing() -> None:
    for strides in (None, [-4], [0], "junk", [4, 12]):
        array = decode_tensor({**GOOD, "strides": strides}, "t")
        assert array.tolist() == [0, 1, 2]
    assert decode_tensor({k: GOOD[k] for k in ("shape", "dtype", "data")}, "t").size


def test_dtypes_in_any_case_and_by_alias() -> None:
    for name in ("Float32", "FLOAT32", "f32"):
        assert decode_tensor({**GOOD, "dtype": name}, "t").dtype == np.float32


def test_dtypes_that_the_protocol_has_not() -> None:
    with pytest.raises(WireError, match="complex128"):
        encode_tensor(np.ones(2, complex))


def test_maps_of_tensors() -> None:
    for wrong in ([], None, "x", {str(n): GOOD for n in range(300)}):
        with pytest.raises(WireError, match="inputs"):
            decode_tensors(wrong, "inputs")


@pytest.fixture
def exchange(tmp_path: Path) -> Exchange:
    folder = tmp_path / "exchange"
    folder.mkdir(mode=0o700)
    return Exchange(folder)


def test_large_tensors_go_by_file(exchange: Exchange) -> None:
    array = filled((FROM_BYTES // 4,), "float32")
    message = render({"t": encode_tensor(array, None, exchange)})
    assert len(message) < 300
    (file,) = exchange.folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    tensor = parse(message)["t"]
    back = decode_tensor(tensor, "t", exchange)
    np.testing.assert_array_equal(back, array)
    assert list(exchange.folder.iterdir()) == []
    with pytest.raises(WireError, match="not there"):
        decode_tensor(tensor, "t", exchange)


def test_small_tensors_do_not(exchange: Exchange) -> None:
    encode_tensor(filled((10,), "float32"), None, exchange)
    assert list(exchange.folder.iterdir()) == []


@for_each("name", ["../secret", "/etc/passwd", "", "0" * 31, "G" * 32, 3, None, "0" * 32 + "\n"])
def test_only_names_of_the_exchange(exchange: Exchange, name: object) -> None:
    tensor = {"shape": [1], "dtype": "uint8", "file": name}
    with pytest.raises(WireError, match="file"):
        decode_tensor(tensor, "t", exchange)


def test_no_links_no_pipes_no_other_size(exchange: Exchange) -> None:
    tensor = {"shape": [4], "dtype": "uint8", "file": "a" * 32}
    path = exchange.folder / ("a" * 32)
    secret = exchange.folder.parent / "secret"
    secret.write_bytes(b"1234")
    path.symlink_to(secret)
    with pytest.raises(WireError):
        decode_tensor(tensor, "t", exchange)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(WireError):
        decode_tensor(tensor, "t", exchange)
    path.write_bytes(b"12345")
    with pytest.raises(WireError, match="4 bytes"):
        decode_tensor(tensor, "t", exchange)
    assert secret.read_bytes() == b"1234"


def test_a_file_without_an_exchange_is_no_data() -> None:
    with pytest.raises(WireError, match="data"):
        decode_tensor({"shape": [1], "dtype": "uint8", "file": "a" * 32}, "t")


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(WireError, match="private"):
        Exchange(tmp_path)


def test_what_is_left_is_cleared(exchange: Exchange) -> None:
    old, new = exchange.put(filled((2,), "int8")), exchange.put(filled((2,), "int8"))
    os.utime(exchange.folder / old, (1, 1))
    (exchange.folder / "mine.txt").touch()
    exchange.clear()
    assert sorted(p.name for p in exchange.folder.iterdir()) == sorted([new, "mine.txt"])
    exchange.clear(0)
    assert [p.name for p in exchange.folder.iterdir()] == ["mine.txt"]
