"""The float dtype of the current call, for programs whose inputs do not show it."""

from __future__ import annotations

_of_call = "float32"


def begin_call(dtype: str) -> None:
    """Record the float dtype of the next call, since its inputs may not show it."""
    global _of_call  # noqa: PLW0603 - one call at a time runs in a process
    _of_call = dtype


def float_of_call() -> str:
    """Return the dtype that `begin_call` recorded for this call."""
    return _of_call
