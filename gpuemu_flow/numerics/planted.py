"""Make the wrong tensors of `output_mutants`, one function per kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, numpy_dtype, to_float64
from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.types import DTYPES

Array = NDArray[Any]

TILES = (128, 64, 32, 16, 8)
LEAST_DEPTH = 64
"""Fewest terms of a sum whose rounding errors in a narrow dtype are beyond doubt."""


class Site(Struct, frozen=True):
    """The tensor in which a bug is planted."""

    values: Array  # Correct values, at least one; floats may be wider than `dtype`
    dtype: str  # Dtype that the tensor has, or will be rounded to
    rng: SeededRng  # Generator that decides which elements the bug hits
    longest: int  # largest dim over all inputs
    depths: tuple[int, ...]  # Last dim of each input

    @property
    def is_float(self) -> bool:
        return DTYPES[self.dtype].kind == "float"

    def wide(self) -> NDArray[np.float64]:
        """Return a float64 copy of the values."""
        return np.array(to_float64(self.values), np.float64)


Planter = Callable[[Site], "Array | None"]


def _axis_size(site: Site, axis: int) -> int:
    return site.values.shape[axis] if site.values.ndim >= -axis else 0


def _partial_tile(size: int) -> tuple[int, int] | None:
    """Choose a tile width that divides an axis of this size into full tiles and a partial one."""
    for tile in TILES:
        if size > tile and size % tile:
            return size - size % tile, tile
    return None


def tail_zeroed(axis: int) -> Planter:
    """Return a planter that sets the last, partial tile of an axis to 0."""

    def make(site: Site) -> Array | None:
        found = _partial_tile(_axis_size(site, axis))
        if found is None:
            return None
        return _zeroed(site, axis, slice(found[0], None))

    return make


def last_zeroed(site: Site) -> Array | None:
    """Set the elements at the last index of the last axis to 0."""
    return _zeroed(site, -1, slice(-1, None)) if _axis_size(site, -1) > 1 else None


def only_last_tile(site: Site) -> Array | None:
    """Set all but the last tile of the last axis to 0."""
    size = _axis_size(site, -1)
    tile = next((tile for tile in TILES if size > tile), 0)
    if not tile or not site.is_float:
        return None
    return _zeroed(site, -1, slice(0, (size - 1) // tile * tile))


def _zeroed(site: Site, axis: int, which: slice) -> Array:
    wrong = np.array(site.values)
    place = (Ellipsis, which) if axis == -1 else (Ellipsis, which, slice(None))
    wrong[place] = 0
    return wrong


def shifted(site: Site) -> Array | None:
    """Shift the last axis by one: every element gets its neighbour's value."""
    return np.roll(site.values, 1, axis=-1) if _axis_size(site, -1) > 1 else None


def last_tile_share(site: Site) -> Array | None:
    """Multiply all values by the fraction of the longest dim that its last tile of 32 covers.

    This imitates a sum over the longest dim that adds only the terms of the last tile.
    """
    if not site.is_float or site.longest <= 32:
        return None
    width = site.longest % 32 or 32
    return site.wide() * (width / site.longest)


def scaled(factor: float) -> Planter:
    """Return a planter that multiplies all values by a factor."""

    def make(site: Site) -> Array | None:
        return site.wide() * factor if site.is_float else None

    return make


def root_scaled(site: Site) -> Array | None:
    """Divide all values by the square root of the last dim of one input, chosen at random."""
    depths = [size for size in site.depths if size > 1]
    if not depths or not site.is_float:
        return None
    return site.wide() / math.sqrt(site.rng.choice(depths))


def shifted_a_little(site: Site) -> Array | None:
    """Multiply all values by 1 - e, where e is the larger of 2^-10 and 8 eps of the dtype."""
    if not site.is_float:
        return None
    return site.wide() * (1.0 - max(2.0**-10, 8.0 * FLOAT_LIMITS[site.dtype].eps))


def swapped(site: Site) -> Array | None:
    """Swap the last two axes, and give the result the original shape if their sizes differ."""
    if min(_axis_size(site, -1), _axis_size(site, -2)) < 2:
        return None
    values = np.ascontiguousarray(site.values)
    return np.swapaxes(values, -1, -2).reshape(values.shape)


def _rows(site: Site) -> Array | None:
    """Return a copy of the values as rows; None if there are fewer than two."""
    if site.values.ndim < 2 or site.values.shape[-1] == 0:
        return None
    rows = np.array(site.values).reshape(-1, site.values.shape[-1])
    return rows if rows.shape[0] > 1 else None


def stale_row(site: Site) -> Array | None:
    """Replace one row by the row before it; return None if no row differs from the one before."""
    rows = _rows(site)
    if rows is None:
        return None
    differs = np.flatnonzero(np.logical_or.reduce(rows[1:] != rows[:-1], axis=1))
    if not differs.size:
        return None
    row = int(differs[site.rng.choice_index(differs.size)]) + 1
    rows[row] = rows[row - 1]
    return rows.reshape(site.values.shape)


def stale_tile(site: Site) -> Array | None:
    """Repeat the first tile of the last axis in place of the second."""
    size = _axis_size(site, -1)
    tile = next((tile for tile in TILES if size > tile), 0)
    if not tile:
        return None
    wrong = np.array(site.values)
    width = min(tile, size - tile)
    wrong[..., tile : tile + width] = site.values[..., :width]
    return wrong


def stale_element(site: Site) -> Array | None:
    """Replace one element by another: of a few random ones, the one that differs most."""
    flat = np.array(site.values).reshape(-1)
    if flat.size < 2:
        return None
    place = site.rng.choice_index(flat.size)
    others = [site.rng.choice_index(flat.size) for _ in range(8)]
    distance = np.abs(to_float64(flat[others]) - to_float64(flat[place : place + 1]))
    if not np.isfinite(distance).any():
        return None
    flat[place] = flat[others[int(np.nanargmax(np.where(np.isinf(distance), -1, distance)))]]
    return flat.reshape(site.values.shape)


def half_rounded(site: Site) -> Array | None:
    """Round float32 or float64 values to float16, or to bfloat16 if float16 overflows."""
    if not site.is_float or FLOAT_LIMITS[site.dtype].mantissa_bits <= 10:
        return None
    wide = site.wide()
    finite = np.abs(wide[np.isfinite(wide)])
    name = "float16" if finite.max(initial=0.0) <= FLOAT_LIMITS["float16"].max else "bfloat16"
    return to_float64(wide.astype(numpy_dtype(name)))


def half_accumulated(site: Site) -> Array | None:
    """Add random errors, as if the longest dim had been summed in a narrow dtype.

    The narrow dtype is the tensor's dtype, or float16 if the tensor's dtype has 32 bits or more.
    The relative errors are normally distributed. Their standard deviation is ``eps * √n / 4``,
    where ``eps`` is that of the narrow dtype, and n is the longest dim of all inputs. A real sum of
    terms that all have the same sign has a larger error.
    """
    if not site.is_float or site.longest < LEAST_DEPTH:
        return None
    eps = max(FLOAT_LIMITS[site.dtype].eps, FLOAT_LIMITS["float16"].eps)
    wide = site.wide()
    noise = site.rng.normal_f64(wide.size).reshape(wide.shape)
    wrong: Array = wide * (1.0 + noise * (eps * math.sqrt(site.longest) / 4.0))
    return wrong


def clamped(site: Site) -> Array | None:
    """Set everything below 0 to 0."""
    return np.maximum(site.wide(), 0.0) if site.is_float else None


def nan_zeroed(site: Site) -> Array | None:
    """Set NaN to 0."""
    wide = site.wide()
    return np.where(np.isnan(wide), 0.0, wide) if site.is_float and np.isnan(wide).any() else None


def saturated(site: Site) -> Array | None:
    """Set Inf to the dtype's largest finite value."""
    wide = site.wide()
    if not site.is_float or not np.isinf(wide).any():
        return None
    return np.where(np.isinf(wide), np.copysign(FLOAT_LIMITS[site.dtype].max, wide), wide)


def index_off(site: Site) -> Array | None:
    """Add 1 to one of the integers."""
    if DTYPES[site.dtype].kind not in ("int", "uint"):
        return None
    flat = np.array(site.values).reshape(-1)
    flat[site.rng.choice_index(flat.size)] += 1
    return flat.reshape(site.values.shape)


def index_wrapped(site: Site) -> Array | None:
    """Wrap integers to the range of a signed byte."""
    if DTYPES[site.dtype].kind not in ("int", "uint"):
        return None
    return site.values.astype(np.int64).astype(np.int8).astype(np.int64)
