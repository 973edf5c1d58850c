"""Random outputs whose elements are dropped in groups, such as whole channels."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Wide = NDArray[np.float64]
Marks = NDArray[np.bool_]

ROUNDINGS = 16.0
"""Largest difference of the factors in one group, in units of the relative spacing."""


class Groups(Struct, frozen=True):
    """One element of each group of elements that share a random draw."""

    # The op's element of each group, and its expected mean
    drawn: Wide
    wanted: Wide
    telling: Marks  # true for each group with a tested element
    what: str  # the phrase that names the groups in messages
    # The failure's message if elements that share a draw in the reference do not share one in the
    # op; empty if there is no failure
    failure: str = ""


def grouped(
    name: str, drawn: Wide, wanted: Wide, telling: Marks, reference: Wide, eps: float
) -> Groups | None:
    """Return one element of each group of elements that the reference drops together.

    Dropout of whole channels, for example, makes one random draw per channel, and sets all elements
    of the channel to 0 or none. The groups are found from the reference's output: elements share a
    draw along an axis if, in each line along this axis, the tested elements are either all 0 or all
    nonzero.
    """
    axes = _shared_axes(reference == 0.0, telling)
    if not axes:
        return None
    said = f"axis {axes[0]}" if len(axes) == 1 else f"axes {', '.join(map(str, axes))}"
    with np.errstate(all="ignore"):
        factors = np.where(telling, drawn / np.where(telling, wanted, 1.0), np.nan)
        least = np.where(telling, factors, np.inf).min(axis=axes)
        most = np.where(telling, factors, -np.inf).max(axis=axes)
        some: Marks = np.asarray(telling.any(axis=axes))
        apart = some & ~(most - least <= ROUNDINGS * eps * np.abs(most))
    failure = ""
    if apart.any():
        failure = (
            f"elements of {name!r} along {said} do not share a draw, as those of the reference do:"
            f" their factors differ in {int(np.count_nonzero(apart))} of {int(some.sum())} groups"
        )
    first = np.expand_dims(_flat(telling, axes).argmax(axis=-1), -1)
    picked, means = (np.take_along_axis(_flat(a, axes), first, -1)[..., 0] for a in (drawn, wanted))
    return Groups(picked, means, some, f"groups of elements along {said}", failure)


def _shared_axes(zero: Marks, telling: Marks) -> tuple[int, ...]:
    """Return the axes along which elements share a draw.

    In each line along such an axis, the tested elements are either all 0 or all nonzero. Axes
    of size 1 are left out. If elements share a draw along all remaining axes, the result is empty.
    """
    wide = [axis for axis, size in enumerate(zero.shape) if size > 1]
    no, yes = telling & zero, telling & ~zero
    shared = tuple(axis for axis in wide if not (no.any(axis=axis) & yes.any(axis=axis)).any())
    return () if len(shared) == len(wide) else shared


def _flat(values: NDArray[Any], axes: tuple[int, ...]) -> NDArray[Any]:
    """Return the values with `axes` merged into a single axis, which comes last."""
    kept = [axis for axis in range(values.ndim) if axis not in axes]
    moved = values.transpose(*kept, *axes)
    joined: NDArray[Any] = moved.reshape(*moved.shape[: len(kept)], -1)
    return joined
