"""Tolerances from a trusted implementation: what its errors on many cases suggest per dtype."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name, to_float64
from gpuemu_flow.numerics.ulp import spacing
from gpuemu_flow.types import Json

PERCENTILE = 0.95
MARGIN = 1.5
LEAST_ULP = 2.0
FEWEST_CASES = 20
"""Below so many cases the percentile is their maximum, and says little of the next case."""


@dataclass(frozen=True)
class Observation:
    """The errors of a trusted implementation in one case, in the outputs of one dtype.

    Attributes
    ----------
    dtype : str
    max_abs : float
        Largest ``|actual - expected|`` over the elements that are finite on both sides.
    largest : float
        Largest finite ``|expected|``.
    mismatches : int
        Elements that are NaN or Inf on one side only.
    """

    dtype: str
    max_abs: float
    largest: float
    mismatches: int = 0


@dataclass(frozen=True)
class Calibration:
    """A suggested tolerance, ``|actual - expected| <= atol``, and what it rests on.

    Attributes
    ----------
    dtype : str
    atol : float
        ``max(error, floor)``, rounded up to three digits; rtol is 0.
    error : float
        1.5 times the 95th percentile of the cases' largest errors.
    floor : float
        2 ulp of the 95th percentile of the cases' largest expected values.
    cases : int
    worst : float
        The largest error of all cases.
    above : int
        Cases whose largest error is beyond `atol`: they would be false alarms.
    mismatches : int
        Elements with NaN or Inf on one side only, which no tolerance covers.
    """

    dtype: str
    atol: float
    error: float
    floor: float
    cases: int
    worst: float
    above: int
    mismatches: int

    @property
    def notes(self) -> tuple[str, ...]:
        """Why the suggestion should not be taken on trust; often empty."""
        found = []
        if self.cases < FEWEST_CASES:
            found.append(f"only {self.cases} cases: take at least {FEWEST_CASES}")
        if self.mismatches:
            found.append(f"{self.mismatches} elements are NaN or Inf on one side only")
        if self.above:
            found.append(
                f"{self.above} of {self.cases} cases lie beyond it (worst {self.worst:.3g})"
            )
        return tuple(found)

    def to_json(self) -> dict[str, Json]:
        """As plain JSON."""
        return {
            "dtype": self.dtype,
            "atol": self.atol,
            "rtol": 0.0,
            "error_p95": self.error,
            "floor": self.floor,
            "cases": self.cases,
            "worst": self.worst,
            "above": self.above,
            "notes": list(self.notes),
        }


def observe(
    actual: Mapping[str, NDArray[Any]],
    expected: Mapping[str, NDArray[Any]],
) -> list[Observation]:
    """One case's errors, one entry per float dtype among the outputs.

    Parameters
    ----------
    actual, expected : mapping of str to ndarray
        Same names and shapes; the expected values may be wider. Integer outputs are exact and left
        out.
    """
    found: dict[str, Observation] = {}
    for name, values in actual.items():
        dtype = dtype_name(values.dtype) or ""
        if dtype not in FLOAT_LIMITS or not values.size:
            continue
        a, e = to_float64(values), to_float64(expected[name])
        e = np.where(np.isinf(e), e, np.clip(e, -FLOAT_LIMITS[dtype].max, FLOAT_LIMITS[dtype].max))
        finite = np.isfinite(a) & np.isfinite(e)
        same = (np.isnan(a) & np.isnan(e)) | (a == e)
        with np.errstate(all="ignore"):
            error = np.abs(a - e)[finite].max(initial=0.0)
        seen = found.get(dtype, Observation(dtype, 0.0, 0.0))
        found[dtype] = Observation(
            dtype,
            max(seen.max_abs, float(error)),
            max(seen.largest, float(np.abs(e)[finite].max(initial=0.0))),
            seen.mismatches + int(np.count_nonzero(~finite & ~same)),
        )
    return list(found.values())


def calibrate(observations: Iterable[Observation]) -> list[Calibration]:
    """A suggestion per dtype, in the order in which the dtypes come.

    Notes
    -----
    1.5 times the 95th percentile of the largest error per case; a tolerance that is the errors'
    own size only would be 0 for an exact implementation and fail the next case of any other, hence
    never below 2 ulp, at the values that nearly all cases stay within.
    """
    by_dtype: dict[str, list[Observation]] = {}
    for observation in observations:
        by_dtype.setdefault(observation.dtype, []).append(observation)
    return [_suggest(dtype, seen) for dtype, seen in by_dtype.items()]


def _suggest(dtype: str, seen: list[Observation]) -> Calibration:
    errors = [observation.max_abs for observation in seen]
    error = MARGIN * _percentile(errors)
    usual = _percentile([observation.largest for observation in seen])
    floor = LEAST_ULP * float(spacing(np.array([usual]), FLOAT_LIMITS[dtype])[0])
    atol = round_up(max(error, floor))
    return Calibration(
        dtype=dtype,
        atol=atol,
        error=error,
        floor=floor,
        cases=len(seen),
        worst=max(errors),
        above=sum(value > atol for value in errors),
        mismatches=sum(observation.mismatches for observation in seen),
    )


def _percentile(values: list[float]) -> float:
    """The 95th percentile, never interpolated: with up to 20 values the largest of them."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(PERCENTILE * len(ordered)))]


def round_up(value: float) -> float:
    """The next number with three significant digits; one that has no more but for noise stays."""
    if value <= 0.0 or not math.isfinite(value):
        return value
    shown = float(f"{value:.2e}")
    if shown >= value * (1.0 - 1e-12):
        return shown
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return max(value, float(f"{shown + step:.2e}"))


def tolerances(calibrations: Iterable[Calibration]) -> dict[str, float]:
    """Dtype to suggested atol."""
    return {calibration.dtype: calibration.atol for calibration in calibrations}


def to_toml(calibrations: Iterable[Calibration]) -> str:
    """The suggestions as an ``[ops.tolerances]`` table, with what each rests on as a comment."""
    lines = ["[ops.tolerances]"]
    for c in calibrations:
        basis = f"{c.cases} cases, worst {c.worst:.3g}"
        lines.append(f"{c.dtype} = {float(c.atol)!r}  # {basis}")
    return "\n".join(lines) + "\n"
