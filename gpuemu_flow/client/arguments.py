"""Check the arguments of a client's calls: tolerances, cases and numbers of outputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from gpuemu_flow.client.errors import ClientError
from gpuemu_flow.client.results import TestCase
from gpuemu_flow.errors import Problem
from gpuemu_flow.types import Json

TOLERANCES = ("atol", "rtol")


def checked_arguments(given: Mapping[str, Json]) -> dict[str, Json]:
    """Check a call's keyword arguments, and return them.

    Raises
    ------
    ClientError
        ``client-bad-tolerance``, see `check_tolerance`; ``client-not-finite`` if another argument
        is NaN or infinite.
    """
    for name, value in given.items():
        if name in TOLERANCES:
            check_tolerance(name, value)
        elif isinstance(value, float) and not math.isfinite(value):
            text = f"the argument {name} is {value}, which a request cannot hold"
            raise ClientError(Problem("client-not-finite", text, "give a finite number"))
    return dict(given)


def check_tolerance(name: str, value: Any) -> None:
    """Raise ClientError ``client-bad-tolerance`` unless a value is None or a finite number.

    Texts such as ``"1e-3"`` are refused, although the daemon accepts them from published clients,
    which send every argument as text.
    """
    if value is None:
        return
    if not isinstance(value, Real) or isinstance(value, bool):
        text = f"{name} is of type {type(value).__name__}"
    elif not math.isfinite(value):
        text = f"{name} is {float(value)}"
    else:
        return
    raise ClientError(
        Problem("client-bad-tolerance", text, f"give a finite number of 0 or more, as {name}=1e-5")
    )


def check_tolerances(atol: Any, rtol: Any) -> None:
    """Check both members of a tolerance; see `check_tolerance`."""
    for name, value in zip(TOLERANCES, (atol, rtol), strict=True):
        check_tolerance(name, value)


def one_per_case(
    op_name: str, cases: Iterable[TestCase | int], outputs: Iterable[Any]
) -> list[tuple[TestCase | int, Any]]:
    """Pair each case, or seed of a case, with its output.

    Raises
    ------
    ClientError
        ``client-outputs-count`` if the numbers of cases and outputs differ; ``client-not-a-case``
        for an item that is neither a case nor a seed.
    """
    for name, given in (("cases", cases), ("outputs", outputs)):
        if not isinstance(given, Iterable) or isinstance(given, (str, bytes, Mapping)):
            text = f"the {name} of {op_name} are of type {type(given).__name__}"
            raise ClientError(Problem("client-outputs-count", text, "give a list of them"))
    cases, outputs = list(cases), list(outputs)
    if len(cases) != len(outputs):
        text = f"{len(outputs)} outputs were given for {len(cases)} cases of {op_name}"
        raise ClientError(Problem("client-outputs-count", text, "give one output per case"))
    known = [_case_or_seed(case, f"cases[{n}] of {op_name}") for n, case in enumerate(cases)]
    return list(zip(known, outputs, strict=True))


def _case_or_seed(given: Any, what: str) -> TestCase | int:
    if isinstance(given, TestCase):
        return given
    if isinstance(given, Integral) and not isinstance(given, bool):
        return int(given)  # JSON cannot encode numpy's integers
    kind = type(given)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    hint = "give cases of get_test_batch, gpuemu_flow.client.TestCase(seed=…, inputs=…), or seeds"
    raise ClientError(Problem("client-not-a-case", f"{what} is of type {name}", hint))


def failure_fields(failure: int | str) -> dict[str, Json]:
    """Return the fields of a request that identify a failure: by seed, or by id if it is a str."""
    return {"failure_id": failure} if isinstance(failure, str) else {"seed": failure}
