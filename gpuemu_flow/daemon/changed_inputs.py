"""Find the inputs of a handed-out case that came back with other elements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.tensor_bytes import bytes_of

Arrays = Mapping[str, NDArray[Any]]


def changed_elements(sent: Arrays, submitted: Arrays) -> dict[str, int]:
    """Count, for each input, the elements that differ from the handed-out elements.

    A client may convert the inputs before it runs its op. Therefore, a handed-out input is
    converted to the dtype of the submitted input before the two are compared.

    Returns
    -------
    dict of str to int
        Only inputs with differing elements. Also empty if names or shapes differ: the client then
        submitted inputs of its own.
    """
    if {name: array.shape for name, array in sent.items()} != {
        name: array.shape for name, array in submitted.items()
    }:
        return {}
    counts = {name: _count(array, submitted[name]) for name, array in sent.items()}
    return {name: count for name, count in counts.items() if count}


def _count(sent: NDArray[Any], submitted: NDArray[Any]) -> int:
    """Count differing elements: compare bits if the dtypes are equal, else values."""
    if sent.dtype == submitted.dtype:
        width = max(1, sent.itemsize)
        differs = bytes_of(sent).reshape(-1, width) != bytes_of(submitted).reshape(-1, width)
        return int(np.count_nonzero(differs.any(axis=1)))
    with np.errstate(all="ignore"):
        converted = sent.astype(submitted.dtype)
    both_nan = np.isnan(converted) & np.isnan(submitted)
    return int(np.count_nonzero((converted != submitted) & ~both_nan))
