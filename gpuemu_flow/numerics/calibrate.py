"""Suggest tolerances per dtype from the errors of a trusted implementation on many cases."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from gpuemu_flow.model.types import MeasuredErrors, Tolerance
from gpuemu_flow.numerics.contract import OutputContract
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name, to_float64

PERCENTILE = 0.95
MARGIN = 1.5
LEAST_ULP = 2.0
FEWEST_CASES = 20
"""With fewer cases, the percentile is their maximum and predicts little about the next case."""


class Calibration(Struct, frozen=True):
    """A suggested tolerance and the figures that it is based on."""

    dtype: str
    # The tolerance ``|actual - expected| <= atol + rtol * |expected|``. Both numbers have three
    # significant digits, and are rounded upward.
    atol: float
    rtol: float
    # 1.5 times the 95th percentile of the cases' largest errors
    error: float = field(name="error_p95")
    cases: int
    worst: float  # the largest error of all cases
    above: int  # number of cases that the suggested tolerance would fail, as false alarms
    notes: tuple[str, ...] = ()


NOT_MEASURED = ("special", "extremes")
"""Strategies whose cases overflow, which no tolerance is meant to cover."""


def measured_outputs(contracts: Iterable[OutputContract], names: Iterable[str]) -> list[str]:
    """Return the outputs that two tensors show the errors of, and the op's tolerance judges."""
    apart = {c.name for c in contracts if not c.plain or c.tolerance is not None}
    return [name for name in names if name not in apart]


def observe(
    actual: Mapping[str, NDArray[Any]],
    expected: Mapping[str, NDArray[Any]],
) -> list[MeasuredErrors]:
    """Measure one case's errors, one entry per float dtype among the outputs."""
    found: dict[str, MeasuredErrors] = {}
    for name, values in actual.items():
        dtype = dtype_name(values.dtype) or ""
        if dtype not in FLOAT_LIMITS or not values.size:
            continue
        a, e = to_float64(values), to_float64(expected[name])
        e = np.where(np.isinf(e), e, np.clip(e, -FLOAT_LIMITS[dtype].max, FLOAT_LIMITS[dtype].max))
        finite = np.isfinite(a) & np.isfinite(e)
        same = (np.isnan(a) & np.isnan(e)) | (a == e)
        with np.errstate(all="ignore"):
            error = np.abs(a - e)[finite]
        size = np.abs(e)[finite]
        seen = found.get(dtype, MeasuredErrors(dtype, 0.0))
        relative = dict(seen.relative)
        for exponent, largest in _by_binade(error, size):
            relative[exponent] = max(relative.get(exponent, 0.0), largest)
        falling, most = [], -1.0
        for exponent in sorted(relative, reverse=True):
            if relative[exponent] > most:
                most = relative[exponent]
                falling.append((exponent, most))
        found[dtype] = MeasuredErrors(
            dtype,
            max(seen.max_abs, float(error.max(initial=0.0))),
            tuple(falling),
            max(seen.at_zero, float(error[size == 0.0].max(initial=0.0))),
            seen.mismatches + int(np.count_nonzero(~finite & ~same)),
        )
    return list(found.values())


def _by_binade(error: NDArray[Any], size: NDArray[Any]) -> Iterator[tuple[int, float]]:
    """Yield (exponent, largest relative error) for each binary exponent of the expected values.
    `error` and `size` hold the absolute error of each element and its expected magnitude."""
    some = size > 0.0
    if not some.any():
        return
    with np.errstate(over="ignore"):
        relative = np.minimum(error[some] / size[some], np.finfo(np.float64).max)
    exponents = np.frexp(size[some])[1] - 1
    lowest = int(exponents.min())
    largest = np.full(int(exponents.max()) - lowest + 1, -1.0)
    np.maximum.at(largest, exponents - lowest, relative)
    yield from ((lowest + n, float(each)) for n, each in enumerate(largest) if each >= 0.0)


def calibrate(observations: Iterable[MeasuredErrors]) -> list[Calibration]:
    """Suggest a tolerance for each dtype, in the order in which the dtypes first occur.

    Each tolerance is 1.5 times the 95th percentile, over the cases, of one figure per case:

    - For ``rtol``, the figure is the largest relative error among the case's values of largest
      magnitude.
    - For ``atol``, which is chosen second, the figure is the most by which an error of the case
      exceeds ``rtol * |expected|``, as `MeasuredErrors.beyond` estimates it.

    Errors are not covered by ``atol`` alone, since it would have to cover the errors of the largest
    values. For a correct float16 op whose outputs reach 1000, it would be 1.0. Where the expected
    values are small, any result would then pass.

    ``rtol`` is at least 2 eps, and ``atol`` at least the smallest normal number. Otherwise, an
    exact implementation would give tolerances of 0, which would fail any other implementation.
    """
    by_dtype: dict[str, list[MeasuredErrors]] = {}
    for observation in observations:
        by_dtype.setdefault(observation.dtype, []).append(observation)
    return [_suggest(dtype, seen) for dtype, seen in by_dtype.items()]


def _suggest(dtype: str, seen: list[MeasuredErrors]) -> Calibration:
    limits = FLOAT_LIMITS[dtype]
    at_the_top = MARGIN * _percentile([observation.at_the_top for observation in seen])
    rtol = round_up(max(at_the_top, LEAST_ULP * limits.eps))
    elsewhere = MARGIN * _percentile([observation.beyond(rtol) for observation in seen])
    atol = round_up(max(elsewhere, limits.smallest_normal))
    worst = max(observation.max_abs for observation in seen)
    above = sum(observation.beyond(rtol) > atol for observation in seen)
    # Elements whose actual or expected value, but not both, is NaN or Inf: no tolerance covers them
    mismatches = sum(observation.mismatches for observation in seen)
    notes = []
    if len(seen) < FEWEST_CASES:
        notes.append(f"only {len(seen)} cases: take at least {FEWEST_CASES}")
    if mismatches:
        notes.append(f"{mismatches} elements are NaN or Inf on one side only")
    if above:
        notes.append(f"{above} of {len(seen)} cases lie beyond it (worst {worst:.3g})")
    error = MARGIN * _percentile([observation.max_abs for observation in seen])
    return Calibration(dtype, atol, rtol, error, len(seen), worst, above, tuple(notes))


def _percentile(values: list[float]) -> float:
    """Return the 95th percentile without interpolation. Of fewer than 40 values, it is the
    largest."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(PERCENTILE * len(ordered)))]


def round_up(value: float) -> float:
    """Round up to three significant digits. A relative excess of at most 1e-12 over a number of
    three digits counts as a rounding error, and is rounded down."""
    if value <= 0.0 or not math.isfinite(value):
        return value
    shown = float(f"{value:.2e}")
    if shown >= value * (1.0 - 1e-12):
        return shown
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return max(value, float(f"{shown + step:.2e}"))


def tolerances(calibrations: Iterable[Calibration]) -> dict[str, Tolerance]:
    """Map each dtype to its suggested tolerance."""
    return {c.dtype: Tolerance(c.atol, c.rtol, "calibrated") for c in calibrations}


def to_toml(calibrations: Iterable[Calibration]) -> str:
    """Format the suggestions as an ``[ops.tolerances]`` table, with their figures as comments."""
    lines = ["[ops.tolerances]"]
    for c in calibrations:
        basis = f"{c.cases} cases, worst {c.worst:.3g}"
        pair = f"{{ atol = {float(c.atol)!r}, rtol = {float(c.rtol)!r} }}"
        lines.append(f"{c.dtype} = {pair}  # {basis}")
    return "\n".join(lines) + "\n"
