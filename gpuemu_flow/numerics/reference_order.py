"""The order of dtypes in which a reference is given its float inputs: float64 first."""

from __future__ import annotations

WIDE, SINGLE, OWN = "float64", "float32", None
"""Dtypes of float inputs; `OWN` stands for each input's own dtype."""


def dtypes_to_try(*, widened: bool, single: bool = False) -> tuple[str | None, ...]:
    """List the dtypes in which to give a reference its float inputs, until it returns outputs.

    A reference refuses a dtype if it raises, exits, crashes or hangs. It is then given the next
    dtype; None stands for the inputs' own dtypes. If it refuses all dtypes, the error for the last
    dtype is reported.
    """
    wider = (WIDE, SINGLE) if single else (WIDE,)
    return (*wider, OWN) if widened else (OWN,)
