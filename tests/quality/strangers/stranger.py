"""Type of a bug that a stranger planted, with its true cause."""

from __future__ import annotations

from typing import NamedTuple


class Bug(NamedTuple):
    """One bug: its set, reference, schema's name, cause, true statements, and dtypes."""

    folder: str
    name: str
    reference: str
    schema: str
    cause: str
    true: tuple[str, ...]
    dtypes: tuple[str, ...] = ("float32",)
