"""Tensors of PyTorch that programs return: what they stand for, in every dtype."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("no torch", allow_module_level=True)

import torch

from gpuemu_flow.workers.tensors import name_outputs

pytestmark = pytest.mark.ci
DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


def negated(dtype: str) -> Any:
    """A view whose sign is a bit of the tensor, not of its elements."""
    return torch._neg_view(torch.tensor([1.0, -2.0, 3.0]).to(getattr(torch, dtype)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_negated_view_keeps_its_sign(dtype: str) -> None:
    tensor = negated(dtype)
    assert tensor.is_neg()
    found = name_outputs(tensor, ())["result"]
    np.testing.assert_array_equal(found.astype(np.float64), [-1, 2, -3])


def test_the_imaginary_part_of_a_conjugated_view() -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j]).conj()
    assert tensor.imag.is_neg()
    np.testing.assert_array_equal(name_outputs(tensor.imag, ())["result"], [-2, 4])


def test_a_sparse_bfloat16_tensor() -> None:
    tensor = torch.tensor([[0.0, 1.5], [-2.0, 0.0]]).bfloat16().to_sparse()
    found = name_outputs(tensor, ())["result"].astype(np.float32)
    np.testing.assert_array_equal(found, [[0, 1.5], [-2, 0]])
