"""Explicit tolerances: defaults, reading of tables, and choice of the one that applies."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from gpuemu_flow.types import DTYPES, Tolerance

DEFAULT_ORIGIN = "default"

DEFAULTS: dict[str, float] = {
    "float64": 1e-10,
    "float32": 1e-5,
    "float16": 1e-2,
    "bfloat16": 1e-2,
    # One step at the bottom of a binade, as 1e-2 nearly is for bfloat16: two right ops may round to
    # neighbouring values, and nothing finer can be asked of these formats.
    "float8_e4m3fn": 0.125,
    "float8_e5m2": 0.25,
}
"""``atol = rtol`` per float dtype, as gpuemu documents them; integers and booleans are exact."""


class PartialTolerance(Struct, frozen=True):
    """A tolerance as one table gives it for one dtype; None leaves a value to the next table."""

    atol: float | None = None
    rtol: float | None = None


ToleranceTable = Mapping[str, PartialTolerance]


def default_tolerance(dtype: str) -> Tolerance:
    """Return the documented default of a dtype from `DEFAULTS`; integers and booleans are exact.

    An unknown dtype gets the default of float32.
    """
    known = DTYPES.get(dtype)
    value = DEFAULTS["float32"] if known is None else DEFAULTS.get(dtype, 0.0)
    return Tolerance(value, value, DEFAULT_ORIGIN)


def resolve(
    dtype: str,
    op_tolerances: ToleranceTable | None = None,
    validation_tolerances: ToleranceTable | None = None,
    *,
    call: PartialTolerance | None = None,
    kernel_tolerances: ToleranceTable | None = None,
) -> Tolerance:
    """Return the tolerance of one dtype: `atol` and `rtol`, each from the first table that sets it.

    The tables are, in order: the call itself, ``[ops.tolerances]``, the kernel's tolerances,
    ``[validation.tolerances]``, the documented defaults.
    """
    places: list[tuple[str, PartialTolerance | None]] = [("call", call)]
    for name, table in (
        ("op", op_tolerances),
        ("kernel", kernel_tolerances),
        ("validation", validation_tolerances),
    ):
        places.append((name, table.get(dtype) if table else None))
    default = default_tolerance(dtype)
    atol, atol_from = default.atol, DEFAULT_ORIGIN
    rtol, rtol_from = default.rtol, DEFAULT_ORIGIN
    for name, given in reversed(places):
        if given is None:
            continue
        if given.atol is not None:
            atol, atol_from = given.atol, name
        if given.rtol is not None:
            rtol, rtol_from = given.rtol, name
    same = atol_from == rtol_from
    return Tolerance(atol, rtol, atol_from if same else f"atol {atol_from}, rtol {rtol_from}")
