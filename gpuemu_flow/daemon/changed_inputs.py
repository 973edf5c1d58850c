"""Find the inputs of a handed-out case that came back with other elements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.tensor_bytes import bytes_of

Arrays = Mapping[str, NDArray[Any]]


def changed_elements(sent: Arrays, submitted: Arrays) -> dict[str, int]:
    """Count the elements of each input that differ from those that were handed out.

    A client may convert the inputs to another dtype before it runs its op, so an input of another
    dtype is compared with the handed-out one converted to that dtype.

    Returns
    -------
    dict of str to int
        Only inputs with differing elements. Empty, too, where the inputs have other names or shapes
        than those that were handed out: no op has changed these in place.
    """
    if {name: array.shape for name, array in sent.items()} != {
        name: array.shape for name, array in submitted.items()
    }:
        return {}
    counts = {name: _count(array, submitted[name]) for name, array in sent.items()}
    return {name: count for name, count in counts.items() if count}


def _count(sent: NDArray[Any], submitted: NDArray[Any]) -> int:
    """Count differing elements; of equal dtypes compare the bits, else the values."""
    if sent.dtype == submitted.dtype:
        width = max(1, sent.itemsize)
        differs = bytes_of(sent).reshape(-1, width) != bytes_of(submitted).reshape(-1, width)
        return int(np.count_nonzero(differs.any(axis=1)))
    with np.errstate(all="ignore"):
        converted = sent.astype(submitted.dtype)
    both_nan = np.isnan(converted) & np.isnan(submitted)
    return int(np.count_nonzero((converted != submitted) & ~both_nan))
