"""Users' tensors as arrays: converted with the values that they stand for, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuemu_flow.client.calls import as_array, nbytes, validate
from gpuemu_flow.client.connection import BYTES_PER_MS
from gpuemu_flow.client.results import ClientError
from gpuemu_flow.numerics.dtypes import numpy_dtype


@pytest.mark.parametrize(
    "value",
    [
        np.ma.masked_array([1.0, 2.0], mask=[False, True]),
        np.array([1, "a"], object),
        np.zeros(3, "datetime64[s]"),
        1 << 80,
        None,
        [[1], [2, 3]],
    ],
)
def test_refused(value: Any) -> None:
    with pytest.raises(ClientError) as caught:
        as_array(value, "x")
    assert caught.value.problems[0].slug == "client-not-a-tensor"
    assert "'x'" in str(caught.value)


def test_no_imaginary_part_is_lost() -> None:
    with pytest.raises(ClientError):
        as_array(np.array([1 + 2j], np.complex64), "x", "float32")


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_converted() -> None:
    swapped = np.arange(3, dtype=">f4")
    assert as_array(swapped, "x").tolist() == [0, 1, 2]
    assert type(as_array(np.matrix([[1.0]]), "x")) is np.ndarray
    assert as_array(np.ma.masked_array([1.0, 2.0]), "x").tolist() == [1, 2]
    assert as_array(np.zeros((0, 3), np.float32), "x").shape == (0, 3)
    assert as_array(np.ones(2), "x", "float8_e4m3fn").dtype == numpy_dtype("float8_e4m3fn")


def test_the_bytes_of_a_request() -> None:
    x = np.zeros(1_000_000, np.float32)
    call = validate("op", {"x": x}, {"y": x}, {"axis": 1}, seed=None, dtype=None)
    assert nbytes(call.request) == 8_000_000
    assert nbytes(call.request) // BYTES_PER_MS == 8_000


@pytest.mark.ci
def test_views_and_dtypes_of_torch() -> None:
    torch = pytest.importorskip("torch")
    plain = torch.tensor([1.5, -2.0, 0.0])
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    complexes = torch.tensor([1 + 2j, 3 - 4j])
    for name in ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"):
        tensor = plain.to(getattr(torch, name))
        assert as_array(tensor, "x").astype(np.float32).tolist() == [1.5, -2.0, 0.0]
    for name in ("float32", "bfloat16"):
        negated = torch._neg_view(plain.to(getattr(torch, name)))
        assert negated.is_neg()
        assert as_array(negated, "x").astype(np.float32).tolist() == [-1.5, 2.0, 0.0]
    assert as_array(complexes.conj().imag, "x").tolist() == [-2.0, 4.0]
    for sparse in (dense.to_sparse(), dense.to_sparse_csr()):
        assert as_array(sparse, "x").tolist() == dense.tolist()
    assert as_array(dense.t().requires_grad_(), "x").tolist() == dense.t().tolist()
    quantized = torch.quantize_per_tensor(plain, 0.5, 0, torch.qint8)
    for refused in (quantized, torch.zeros(2, device="meta")):
        with pytest.raises(ClientError):
            as_array(refused, "x")


@pytest.mark.ci
def test_the_adapter_gives_the_same() -> None:
    pytest.importorskip("torch")
    import torch

    from gpuemu_flow.frameworks.pytorch import ADAPTER

    tensor = torch._neg_view(torch.tensor([1.0, -2.0])).to(torch.float8_e5m2)
    assert ADAPTER.to_numpy(tensor).astype(np.float32).tolist() == [-1.0, 2.0]
    with pytest.raises(ClientError):
        ADAPTER.to_numpy(torch.zeros(2, device="meta"))
