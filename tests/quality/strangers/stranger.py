"""Type of a bug that a stranger planted, with its true cause."""

from __future__ import annotations

from typing import NamedTuple


class Bug(NamedTuple):
    """One bug: its set, its reference, the name of its schema, its cause, and true statements."""

    folder: str
    name: str
    reference: str
    schema: str
    cause: str
    true: tuple[str, ...]
