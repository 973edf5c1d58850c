"""Tests that inputs of only zeros or NaN are told from all others."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from gpuemu_flow.model.types import DTYPES
from gpuemu_flow.numerics.checked_output import only_zeros_or_nan
from gpuemu_flow.numerics.dtypes import numpy_dtype


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "bool"])
def test_inputs_are_blank_only_if_no_element_is_another_number(dtype: str) -> None:
    zeros = np.zeros((2, 3), numpy_dtype(dtype))
    found = {"none": only_zeros_or_nan({}), "empty": only_zeros_or_nan({"x": zeros[:0]})}
    assert found == {"none": False, "empty": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert only_zeros_or_nan({"x": zeros, "y": zeros[:0]})
        for place in np.ndindex(zeros.shape):
            one = zeros.copy()
            one[place] = 1
            assert not only_zeros_or_nan({"x": zeros, "y": one})
            assert not only_zeros_or_nan({"x": one.T})
        if DTYPES[dtype].kind == "float":
            assert only_zeros_or_nan({"x": np.full_like(zeros, np.nan), "y": zeros})
