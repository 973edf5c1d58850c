"""SiLU, as a script of the protocol."""

from __future__ import annotations

import numpy as np
from lib.protocol import read_request, write_output
from numpy.typing import NDArray


@np.errstate(all="ignore")
def silu(x: NDArray) -> NDArray:
    """Return ``x / (1 + exp(-x))``; Elfwing, Uchibe and Doya, 2017."""
    wide = x.astype(np.float64)
    return (wide / (1 + np.exp(-wide))).astype(x.dtype)


if __name__ == "__main__":
    inputs, _ = read_request()
    write_output(silu(inputs["x"]))
