"""Changes of an op or kernel since the previous run, as the ``diff`` stages write them."""

from __future__ import annotations

from collections.abc import Mapping

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Json, number_from_json

WORSE = ("regression", "growth")
"""Kinds of changes that count as regressions."""


@dataclass(frozen=True)
class ResultChange:
    """A difference between two summaries of an op in one dtype.

    Attributes
    ----------
    op, dtype : str
    kind : str
        ``new``, ``regression``, ``growth``, ``improvement`` or ``change``.
    what : str
        What changed: ``verdict`` (of the op), ``max_abs``, ``case verdict`` (of one case) or
        ``cases`` (the cases themselves); ``op`` if there was no summary before.
    old, new : str, float or None
        The verdict, the error or the number of cases before and now. An error that is not finite
        is a str, as in the manifest.
    """

    op: str
    dtype: str
    kind: str
    what: str
    old: str | float | None
    new: str | float | None

    @property
    def is_worse(self) -> bool:
        """Tell whether the change counts as a regression."""
        return self.kind in WORSE

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON."""
        return vars(self).copy()

    @classmethod
    def from_json(cls, op: str, data: Mapping[str, Json]) -> ResultChange:
        """Rebuild from an item of an op's manifest; raise KeyError if it is invalid."""
        return cls(op, data["dtype"], data["kind"], data["what"], data["old"], data["new"])

    def errors(self) -> tuple[float, float]:
        """Return the largest error before and now, for a change of ``max_abs``."""
        return number_from_json(self.old), number_from_json(self.new)


@dataclass(frozen=True)
class KernelChange:
    """A change that made a kernel better or worse, usually a change of one of its figures.

    Attributes
    ----------
    kernel : str
        Name of the entry.
    arch : str
    kind : str
        ``regression`` or ``improvement``.
    metric, message : str
    old, new : float or None
        The figure before and now; None where it is unknown. Both are None if no figure changed.
    """

    kernel: str
    arch: str
    kind: str
    metric: str
    message: str
    old: float | None = None
    new: float | None = None

    @property
    def is_worse(self) -> bool:
        """Tell whether the change counts as a regression."""
        return self.kind in WORSE

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> KernelChange:
        """Rebuild from an item of a manifest; raise TypeError if it is invalid."""
        return cls(**data)  # an older version's manifest has no figures
