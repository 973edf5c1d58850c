"""Explicit tolerances: defaults, reading of tables, and the choice of the one that applies."""

from __future__ import annotations

import math
from collections.abc import Mapping

from gpuemu_flow.errors import Problem, did_you_mean
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import DTYPE_ALIASES, DTYPES, Json, Tolerance, canonical_dtype

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


@dataclass(frozen=True)
class PartialTolerance:
    """A tolerance as one table gives it for one dtype; None = left to the next table."""

    atol: float | None = None
    rtol: float | None = None


ToleranceTable = Mapping[str, PartialTolerance]


def default_tolerance(dtype: str) -> Tolerance:
    """Return the documented default of a dtype: `DEFAULTS`, exact for integers and booleans.

    A dtype outside the vocabulary gets float32's.
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
    calibrated: ToleranceTable | None = None,
    user_tolerances: ToleranceTable | None = None,
) -> Tolerance:
    """Return the tolerance of one dtype, each member from the most specific table that gives it.

    Order: the call itself, ``[ops.tolerances]``, the kernel's, the calibrated ones,
    ``[validation.tolerances]``, the user's configuration, the documented default.

    Parameters
    ----------
    dtype : str
        Canonical name.
    op_tolerances, validation_tolerances, kernel_tolerances, calibrated, user_tolerances : mapping
        Canonical dtype name to `PartialTolerance`.
    call : PartialTolerance
        Given with this very request, for whatever dtype.

    Returns
    -------
    Tolerance
        `origin` names the place (``op``, ``validation``, ..., ``default``), or both places when
        the two members come from different ones: ``atol op, rtol default``.
    """
    places: list[tuple[str, PartialTolerance | None]] = [("call", call)]
    for name, table in (
        ("op", op_tolerances),
        ("kernel", kernel_tolerances),
        ("calibrated", calibrated),
        ("validation", validation_tolerances),
        ("user", user_tolerances),
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


def parse_tolerance(value: Json, where: str) -> tuple[PartialTolerance | None, list[Problem]]:
    """Read one tolerance: a number, which means ``{atol = x, rtol = 0}``, or a table of the two.

    Parameters
    ----------
    value : number or table
    where : str
        Place named in the messages: ``ops.softmax.tolerances.float32``.

    Returns
    -------
    (PartialTolerance or None, list of Problem)
        None when nothing usable is left. A NaN, infinite or negative number is a problem.
    """
    if not isinstance(value, Mapping):
        number, problem = _parse_number(value, where)
        if problem is not None:
            return None, [problem]
        return PartialTolerance(number, 0.0), []
    problems: list[Problem] = []
    members: dict[str, float] = {}
    for key, member in value.items():
        if key not in ("atol", "rtol"):
            hint = did_you_mean(str(key), ("atol", "rtol"))
            message = f"{where}: unknown key {key!r}"
            problems.append(Problem("config-unknown-key", message, hint, warning=True))
            continue
        number, problem = _parse_number(member, f"{where}.{key}")
        if problem is not None:
            problems.append(problem)
        elif number is not None:
            members[key] = number
    if not members:
        if not problems:
            message = f"{where}: neither atol nor rtol is given"
            problems.append(Problem("config-bad-tolerance", message, "write { atol = 1e-5 }"))
        return None, problems
    return PartialTolerance(members.get("atol"), members.get("rtol")), problems


def parse_table(
    table: Mapping[str, Json], where: str
) -> tuple[dict[str, PartialTolerance], list[Problem]]:
    """Read a table of dtype names (or aliases) to tolerances, or report all its problems.

    Examples
    --------
    >>> parse_table({"f16": 1e-2}, "validation.tolerances")[0]
    {'float16': PartialTolerance(atol=0.01, rtol=0.0)}
    """
    parsed: dict[str, PartialTolerance] = {}
    problems: list[Problem] = []
    for key, value in table.items():
        place = f"{where}.{key}"
        dtype = canonical_dtype(str(key))
        if dtype is None:
            hint = did_you_mean(str(key), (*DTYPES, *DTYPE_ALIASES))
            problems.append(
                Problem("config-unknown-dtype", f"{place}: unknown dtype {key!r}", hint)
            )
            continue
        if dtype in parsed:
            message = f"{place}: {dtype} is given twice, under two of its names"
            problems.append(Problem("config-duplicate-dtype", message))
            continue
        tolerance, found = parse_tolerance(value, place)
        problems.extend(found)
        if tolerance is not None:
            parsed[dtype] = tolerance
    return parsed, problems


def _parse_number(value: Json, where: str) -> tuple[float | None, Problem | None]:
    slug = "config-bad-tolerance"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None, Problem(slug, f"{where}: {value!r} is not a number", "write a number >= 0")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < 0.0:
        return None, Problem(slug, f"{where}: {value!r} is not a finite number >= 0")
    return number, None
