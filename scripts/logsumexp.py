"""Log-sum-exp over the last axis: one partial result per tile, merged pairwise in a tree."""

from __future__ import annotations

import numpy as np
from lib.protocol import read_request, write_outputs
from lib.tiles import accumulator, finite_shift, load, tiles
from numpy.typing import NDArray

TILE = 128

Partial = tuple[NDArray, NDArray]  # maximum, and sum of exp(x - maximum), per row


def merge(a: Partial, b: Partial) -> Partial:
    """Merge two partial results into the partial result over the columns of both."""
    maximum = np.maximum(a[0], b[0])
    shift = finite_shift(maximum)
    return maximum, a[1] * np.exp(a[0] - shift) + b[1] * np.exp(b[0] - shift)


@np.errstate(all="ignore")
def tree(x: NDArray) -> tuple[NDArray, NDArray]:
    """Return the log-sum-exp and maximum [...] of `x` [..., N]; -Inf for a row of only -Inf."""
    acc = accumulator(x.dtype)
    partials = []
    for cols in tiles(x.shape[-1], TILE):
        tile = load(x, cols, TILE, -np.inf, acc)
        tile_max = tile.max(axis=-1)
        shifted = tile - finite_shift(tile_max)[..., None]
        partials.append((tile_max, np.exp(shifted).sum(axis=-1)))

    while len(partials) > 1:
        odd = [partials[-1]] if len(partials) % 2 else []
        pairs = zip(partials[0::2], partials[1::2], strict=False)
        partials = [merge(a, b) for a, b in pairs] + odd
    maximum, total = partials[0]
    lse = np.where(np.isinf(maximum), maximum, maximum + np.log(total))
    return lse.astype(x.dtype), maximum.astype(x.dtype)


if __name__ == "__main__":
    inputs, _ = read_request()
    lse, maximum = tree(inputs["x"])
    write_outputs(lse=lse, max=maximum)
