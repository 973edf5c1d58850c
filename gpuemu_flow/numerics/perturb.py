"""Change inputs by about one rounding error, for the evaluations of the ``auto`` tolerance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, Float64Array, dtype_name, to_float64
from gpuemu_flow.numerics.rng import SeededRng

Arrays = Mapping[str, NDArray[Any]]

FLOAT32_SMALLEST_NORMAL = FLOAT_LIMITS["float32"].smallest_normal
FLOAT32_UNIT = 2.0**-24
FLOAT32_STEP = FLOAT_LIMITS["float32"].smallest_subnormal
"""Distance of two neighbouring subnormals; a rounding is at most half of it."""

FAR_LARGEST, FAR_SMALLEST = 1e18, 1e-18
"""Magnitudes beyond which float32 may overflow or underflow unnoticed, without a shadow."""


def map_floats(inputs: Arrays, change: Callable[[Float64Array], NDArray[Any]]) -> Arrays:
    """Return the inputs with `change` applied to float64 arrays and the others unchanged.

    Arrays without dims stay arrays, since references cannot use numpy's scalars in their place.
    """
    return {
        name: np.asarray(change(array)) if array.dtype == np.float64 else array
        for name, array in inputs.items()
    }


def widen(inputs: Arrays) -> Arrays:
    """Return all float inputs, of any width, as float64."""
    return {
        name: to_float64(array) if dtype_name(array.dtype) in FLOAT_LIMITS else array
        for name, array in inputs.items()
    }


class Perturbation:
    """Seeded relative changes of a case's inputs.

    Only finite values other than zero change. No method modifies `inputs64`.

    Random draws change a float32 subnormal by up to 2**-149, whatever its size, because an op may
    scale its inputs first. If the op computes in a wider type, subnormals change as other values
    do. No random draw crosses a branch: see `branch_sides`.
    """

    def __init__(
        self, inputs64: Arrays, seed: int, unit: float, sides: Mapping[float, float] | None = None
    ) -> None:
        self._inputs = inputs64
        self._rng = SeededRng(seed)
        self._unit = unit
        self._sides = sides or {}

    def independent(self, draw: int, scale: float = 1.0) -> Arrays:
        """Multiply each element by ``1 + d``, where d is random and independent for each element.

        d is uniform between -`scale` and `scale` times the perturbation's unit. Another `draw`
        gives other random numbers.
        """
        rng = self._rng.derive(f"auto/independent/{draw}")

        def change(values: Float64Array) -> Float64Array:
            shares = rng.f64(values.size)
            shares *= 2.0
            shares -= 1.0
            return self._moved(values, shares.reshape(values.shape), scale)

        return map_floats(self._inputs, change)

    def keyed(self, draw: int) -> Arrays:
        """Change each value by a random factor that depends only on the value and on `draw`.

        So equal values stay equal, also in different inputs, and their difference stays zero, as
        under rounding. The relative change is at most the perturbation's unit.
        """
        key = self._rng.derive(f"auto/keyed/{draw}").gen_u64()

        def change(values: Float64Array) -> Float64Array:
            return self._moved(values, shares_by_value(values, key))

        return map_floats(self._inputs, change)

    def _moved(
        self, values: Float64Array, shares: Float64Array, scale: float = 1.0
    ) -> Float64Array:
        """Multiply each value by ``1 + share * scale * unit``.

        Float32 subnormals are treated differently if `scale` is 1 and `unit` is at least the
        rounding error of float32: to each of them, ``share * FLOAT32_STEP`` is added.
        """
        for number, side in self._sides.items():
            near, above = _near(values, number), values > number
            away = np.where(above, 1.0, np.where(values < number, -1.0, side)) * np.sign(number)
            held = np.abs(shares) * away if values.ndim else 0.0
            shares = np.where(near & (away != 0.0), held, shares)
        factors = shares * (scale * self._unit)
        factors += 1.0
        moved: Float64Array = np.asarray(values * factors)
        if scale == 1.0 and self._unit >= FLOAT32_UNIT:
            small = (np.abs(values) < FLOAT32_SMALLEST_NORMAL) & (values != 0.0)
            if small.any():
                moved[small] = values[small] + shares[small] * FLOAT32_STEP
        return moved

    def scaled(self) -> Arrays:
        """Multiply every element by ``1 + unit``."""
        return map_floats(self._inputs, lambda values: self._moved(values, np.ones(values.shape)))

    def flushed(self, below: float = FLOAT32_SMALLEST_NORMAL) -> Arrays | None:
        """Replace float32 subnormals by zero; return None when the inputs hold none.

        With a smaller `below` than the default, only the subnormals below it, which have few
        significant bits, are replaced.
        """
        return self._with_zeros(lambda sizes: sizes < below)

    def flushed_some(self, draw: int) -> Arrays | None:
        """Replace some subnormals, chosen at random, by zero; return None when nothing changes."""
        key = np.uint64(self._rng.derive(f"auto/flushed/{draw}").gen_u64())

        def chosen(sizes: Float64Array) -> NDArray[np.bool_]:
            coins = (_mix(sizes.reshape(-1).view(np.uint64) ^ key) >> np.uint64(63)).astype(bool)
            result: NDArray[np.bool_] = sizes < FLOAT32_SMALLEST_NORMAL
            result &= coins.reshape(sizes.shape)
            return result

        return self._with_zeros(chosen)

    def _with_zeros(self, chosen: Callable[[Float64Array], NDArray[np.bool_]]) -> Arrays | None:
        """Replace some nonzero values by zero; return None if no value is replaced.

        `chosen` takes an array of magnitudes, and returns True for each value to replace.
        """
        found = False

        def change(values: Float64Array) -> Float64Array:
            nonlocal found
            zeroed = chosen(np.abs(values)) & (values != 0.0)
            if not zeroed.any():
                return values
            found = True
            return np.where(zeroed, 0.0, values)

        changed = map_floats(self._inputs, change)
        return changed if found else None

    def magnitudes(self, factor: float = 1.0) -> Arrays:
        """Return ``factor * |x|``, except for NaN and Inf (as in masks), which stay unchanged."""

        def change(values: Float64Array) -> Float64Array:
            sizes = np.asarray(np.abs(values))
            sizes *= factor
            np.copyto(sizes, values, where=~np.isfinite(values))
            return sizes

        return map_floats(self._inputs, change)

    @cached_property
    def _sizes(self) -> Arrays:
        return self.magnitudes()

    def grown(self, draw: int) -> Arrays:
        """Multiply each finite magnitude by an independent random factor between 1 and 2."""
        rng = self._rng.derive(f"auto/grown/{draw}")

        def change(values: Float64Array) -> Float64Array:
            factors = rng.f64(values.size)
            factors += 1.0
            grown: Float64Array = values * factors.reshape(values.shape)
            return grown

        return map_floats(self._sizes, change)


NEAR = 4.0 * 2.0**-23
"""Relative distance up to which a value is near a number that the op compares it with."""
SHIFT, JUMP = 2.0**-44, 2.0**-30
"""Relative change of an input that shows on which side of a branch it is; least change by it."""


def _near(values: Float64Array, number: float) -> NDArray[np.bool_]:
    near: NDArray[np.bool_] = np.abs(values - number) <= NEAR * abs(number)
    rounded = float(np.float32(number))  # with which ops may compare in place of the number
    return near if rounded == number else near & (values != rounded)


def branch_sides(
    inputs64: Arrays,
    numbers: Iterable[float],
    evaluate: Callable[[Arrays], Arrays | None],
) -> dict[float, float]:
    """Return the numbers at which the reference branches, each with the side that it belongs to.

    The side of 20 is -1 under ``x > 20``, 1 under ``x >= 20``, 0 if both sides differ from it. An
    input that nothing has rounded is compared exactly, so rounding excuses no op there. Inputs
    without dims are limits themselves.
    """
    sides = {}
    for number in numbers:
        if not any(
            _near(array, number).any() for array in inputs64.values() if array.dtype == np.float64
        ):
            continue
        below, there, above = (
            evaluate(_with_near(inputs64, number, number * (1.0 + shift * np.sign(number))))
            for shift in (-SHIFT, 0.0, SHIFT)
        )
        if below is None or there is None or above is None:
            continue
        if any(_jumps(below[name], above[name]) for name in there):
            leaves = [any(_jumps(end[n], there[n]) for n in there) for end in (below, above)]
            sides[number] = float(leaves[0]) - float(leaves[1])
    return sides


def _with_near(inputs64: Arrays, number: float, value: float) -> Arrays:
    return map_floats(
        inputs64,
        lambda values: np.where(_near(values, number), value, values) if values.ndim else values,
    )


def _jumps(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Tell whether a change of `SHIFT` changed a result by more than a smooth function does."""
    a, b = to_float64(one), to_float64(other)
    with np.errstate(all="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        smooth = np.abs(a - b) <= JUMP * np.maximum(np.abs(a), np.abs(b))
    return not bool((same | smooth).all())


GROWS = 2.0**-10
"""Share of a change by a large move below which a change by a move of 2**-20 of it is smooth."""


def moved_integers(
    inputs64: Arrays, seed: int, unit: float, evaluate: Callable[[Arrays], Arrays | None]
) -> Iterator[Arrays]:
    """Yield inputs with an integer one perturbed, if the reference uses it as a number.

    Integers are exact, and so may be all that a reference computes from them. A right op that adds
    in another order rounds, as it does for floats. The reference uses them as numbers if it gives
    the same for them as floats, and has no step at any of them, as it has at indices and labels.
    """
    integers = [n for n, array in inputs64.items() if array.dtype.kind in "iu" and array.size]
    given, far = evaluate(inputs64) if integers else None, SHIFT * 2.0**20
    for name in integers:
        array = inputs64[name]
        wide, rng = array.astype(np.float64), SeededRng(seed).derive(f"auto/integers/{name}")

        def moved(shares: Float64Array, end: float) -> Arrays:
            return {**inputs64, name: wide * (1.0 + end * shares)}  # noqa: B023 - called at once

        for draw in range(2):
            shares = 2.0 * rng.f64(wide.size).reshape(wide.shape) - 1.0
            shares = (shares + np.copysign(1.0, shares)) / 2.0  # so that each one moves
            ends = () if draw else (0.0, SHIFT, -SHIFT, far, -far)
            found = [evaluate(moved(shares, end)) for end in ends]
            if ends and not _is_smooth(given, found):
                break
            yield from (moved(shares, end) for end in (unit, -unit))


def _is_smooth(given: Arrays | None, found: list[Arrays | None]) -> bool:
    """Tell whether results do not change as floats, and small moves change each one far less than
    large ones do."""
    if given is None or any(end is None for end in found):
        return False
    for name, values in given.items():
        start = to_float64(values)
        changes = []
        for end in found:
            moved = to_float64((end or given)[name])
            same = (moved == start) | (np.isnan(moved) & np.isnan(start))
            changes.append(np.where(same, 0.0, np.abs(moved - start)))
        small, large = np.maximum(*changes[1:3]), np.maximum(*changes[3:])
        smooth = np.isfinite(small) & (small <= np.fmax(JUMP * np.abs(start), GROWS * large))
        if changes[0].any() or not smooth.all():
            return False
    return True


def as_float32(inputs64: Arrays, *, fortran: bool = False) -> Arrays:
    """Return the inputs for the float32 shadow, optionally in column-major order.

    Another memory order makes numpy's reductions add in another order.
    """

    def change(values: Float64Array) -> NDArray[np.float32]:
        with np.errstate(all="ignore"):
            return values.astype(np.float32, order="F" if fortran else "C")

    return map_floats(inputs64, change)


def largest_magnitude(inputs64: Arrays) -> float:
    """Return the largest finite magnitude over all float64 inputs; 0 when there is none."""
    largest = 0.0
    for values in inputs64.values():
        if values.dtype == np.float64:
            sizes = np.abs(values[np.isfinite(values)])
            largest = max(largest, float(sizes.max(initial=0.0)))
    return largest


def has_far_values(inputs64: Arrays, *, small: bool) -> bool:
    """Tell whether inputs hold values so large that float32 arithmetic may overflow.

    These are magnitudes above `FAR_LARGEST`. If `small`, the result is also True for
    magnitudes below `FAR_SMALLEST`, which may make it underflow.
    """
    for array in inputs64.values():
        if array.dtype == np.float64:
            sizes = np.abs(array[np.isfinite(array) & (array != 0.0)])
            smallest = float(sizes.min(initial=np.inf))
            if sizes.max(initial=0.0) > FAR_LARGEST or (small and smallest < FAR_SMALLEST):
                return True
    return False


def shares_by_value(values: Float64Array, key: int) -> Float64Array:
    """Draw a number from -1 to 1 for each value; equal values get equal numbers under one key."""
    words = _mix(values.reshape(-1).view(np.uint64) ^ np.uint64(key)).reshape(values.shape)
    shares: Float64Array = (words >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0
    return shares


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply SplitMix64's finalizer (Steele, Lea and Flood, 2014), a bijection, in place."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words
