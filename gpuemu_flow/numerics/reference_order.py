"""The order of dtypes in which a reference is given its float inputs: float64 first."""

from __future__ import annotations

WIDE, SINGLE, OWN = "float64", "float32", None
"""Dtypes of float inputs; `OWN` stands for each input's own dtype."""


def dtypes_to_try(*, widened: bool, single: bool = False) -> tuple[str | None, ...]:
    """List the dtypes in which a reference is given float inputs, in turn, until it gives outputs.

    However it refuses one (it raises, exits, crashes or hangs), it is given the next. The error of
    the last counts.

    Parameters
    ----------
    widened : bool
        False: it gets its inputs only in their own dtypes.
    single : bool
        True for inputs that were altered in float64 to measure a tolerance. A reference that
        refuses float64 then gets them in float32 before it gets them rounded to their own dtypes.
    """
    wider = (WIDE, SINGLE) if single else (WIDE,)
    return (*wider, OWN) if widened else (OWN,)
