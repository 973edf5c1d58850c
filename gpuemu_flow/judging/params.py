"""Type of the ``compare`` part of an op's configuration, by which its outputs are judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpuemu_flow.types import PRECISIONS, Json


@dataclass(frozen=True)
class CompareParams:
    """Settings of the comparison; see `config.slices.to_slice` for their canonical form.

    Attributes
    ----------
    tolerance : str
        ``auto`` or ``table``, for dtypes without an explicit tolerance.
    tolerances : mapping of dtype name to mapping
        Explicit ones: ``atol`` and ``rtol``.
    precision : str
        One of `types.PRECISIONS`.
    nan_policy, inf_policy : str
    invariants : tuple of str
    shape_preserved_input : str or None
    mutates : tuple of str
        Inputs that the op may change.
    deterministic : bool
    reference_dtype : str or None
        The dtype that the reference is asked for; None means float64 where it can.
    """

    tolerance: str
    tolerances: Mapping[str, Mapping[str, float]]
    precision: str = PRECISIONS[0]
    nan_policy: str = "match"
    inf_policy: str = "match"
    invariants: tuple[str, ...] = ()
    shape_preserved_input: str | None = None
    mutates: tuple[str, ...] = ()
    deterministic: bool = True
    reference_dtype: str | None = None

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON; `from_json` is its inverse."""
        lists = {"invariants": list(self.invariants), "mutates": list(self.mutates)}
        tolerances = {dtype: dict(explicit) for dtype, explicit in self.tolerances.items()}
        return {**vars(self), **lists, "tolerances": tolerances}

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> CompareParams:
        """Rebuild from the result of `to_json`; TypeError when it is not that."""
        given = cls(**data)
        return replace(given, invariants=tuple(given.invariants), mutates=tuple(given.mutates))
