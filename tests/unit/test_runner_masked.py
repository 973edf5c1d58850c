"""Masked arrays that programs return: masked elements have no value that could be right."""

from __future__ import annotations

import numpy as np
import pytest

from gpuemu_flow.workers.api import OpError
from gpuemu_flow.workers.tensors import name_outputs

VALUES = np.arange(4, dtype=np.float32)


def test_masked_elements_are_refused() -> None:
    with pytest.raises(OpError, match="masked array, whose masked elements have no value") as found:
        name_outputs(np.ma.masked_equal(VALUES, 2), ("y",))
    assert found.value.error.slug == "op-output-junk"


@pytest.mark.parametrize("mask", [np.ma.nomask, np.zeros(4, bool)], ids=["none", "nothing"])
def test_an_array_of_which_nothing_is_masked_is_an_array(mask: object) -> None:
    found = name_outputs(np.ma.masked_array(VALUES, mask=mask), ("y",))["y"]
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, VALUES)
