"""The place of a failure, with the actual and the expected value, as all reports word them."""

from __future__ import annotations

from gpuemu_flow.model.types import Failure


def shown_values(failure: Failure) -> str:
    """Return the place of a failure and the values there; empty if the failure has no place.

    An element that the op did not write has a place but no values. One that breaks an invariant has
    no expected value, because nothing is compared with it.
    """
    if failure.index is None:
        return ""
    place = f"{failure.output or 'output'}{list(failure.index)}"
    if failure.actual is None and failure.expected is None:
        return f"first at {place}"
    if failure.expected is None:
        return f"{place}: actual {failure.actual!r}"
    return f"{place}: actual {failure.actual!r}, expected {failure.expected!r}"
